"""What plain prints say of a training: ``step 10 loss 0.25``, Keras's lines, settings."""

import re

from .loglines import IGNORED, NUMBER, Logged, is_metric, whole_number

__all__ = ["EpochSteps", "read_hint", "read_keras_epoch", "read_plain"]

_LOCATOR = re.compile(
    r"(?<![\w./-])(?P<name>(?:global[ _-]?)?step|iteration|iter|epoch)(?:\((?:train|val|test)\))?\s{0,4}[:=#]?\s{0,4}"
    r"(?P<open>[\[(])?\s{0,6}(?P<n>\d{1,12}(?:\.\d{1,12})?)(?:\s{0,4}/\s{0,4}(?P<total>\d{1,12}))?\s{0,2}[\])]?"
    r"(?:\[\s{0,6}(?P<inner>\d{1,12})\s{0,2}/\s{0,2}(?P<inner_total>\d{1,12})\s{0,2}\])?(?![\w.]*\w)",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"^\W{0,4}\[\s{0,6}(?P<n>\d{1,12})\s{0,2}/\s{0,2}(?P<total>\d{1,12})\s{0,2}\]")
_KERAS = re.compile(
    r"^\s{0,4}(?P<n>\d{1,12})/(?P<total>\d{1,12})\s+(?:\[[=>.\s]{1,200}\]|\W{1,300})\s?(?=\d{1,9}m?s\b)"
)
_KERAS_EPOCH = re.compile(r"^\s{0,4}Epoch (?P<n>\d{1,9})/\d{1,9}\s*$")
_METRIC = re.compile(
    r"(?<![\w@./-])(?P<name>(?:(?:train|training|val|valid|validation|test|eval|evaluation|dev|avg|average|mean|best"
    r"|running|total|current|final|batch)[ _-]){0,2}"
    r"(?:learning[ _-]rate|grad(?:ient)?[ _-]norm|[A-Za-z][\w@./-]{0,60}))"
    r"(?:\s{0,4}(?P<sep>[:=])\s{0,6}|\s{1,6})(?P<number>" + NUMBER + r")%?(?=\.?(?:[\s,;|)\]}]|$))",
    re.IGNORECASE,
)
# What stands beside the measures: code and errors never do, and no more words than a label has.
_CODE = re.compile(
    r"[=!<>]=|[#`\\{}]|\b(?:self|return|def|import|for|if|in|lambda|assert|raise|print|class)\b"
    r"|Error\b|Exception\b|File \"|://|[A-Za-z_]\((?=[\s,)]|$)"
)
_NOISE = re.compile(
    r"\[[^\[\]]{0,120}\]|\([^()]{0,120}\)|\d{4}-\d\d-\d\d"
    r"|\b(?:INFO|DEBUG|WARNING|NOTICE|root|it|ms|step|samples|sec)\b"
)
_PROSE = re.compile(r"[A-Za-z]{2,}")
_PROSE_LIMIT = 3
_SETTING = re.compile(
    r"\b(?P<name>max_steps|logging_steps|gradient_accumulation_steps)['\"]?\s?[:=]\s?(?P<n>\d{1,12})\b(?!\.)"
)
_STEPS_SET = re.compile(r"(?:Maximum number of steps set at|Total optimization steps =) (?P<n>\d[\d,]{0,14})")
_RESUME = re.compile(
    r"(?i)resum(?:e|ing)(?:\b|_).{0,300}?checkpoint-(?P<n>\d{1,12})\b"
    r"|continuing training from global step (?P<m>\d{1,12})"
)


def read_keras_epoch(text):
    """Keras's ``Epoch 2/10`` on a line of its own, else None."""
    match = _KERAS_EPOCH.match(text)
    return int(match.group("n")) if match else None


def read_plain(text, keras_epoch=None):
    """A print like ``step 10 loss 0.25`` or ``Epoch 2/10 - loss: 0.3``, else None.

    It takes the name of a measure with a number and a step or an epoch; more than
    a few other words make it a sentence.
    """
    rest = text
    step = epoch = total = None
    places = 0
    counted = None
    for match in _LOCATOR.finditer(text):
        if match.group("name").lower() == "epoch":
            if epoch is not None:
                continue
            epoch = float(match.group("n"))
            if match.group("inner"):
                step, total = int(match.group("inner")), int(match.group("inner_total"))
        elif step is None:
            step = whole_number(match.group("n"))
            counted = match.group("total")
        places += 1
        rest = rest.replace(match.group(0), " | ", 1)
    if step is not None and total is None and counted and epoch is not None:
        total = int(counted)
    if step is None:
        match = _COUNTED.match(rest)
        if match is not None:
            step = int(match.group("n"))
            total = int(match.group("total")) if epoch is not None else None
        elif keras_epoch is not None:
            match = _KERAS.match(rest)
            if match is None or match.group("n") != match.group("total"):
                return None
            epoch, step, total = float(keras_epoch), int(match.group("n")), int(match.group("total"))
        if match is not None:
            rest = rest[match.end() :]
    if step is None and epoch is None:
        return None
    values = {}
    certain = False
    left = []
    position = 0
    for match in _METRIC.finditer(rest):
        name = match.group("name")
        known = is_metric(name, vague=match.group("sep") is not None)
        number = match.group("number")
        if not match.group("sep") and not (known and re.search(r"[.eEn]", number)):
            continue
        certain = certain or known
        left.append(rest[position : match.start()])
        position = match.end()
        if name.lower() not in IGNORED:
            values[re.sub(r"[ -]", "_", name.lower())] = float(number)
    beside = " ".join(left + [rest[position:]])
    if not certain or _CODE.search(beside) or len(_PROSE.findall(_NOISE.sub(" ", beside))) > _PROSE_LIMIT:
        return None
    return Logged(values, step, epoch, "plain", total)


def read_hint(text):
    """A setting that tells where steps are: (name, number) or None."""
    match = _SETTING.search(text)
    if match is not None:
        return match.group("name"), int(match.group("n"))
    match = _STEPS_SET.search(text)
    if match is not None:
        return "max_steps", int(match.group("n").replace(",", ""))
    match = _RESUME.search(text)
    if match is not None:
        return "resumed", int(match.group("n") or match.group("m"))
    return None


class EpochSteps(object):
    """Counts steps over epochs where a line tells only those within its epoch.

    Epochs count from 0 (Lightning) or from 1, by the first that is seen. ``Epoch
    [2/5], Step [150/600]`` may go on counting: it does where the step has grown
    over the change of epoch.
    """

    def __init__(self):
        self._base = None
        self._last = None
        self._goes_on = False

    def step(self, epoch, n, total, may_go_on):
        """The step since the start of the training."""
        if self._base is None:
            self._base = 1 if epoch == 1 else 0
        elif epoch == 0:
            self._base = 0
        if self._last is not None and self._last[0] != epoch:
            self._goes_on = may_go_on and self._last[1] < n and self._last[2] == total
        self._last = (epoch, n, total)
        return n if self._goes_on else int(epoch - self._base) * total + n
