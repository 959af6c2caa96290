"""What a line of training output says: bars, dictionaries, plain prints and JSON.

Pure functions from text to items. The regular expressions are bounded, so that a
hostile line costs time linear in its length.
"""

import json
import math
import re

__all__ = ["Bar", "Logged", "clean", "epoch_range", "find_bars", "is_result", "read_dict", "read_hint", "read_plain"]

NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|[-+]?(?:nan|NaN|NAN|inf(?:inity)?|Inf(?:inity)?|INF)"
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_=>78])|[\x00-\x08\x0b-\x1f\x7f]")

# A tqdm bar: `desc:  25%|##5   | 5/20 [00:00<00:01, 10.81it/s, loss=0.5]`.
BAR_END = rb"\d{1,15}/\d{1,15} \[[\d:]{1,12}<[^\]\r\n]{0,1000}\]"
_BAR = re.compile(
    r"(?P<percent>\d{1,3})%(?:\|[^|\r\n]{0,1000}\|)?\s{0,3}(?P<n>\d{1,15})/(?P<total>\d{1,15})"
    r" \[(?P<elapsed>[\d:]{1,12})<(?P<rest>[^\]\r\n]{0,1000})\]"
)
_RATE = re.compile(r"\s*(?:\?|[\d.]+[kMG]?)\s?(?:(?P<unit>[A-Za-z]+)/s|s/(?P<per>[A-Za-z]+))\s*$")
_POSTFIX = re.compile(r"(?P<name>[A-Za-z][\w@./-]{0,80})\s{0,3}[=:]\s{0,3}(?P<number>" + NUMBER + r")(?P<percent>%?)\s*(?=,|$)")

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
    "loss losses acc accuracy accuracies ppl perplexity f1 auc auroc miou iou dice bleu rouge rouge1 rouge2 rougel wer cer"
    " mse mae rmse r2 reward rewards entropy kl gnorm bpb bpc nll elbo psnr ssim fid recall precision top1 top5 mfu"
    " error err score map return runtime".split()
)
_NOT_RESULT = frozenset("scale type weight weights coef fn function name factor threshold weighting scaler step".split())
_VAGUE = frozenset("error err score map return runtime precision entropy top1 top5".split())
_WORD = re.compile(r"[A-Za-z]+\d?")
_STEP_KEYS = ("step", "global_step", "current_steps", "iteration", "iter")
_IGNORED = ("rank", "v_num")


class Bar(object):
    """One frame of a progress bar."""

    __slots__ = ("desc", "elapsed", "end", "n", "start", "total", "unit", "values")


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


def _is_rate(name):
    return name.lower() in ("lr", "learning_rate", "learning rate", "learning-rate")


def _whole(text):
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value < 1e15 and value == int(value) else None


# -- bars -----------------------------------------------------------------------


def find_bars(text):
    """All frames of tqdm's bars in a text, in order."""
    bars = []
    position = 0
    for match in _BAR.finditer(text):
        bar = Bar()
        before = text[position : match.start()].rstrip()
        bar.desc = before[:-1].strip() if before.endswith(":") else ""
        bar.n, bar.total = int(match.group("n")), int(match.group("total"))
        bar.elapsed = 0
        for part in match.group("elapsed").split(":"):
            bar.elapsed = bar.elapsed * 60 + int(part or 0)
        rest = match.group("rest").split(",", 2)
        rate = _RATE.match(rest[1]) if len(rest) > 1 else None
        bar.unit = (rate.group("unit") or rate.group("per")) if rate else ""
        after = ",".join(rest[2 if rate else 1 :])
        bar.values = {}
        for pair in _POSTFIX.finditer(after):
            if pair.group("name") not in _IGNORED:
                bar.values[pair.group("name")] = float(pair.group("number"))
        bar.start, bar.end = match.span()
        if bar.desc:
            bar.start -= len(text[position : match.start()])
        bars.append(bar)
        position = match.end()
    return bars


# -- dictionaries ---------------------------------------------------------------


def read_dict(text):
    """The dictionaries of metrics in a text: Python's or JSON's, anywhere in it.

    Numbers may be bare, quoted (transformers 5 prints ``'loss': '5.799'``) or
    wrapped (``np.float64(0.5)``, ``tensor(0.5)``). A brace or first letter that a
    progress bar has overwritten is forgiven.
    """
    whole = _whole_json(text)
    if whole is not None:
        return whole
    found = []
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
    pairs = []
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
            step = _whole(text)
        else:
            values[key] = float(text)
    if not any(is_result(name) for name in values):
        return None
    final = "train_runtime" in values
    train = "loss" in values or "learning_rate" in values
    evaluated = not train and any(name.startswith(("eval_", "eval/", "test_")) for name in values)
    placed = step is not None or epoch is not None
    if not (placed or final or evaluated or ("loss" in values and any(_is_rate(name) for name in values))):
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


# -- plain prints ---------------------------------------------------------------

_LOCATOR = re.compile(
    r"(?<![\w./-])(?P<name>(?:global[ _-]?)?step|iteration|iter|epoch)\s{0,4}[:=#]?\s{0,4}"
    r"(?P<open>[\[(])?\s{0,6}(?P<n>\d{1,12}(?:\.\d{1,12})?)(?:\s{0,4}/\s{0,4}(?P<total>\d{1,12}))?\s{0,2}[\])]?"
    r"(?:\[\s{0,6}(?P<inner>\d{1,12})\s{0,2}/\s{0,2}(?P<inner_total>\d{1,12})\s{0,2}\])?(?![\w.]*\w)",
    re.IGNORECASE,
)
_COUNTED = re.compile(r"^\W{0,4}\[\s{0,6}(?P<n>\d{1,12})\s{0,2}/\s{0,2}(?P<total>\d{1,12})\s{0,2}\]")
_KERAS = re.compile(r"^\s{0,4}(?P<n>\d{1,12})/(?P<total>\d{1,12})\s+(?:\[[=>.\s]{1,200}\]|\W{1,300})\s?(?=\d{1,9}m?s\b)")
_KERAS_EPOCH = re.compile(r"^\s{0,4}Epoch (?P<n>\d{1,9})/\d{1,9}\s*$")
_PREFIX = r"(?:train|training|val|valid|validation|test|eval|evaluation|dev|avg|average|mean|best|running|total|current|final|batch)"
_METRIC = re.compile(
    r"(?<![\w@./-])(?P<name>(?:" + _PREFIX + r"[ _-]){0,2}(?:learning[ _-]rate|grad(?:ient)?[ _-]norm|[A-Za-z][\w@./-]{0,60}))"
    r"(?:\s{0,4}(?P<sep>[:=])\s{0,6}|\s{1,6})(?P<number>" + NUMBER + r")%?(?=\.?(?:[\s,;|)\]}]|$))",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"[=!<>]=|[#`\\{}]|\b(?:self|return|def|import|for|if|in|lambda|assert|raise|print|class)\b|Error\b|Exception\b|File \"|://"
)
_NOISE = re.compile(r"\[[^\[\]]{0,120}\]|\([^()]{0,120}\)|\d{4}-\d\d-\d\d|\b(?:INFO|DEBUG|WARNING|NOTICE|root|it|ms|step|samples|sec)\b")
_PROSE = re.compile(r"[A-Za-z]{2,}")
_PROSE_LIMIT = 3


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
            step = _whole(match.group("n"))
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
        known = is_result(name, vague=match.group("sep") is not None) or _is_rate(name)
        number = match.group("number")
        if not match.group("sep") and not (known and re.search(r"[.eEn]", number)):
            continue
        certain = certain or known
        left.append(rest[position : match.start()])
        position = match.end()
        if name.lower() not in _IGNORED:
            values[re.sub(r"[ -]", "_", name.lower())] = float(number)
    left = " ".join(left + [rest[position:]])
    if not certain or _CODE.search(left) or len(_PROSE.findall(_NOISE.sub(" ", left))) > _PROSE_LIMIT:
        return None
    return Logged(values, step, epoch, "plain", total)


# -- what a trainer says of itself ------------------------------------------------

_SETTING = re.compile(r"\b(?P<name>max_steps|logging_steps|gradient_accumulation_steps)['\"]?\s?[:=]\s?(?P<n>\d{1,12})\b(?!\.)")
_STEPS_SET = re.compile(r"(?:Maximum number of steps set at|Total optimization steps =) (?P<n>\d[\d,]{0,14})")
_RESUME = re.compile(r"(?i)resum(?:e|ing)(?:\b|_).{0,300}?checkpoint-(?P<n>\d{1,12})\b|continuing training from global step (?P<m>\d{1,12})")


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
