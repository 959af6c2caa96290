"""`signal` and JSON without what their modules bring along.

``signal`` imports ``enum``, and ``json`` imports ``re`` as well: 10 ms of each task's
start. Both are thin layers over C modules, which are all that is needed here.
"""

try:
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:  # another Python than CPython
    import signal

__all__ = ["dumps", "loads", "signal"]


def _by_c():
    from _json import encode_basestring, make_encoder, make_scanner

    class Reading(object):
        strict, object_hook, object_pairs_hook, memo = True, None, None, {}
        parse_float, parse_int = float, int
        parse_constant = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__

    def unknown(value):
        raise TypeError("%s is beyond JSON" % type(value).__name__)

    encode = make_encoder(None, unknown, encode_basestring, None, ": ", ", ", False, False, True)
    scan = make_scanner(Reading)  # type: ignore[arg-type]

    def read(text):
        text = text.strip(" \t\r\n")
        if not text:
            raise ValueError("it is empty")
        try:
            value, end = scan(text, 0)
            if end == len(text):
                return value
        except (StopIteration, ValueError, SystemError):  # the last where 3.10 misses `json` to say what is wrong
            pass
        import json

        return json.loads(text)

    return read, lambda value: "".join(encode(value, 0))


def _by_json():
    import json

    return json.loads, json.JSONEncoder(ensure_ascii=False).encode


try:
    _read, _write = _by_c()
except (ImportError, TypeError, AttributeError):
    _read, _write = _by_json()


def dumps(value):
    """The value as JSON in UTF-8.

    Half of a surrogate pair, which other readers of JSON refuse, becomes ``?``.
    """
    return _write(value).encode("utf-8", "replace")


def loads(data):
    """The value of JSON in UTF-8, without halves of surrogate pairs.

    Raises
    ------
    ValueError
        It is no JSON, or nested too deeply.
    """
    try:
        value = _read(data.decode("utf-8"))
        return _read(_write(value).encode("utf-8", "replace").decode("utf-8")) if b"\\u" in data else value
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
