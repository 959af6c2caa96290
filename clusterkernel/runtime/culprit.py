"""Which part of a value will not pickle: the attribute path to it."""

import functools
import time
import types

_PATIENCE = 2.0
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range, types.ModuleType)


def describe(error, pickler, root, name):
    """One clause that names what would not pickle.

    Parameters
    ----------
    error : BaseException
        What the pickler raised.
    pickler : Pickler
        It, with ``last``, the object it had in hand.
    root : object
        What was to be pickled.
    name : str
        What the person calls `root`.

    Returns
    -------
    str
        ``model.lock: _thread.lock``.
    """
    if isinstance(error, RecursionError) or "recursion" in str(error):
        return "%s: nested too deeply" % name
    last = getattr(pickler, "last", None)
    message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if last is None:
        return "%s: %s" % (name, message)
    try:
        path = name if last is root else find(root, last, name)
    except Exception:  # the values' own code may raise anything when it is looked at
        path = None
    kind = type(last)
    what = kind.__qualname__ if kind.__module__ == "builtins" else "%s.%s" % (kind.__module__, kind.__qualname__)
    said = "" if "pickle" in message else " (%s)" % message
    if path is None:
        return "%s: %s inside it%s" % (name, what, said)
    return "%s: %s%s" % (path, what, said)


def find(root, target, name):
    """The path from `root` to `target`, by identity; None where none is found in time."""
    deadline = time.monotonic() + _PATIENCE
    seen = {id(root)}
    queue = [(name, root)]
    keep = [root]  # what is made on the way must not free its id
    for path, value in queue:
        if time.monotonic() > deadline:
            return None
        for step, child in _parts(value):
            if child is target:
                return path + step
            if id(child) in seen or isinstance(child, _PLAIN):
                continue
            seen.add(id(child))
            keep.append(child)
            queue.append((path + step, child))
    return None


def _parts(value):
    """(how a person writes it, part) of what pickle would descend into."""
    if isinstance(value, dict):
        for key, item in list(value.items()):
            yield "[%s]" % _short(key), item
            yield ".keys()", key
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield "[%d]" % index, item
    elif isinstance(value, (set, frozenset)):
        for item in list(value):
            yield "{...}", item
    if isinstance(value, types.FunctionType):
        names = value.__code__.co_freevars
        for cell_name, cell in zip(names, value.__closure__ or ()):
            try:
                yield " -> %s" % cell_name, cell.cell_contents
            except ValueError:
                continue
            yield " -> %s" % cell_name, cell
        for global_name in _global_names(value.__code__):
            if global_name in value.__globals__:
                yield " -> %s" % global_name, value.__globals__[global_name]
        for index, default in enumerate(value.__defaults__ or ()):
            yield ".__defaults__[%d]" % index, default
        for key, default in (value.__kwdefaults__ or {}).items():
            yield ".__kwdefaults__[%s]" % _short(key), default
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset, value.fdel):
            yield "", accessor
    if isinstance(value, type):
        if value.__module__ in ("__main__", "__mp_main__") or "<locals>" in value.__qualname__:
            for key, item in list(vars(value).items()):
                yield "." + key, item
        return
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        for key, item in list(attributes.items()):
            yield ".%s" % key, item
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else tuple(slots):
            try:
                yield ".%s" % slot, object.__getattribute__(value, slot)
            except (AttributeError, TypeError):
                continue
    if type(value).__module__ == "__main__":
        yield ".__class__", type(value)


def _global_names(code):
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names += _global_names(constant)
    return names


def _short(key):
    text = repr(key)
    return text if len(text) <= 40 else text[:37] + "..."
