"""Secrets that stand where everybody can read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.formats import secrets

# A reader hides every secret; it says of those whose value the file itself holds.
_CLEAR: Final = re.compile(r"in the clear|form of a key")


@rule("secret-in-clear")
def secret_in_clear(case: Case) -> Iterator[Advice]:
    """A token, key or password in the clear."""
    told = set()
    for name, value in case.env.items():
        if not value or value.startswith(("$", "/", "~", "<")):
            continue
        if secrets.is_value(value) or (secrets.is_name(name) and not _harmless(name, value)):
            told.add(name)
            yield Advice(
                level=Level.ERROR,
                rule="secret-in-clear",
                field=f"env.{name}",
                message=f"The value of {name} stands in the clear: scripts, manifests and apps are stored and shown.",
                fix=f"Use --secrets {name}: the value then stays in your own store. Renew it if the file was shared.",
                change=_to_secret(name),
            )
    for field, line in case.lines():
        if secrets.is_value(line):
            yield Advice(
                level=Level.ERROR,
                rule="secret-in-clear",
                field=field,
                message="A key stands in the clear in a command, where every user of the node sees it.",
                fix="Take it out, and pass it as a variable with --secrets. Renew it if the file was shared.",
            )
    for source in case.fields:
        clear = source.value == secrets.HIDDEN and _CLEAR.search(source.reason)
        if clear and source.field and source.field.removeprefix("secrets.") not in told:
            line = f" on line {source.line}" if source.line else ""
            yield Advice(
                level=Level.ERROR,
                rule="secret-in-clear",
                field=source.field,
                message=f"{source.key}{line} of the source holds a secret in the clear.",
                fix="Take it out of the file, and renew it if the file was shared.",
            )


def _harmless(name: str, value: str) -> bool:
    """A count of tokens, or a switch."""
    counted = value.isdigit() and name.upper().endswith(("TOKEN", "TOKENS"))
    return counted or value.lower() in ("true", "false", "yes", "no", "none", "null", "0", "1")


def _to_secret(name: str) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        environment = case.spec.environment
        env = {key: value for key, value in environment.env.items() if key != name}
        names = tuple(dict.fromkeys([*environment.secrets, name]))
        environment = msgspec.structs.replace(environment, env=env, secrets=names)
        return msgspec.structs.replace(case, spec=msgspec.structs.replace(case.spec, environment=environment))

    return change
