"""What a line of training output says: dictionaries of metrics, Python's or JSON's.

Pure functions from text to items, and what they share with `logprints` and
`logbars`. The regular expressions are bounded, so that a hostile line costs time
linear in its length.
"""

import json
import math
import re

__all__ = ["IGNORED", "NUMBER", "Logged", "clean", "epoch_range", "is_metric", "is_result", "read_dict", "whole_number"]

NUMBER = (
    r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?"
    r"|[-+]?(?:nan|NaN|NAN|inf(?:inity)?|Inf(?:inity)?|INF)"
)
# Names with numbers that measure nothing.
IGNORED = ("rank", "v_num")
_ANSI = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_=>78])|[\x00-\x08\x0b-\x1f\x7f]"
)

# One `'name': value` of a dictionary, with what follows it.
_PAIR = re.compile(
    r"""\s{0,8}(?P<q>['"])(?P<key>[^'"\r\n]{1,128})(?P=q)\s{0,4}:\s{0,4}(?:
        (?P<number>"""
    + NUMBER
    + r""")
      | (?P<v>['"])(?P<quoted>\s?(?:"""
    + NUMBER
    + r""")\s?)(?P=v)
      | (?:[A-Za-z_][\w.]{0,30})\(\s?(?P<wrapped>"""
    + NUMBER
    + r""")(?:,[^()\r\n]{0,80})?\)
      | None|True|False|null|true|false|'[^'\r\n]{0,300}'|"[^"\r\n]{0,300}"|\[[^\[\]\r\n]{0,300}\]
    )\s{0,4}(?P<end>[,}]|$)""",
    re.VERBOSE,
)
_LOST = re.compile(r"""([A-Za-z_][\w/.]{0,80})['"]\s?:\s?(['"]?)(""" + NUMBER + r""")\2,\s?$""")

_RESULT = frozenset(
    "loss losses acc accuracy accuracies ppl perplexity f1 auc auroc miou iou dice bleu rouge rouge1 rouge2 rougel"
    " wer cer mse mae rmse r2 reward rewards entropy kl gnorm bpb bpc nll elbo psnr ssim fid recall precision top1"
    " top5 mfu error err score map return runtime".split()
)
_NOT_RESULT = frozenset(
    "scale type weight weights coef fn function name factor threshold weighting scaler step".split()
)
# Measures only where a colon or an equals sign says so.
_VAGUE = frozenset("error err score map return runtime precision entropy top1 top5".split())
_RATES = ("lr", "learning_rate", "learning rate", "learning-rate")
_WORD = re.compile(r"[A-Za-z]+\d?")
_STEP_KEYS = ("step", "global_step", "current_steps", "iteration", "iter")


class Logged(object):
    """Metrics that were printed at once.

    Attributes
    ----------
    values : dict
        Metric name -> float.
    step : int or None
        As printed; a step within the epoch where `total` is set.
    epoch : float or None
    epoch_range : (float, float) or None
        Between which values the true epoch lies, from the digits printed.
    kind : str
        "train", "eval", "final" (the summary at the end) or "plain".
    total : int or None
        Steps in an epoch, where `step` counts within it.
    """

    __slots__ = ("end", "epoch", "epoch_range", "kind", "start", "step", "total", "values")

    def __init__(self, values, step=None, epoch=None, kind="plain", total=None):
        self.values = values
        self.step = step
        self.epoch = epoch
        self.epoch_range = None
        self.kind = kind
        self.total = total
        self.start = self.end = 0


def clean(text):
    """Text without escape sequences and control characters."""
    return _ANSI.sub("", text)


def is_result(name, vague=True):
    """Whether a name is that of a measure: a loss, an accuracy, a norm of gradients."""
    name = name.lower()
    if name.startswith("grad") and "norm" in name:
        return True
    words = _WORD.findall(name)
    allowed = _RESULT if vague else _RESULT - _VAGUE
    return any(word in allowed for word in words) and not any(word in _NOT_RESULT for word in words[1:])


def is_metric(name, vague=True):
    """Whether a name is that of a measure or of a learning rate."""
    return name.lower() in _RATES or is_result(name, vague)


def whole_number(text):
    """The whole number in a text, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value < 1e15 and value == int(value) else None


def read_dict(text):
    """The dictionaries of metrics in a text: Python's or JSON's, anywhere in it.

    Numbers may be bare, quoted (transformers 5 prints ``'loss': '5.799'``) or
    wrapped (``np.float64(0.5)``, ``tensor(0.5)``). A brace or first letter that a
    progress bar has overwritten is forgiven.
    """
    whole = _whole_json(text)
    if whole is not None:
        return whole
    found: list = []
    position = 0
    while True:
        match = _PAIR.search(text, position)
        if match is None:
            return found
        start = match.start()
        pairs = []
        lost = _LOST.search(text, max(0, start - 128), start + len(match.group(0)) - len(match.group(0).lstrip()))
        if lost is not None:
            name = "loss" if lost.group(1) == "oss" else lost.group(1)
            pairs.append((name, lost.group(3), bool(lost.group(2))))
            start = lost.start()
        while match is not None:
            number = match.group("number") or match.group("wrapped")
            quoted = match.group("quoted")
            if number or quoted:
                pairs.append((match.group("key"), (number or quoted).strip(), bool(quoted)))
            position = match.end()
            if match.group("end") != ",":
                break
            match = _PAIR.match(text, position)
        if match is not None and match.group("end") == "}":
            logged = _from_pairs(pairs)
            if logged is not None:
                logged.start, logged.end = start, position
                found.append(logged)


def _whole_json(text):
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}") and stripped.count("{") > 1):
        return None
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    pairs: list = []
    _flatten(value, "", pairs, 0)
    logged = _from_pairs(pairs)
    if logged is None:
        return []
    logged.end = len(text)
    return [logged]


def _flatten(value, prefix, pairs, depth):
    for key, item in value.items():
        if isinstance(item, dict):
            if depth < 4:
                _flatten(item, prefix + key + "/", pairs, depth + 1)
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            pairs.append((prefix + key, repr(item), False))


def _from_pairs(pairs):
    """What the pairs of a dictionary log, or None where they are no metrics."""
    values = {}
    step = epoch = bounds = None
    for key, text, quoted in pairs:
        if key == "epoch":
            epoch = float(text)
            bounds = epoch_range(text, quoted)
        elif key in _STEP_KEYS:
            step = whole_number(text)
        else:
            values[key] = float(text)
    if not any(is_result(name) for name in values):
        return None
    final = "train_runtime" in values
    train = "loss" in values or "learning_rate" in values
    evaluated = not train and any(name.startswith(("eval_", "eval/", "test_")) for name in values)
    placed = step is not None or epoch is not None
    if not (placed or final or evaluated or ("loss" in values and any(name in _RATES for name in values))):
        return None
    logged = Logged(values, step, epoch, "final" if final else "eval" if evaluated else "train")
    logged.epoch_range = bounds
    return logged


def epoch_range(text, quoted):
    """Between which values an epoch lies that was printed so.

    transformers 5 prints four significant digits in quotes, 4.x two decimals
    and later 4.x the whole float.
    """
    value = abs(float(text))
    if not value < 1e7:
        return None
    if value == 0:
        return (0.0, 0.0) if "." not in text else (0.0, 0.005)
    digits = re.sub(r"[eE].*", "", text)
    if quoted:
        significant = max(4, len(digits.replace(".", "").lstrip("-+0")))
        half = 0.5 * 10.0 ** (math.floor(math.log10(value)) - significant + 1)
    else:
        decimals = len(digits.partition(".")[2])
        if digits != text or decimals >= 8:
            half = value * 1e-9
        else:
            half = 0.5 * 10.0 ** -(max(decimals, 2))
    return (max(0.0, value - half), value + half)
