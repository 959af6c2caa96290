"""Secrets that stand in the clear in a person's file: found by their name or their form, and never passed on."""

from __future__ import annotations

import functools
import os
import re
from typing import Final

__all__ = ["HIDDEN", "found", "is_name", "is_value", "is_wandb_key", "name_for", "of_environment", "quiet", "shown"]

#: What stands in a report where a secret stood.
HIDDEN: Final = "***"
_NAME: Final = re.compile(
    r"(^|_)(TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH_?KEY)"
    r"(_ID)?$|^(?:.*_)?(API|ACCESS|SECRET)_KEY(_ID)?$|(^|_)(APIKEY|AUTHTOKEN)$|_PAT$",
    re.IGNORECASE,
)
# Names that look like one and are none.
_NO_NAME: Final = re.compile(
    r"^(PAD|EOS|BOS|UNK|SEP|CLS|MASK|MAX|NUM|SPECIAL|STOP)_?(NEW_?)?TOKENS?$|TOKENIZERS?|_TOKEN_ID$|^SSH_AUTH", re.I
)
# The forms of keys that well-known services give out.
_VALUE: Final = re.compile(
    # not within a word: a task-..., a mask-... is no key
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}"
    r"|sk-(?:[a-z]+\d*-)*(?:[A-Za-z0-9]{20,}|(?=[\w-]*[A-Z])(?=[\w-]*\d)[\w-]{20,})|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{20,}|xox[abposr]-[\w-]{10,}|AKIA[0-9A-Z]{16}|AIza[\w-]{35}|wandb_v1_\w{20,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,})",
    re.ASCII,
)
# One of these is in each of both: most texts have none, and are seen through three times as fast.
_BEGINS: Final = re.compile(r"hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox|AKIA|AIza|wandb_v1_|eyJ|://")
# Not a variable that stands for it.
_IN_URL: Final = re.compile(r"(?<=://)[^/\s:@'\"]{1,100}:(?!\$\{?\w+\}?@)[^/\s@'\"]{1,200}(?=@)")
# What stands before the value of a variable in any of the formats, and that value.
_SAYS: Final = re.compile(r"(?<![\w-])([A-Za-z_][\w-]*)[\"']?\s*[=:]\s*[\"'\[({]*")
_SAID: Final = re.compile(r"[^\s\"',;\])}]*")
#: Of either: ``x://a:b@``.
_SHORTEST: Final = 8
# What may be looked for within a text.
_TELLING: Final = 12
_HEX_KEY: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
# Which variable a service reads its key from.
_SERVICES: Final = (
    ("hf_", "HF_TOKEN"),
    ("sk-ant-", "ANTHROPIC_API_KEY"),
    ("sk-", "OPENAI_API_KEY"),
    ("gh", "GITHUB_TOKEN"),
    ("wandb_", "WANDB_API_KEY"),
    ("AKIA", "AWS_ACCESS_KEY_ID"),
)


@functools.lru_cache(4096)
def is_name(name: str) -> bool:
    """Whether a variable, or an option, of this name holds a secret."""
    plain = name.strip("-").replace("-", "_")
    return bool(_NAME.search(plain)) and not _NO_NAME.search(plain)


def is_value(text: str) -> bool:
    """Whether a text has the form of a key, or a password within an address."""
    return bool(_may_hold(text) and (_VALUE.search(text) or _IN_URL.search(text)))


def found(text: str) -> list[str]:
    """What in a text has the form of a key."""
    return [match[0] for pattern in (_VALUE, _IN_URL) for match in pattern.finditer(text)] if _may_hold(text) else []


def name_for(text: str) -> str:
    """The variable that a key of this form is read from."""
    match = _VALUE.search(text)
    if match is None:
        return "WANDB_API_KEY" if _HEX_KEY.fullmatch(text) else "SECRET"
    return next((name for begin, name in _SERVICES if match[0].startswith(begin)), "SECRET")


def is_wandb_key(text: str) -> bool:
    """Whether a text has the form of a key of Weights & Biases, which is that of any SHA-1."""
    return bool(_HEX_KEY.fullmatch(text))


def of_environment(text: str) -> str:
    """The variable of this environment whose secret a text is or holds; empty where there is none.

    A value that is too short could agree by chance.
    """
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and is_name(name) and (text == value or (len(value) >= _TELLING and value in text)):
            return name
    return ""


def quiet(text: str) -> str:
    """As `shown`, and without the values of variables that a secret has: for what an error quotes."""
    parts, at = [], 0
    text = shown(text)
    for match in _SAYS.finditer(text):
        if match.start() >= at and is_name(match[1]):
            parts += [text[at : match.end()], HIDDEN]
            at = _SAID.match(text, match.end()).end()  # type: ignore[union-attr]
    return "".join([*parts, text[at:]])


def shown(text: str) -> str:
    """A text with what has the form of a key taken out, for reports and errors."""
    return _IN_URL.sub(HIDDEN, _VALUE.sub(HIDDEN, text)) if _may_hold(text) else text


def _may_hold(text: str) -> bool:
    return len(text) >= _SHORTEST and _BEGINS.search(text) is not None
