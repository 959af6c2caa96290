"""What a class or a function is, whatever process it lives in.

Pickled bytes are no key (a set gives other bytes in each process), nor is the
source alone: classes made by a call have none, and a kernel loses it. So the
source's syntax tree is taken where it can be found for certain, else what the
definition holds.
"""

import ast
import hashlib
import linecache
import types

from .pickling import peek

# Made by Python itself, or different after a mere use of the class.
_SKIPPED = frozenset(
    """__dict__ __weakref__ __module__ __doc__ __qualname__ __firstlineno__ __static_attributes__ __annotate__
    __annotate_func__ __annotations_cache__ __abstractmethods__ _abc_impl __orig_bases__ __parameters__
    __classcell__ __hash__ __match_args__ __slots__ __slotnames__ __dataclass_fields__ __dataclass_params__
    _member_map_ _member_names_ _value2member_map_ _unhashable_values_ _hashable_values_ _sort_order_ _missing_
    __new_member__""".split()
)
_NONE = object()
# Some objects have every attribute, this one too, and so no end.
_LAYERS = 100
_SCALARS = (type(None), bool, int, float, complex, str, bytes)


def of_class(cls):
    """The fingerprint of a class: equal for equal definitions under one Python.

    Class attributes that a program counts in or stores to do not change it
    where the source can be found.
    """
    source = _class_source(cls)
    if source is not None:
        return _digest(["source", source])
    parts = ["class", type(cls).__qualname__, [_type_name(base) for base in cls.__bases__]]
    members = getattr(cls, "__members__", None)
    if isinstance(members, types.MappingProxyType):
        parts.append([(name, _value(member.value)) for name, member in members.items()])
    parts.append(sorted((name, str(kind)) for name, kind in _annotations(cls).items()))
    skipped = set(members or ()) | _SKIPPED
    for name in sorted(set(vars(cls)) - skipped):
        parts.append((name, _value(vars(cls)[name])))
    return _digest(parts)


def of_function(function):
    """The fingerprint of a function: its code and defaults."""
    return _digest(_function(function))


def _digest(parts):
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _annotations(cls):
    try:
        return dict(vars(cls).get("__annotations__") or getattr(cls, "__annotations__", None) or {})
    except (NameError, AttributeError):
        return {}  # from 3.14 on they are evaluated when looked at


def _type_name(kind):
    return "%s.%s" % (getattr(kind, "__module__", ""), getattr(kind, "__qualname__", repr(type(kind))))


def _value(value, depth=4):
    """What a value adds to a fingerprint; of what may differ by address, its type."""
    if isinstance(value, (staticmethod, classmethod)):
        return [type(value).__name__, _value(value.__func__, depth)]
    if isinstance(value, property):
        return ["property"] + [_value(part, depth) for part in (value.fget, value.fset, value.fdel)]
    if isinstance(value, type):
        return _type_name(value)
    inner = _unwrapped(value)
    if isinstance(inner, types.FunctionType):
        return _function(value if isinstance(value, types.FunctionType) else inner)
    if isinstance(value, _SCALARS):
        return repr(value)
    if depth and isinstance(value, (tuple, list)):
        return [type(value).__name__] + [_value(item, depth - 1) for item in value]
    return _type_name(type(value))


def _function(function):
    if function.__code__.co_filename == "<string>":
        return ["generated", function.__name__]  # a dataclass's own; its fields are seen in the annotations
    defaults = [_value(value) for value in function.__defaults__ or ()]
    keywords = sorted((name, _value(value)) for name, value in (function.__kwdefaults__ or {}).items())
    return ["function", function.__name__, code(function.__code__), defaults, keywords]


def code(block):
    """What a code object does, without where its source lay."""
    constants = []
    for constant in block.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(code(constant))
        elif isinstance(constant, frozenset):
            constants.append(["frozenset", sorted(repr(item) for item in constant)])
        else:
            constants.append(repr(constant))
    return [
        block.co_name, block.co_code.hex(), constants, block.co_names, block.co_varnames, block.co_freevars,
        block.co_cellvars, block.co_argcount, block.co_kwonlyargcount, block.co_flags,
    ]  # fmt: skip


# -- the source, where it is certain ----------------------------------------------


def _own_functions(cls):
    for value in vars(cls).values():
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        value = _unwrapped(value)
        if isinstance(value, types.FunctionType) and value.__qualname__.startswith(cls.__qualname__ + "."):
            yield value


def _unwrapped(value):
    """The function under decorators that keep it."""
    if not isinstance(value, type):
        value = vars(value).get("func", value) if type(value).__name__ == "cached_property" else value
        for _ in range(_LAYERS):
            inner = peek(value, "__wrapped__", _NONE)
            if inner is _NONE:
                break
            value = inner
    return value


def _class_source(cls):
    """The syntax of the class statement that has one of the class's own functions at its line."""
    for function in _own_functions(cls):
        block = function.__code__
        lines = linecache.cache.get(block.co_filename)
        if not lines or len(lines) < 3:
            continue
        tree = _parse("".join(lines[2]))
        node = _find(tree, cls.__qualname__.split("."), block) if tree else None
        if node is not None:
            return ast.dump(node, annotate_fields=False)
    return None


_PARSED = {}  # type: dict


def _parse(text):
    """The syntax tree of a source; the last few are kept, since a cell may define many classes."""
    if text not in _PARSED:
        while len(_PARSED) >= 8:
            _PARSED.pop(next(iter(_PARSED)))
        try:
            _PARSED[text] = ast.parse(text)
        except (SyntaxError, ValueError):
            _PARSED[text] = None
    return _PARSED[text]


def _find(tree, names, block):
    if "<locals>" in names:
        return None
    nodes = [tree]
    for name in names:
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if isinstance(child, ast.ClassDef) and child.name == name and child is not node
        ]
    for node in nodes:
        for child in ast.walk(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and child.name == block.co_name:
                first = min([child.lineno] + [decorator.lineno for decorator in child.decorator_list])
                if first == block.co_firstlineno:
                    return node
    return None
