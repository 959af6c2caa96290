"""Our pickler: cloudpickle, with the notebook's classes and globals treated as `pickling` says.

In a module of its own, since cloudpickle takes 30 ms to import and simple values do without.
"""

import builtins
import enum
import functools
import io
import linecache
import os
import pickle
import sys
import types
import typing

import cloudpickle

from . import pickling
from .pickling import _KEYS, peek

_LIGHT = (type(None), bool, int, float, complex, type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_SHORT = 4096
_CACHED = type(functools.lru_cache(lambda: None))


class _Globals(object):
    """Stands for the notebook's namespace where a function's globals are pickled."""

    def __reduce__(self):
        return pickling.main_globals, ()


def is_of_ipython(value):
    """Whether a value is one that IPython puts into a notebook's names (``open``, ``exit``)."""
    # Its ``open`` has the builtin's module, by `functools.wraps`.
    around = peek(value, "__globals__")
    modules = [around.get("__name__")] if isinstance(around, dict) else []
    modules += [peek(value, "__module__"), peek(type(value), "__module__")]
    return any(isinstance(one, str) and one.partition(".")[0] in ("IPython", "ipykernel") for one in modules)


def _is_stream(obj):
    return obj is sys.stdout or obj is sys.stderr


def _is_cell(filename):
    """Whether a source is known to linecache alone, as IPython's and our cells are."""
    entry = linecache.cache.get(filename)
    return entry is not None and len(entry) > 1 and entry[1] is None


def _is_light(value):
    """Whether a function takes a value along whatever other copies there are."""
    if isinstance(value, (str, bytes)):
        return len(value) <= _SHORT
    return isinstance(value, _LIGHT)


def _slots(cls):
    """The slots that a class itself has, as they are spelled in its instances."""
    kinds = types.MemberDescriptorType, types.GetSetDescriptorType  # of __dict__ and __weakref__
    return tuple(name for name, value in vars(cls).items() if isinstance(value, kinds))


def _makes_slots(cls):
    """Whether a class is made anew from its name, bases and slots: some have another way of their own."""
    make = type(cls).__new__
    plain = make is type.__new__ or isinstance(make, types.FunctionType)
    own = issubclass(cls, enum.Enum) or typing.NamedTuple in vars(cls).get("__orig_bases__", ())
    return plain and not own


class Pickler(cloudpickle.Pickler):
    """Writes values for another process.

    Parameters
    ----------
    file : binary file
    namespace : dict
        The ``__main__`` that classes are looked up in.
    shared : sequence of dict
        Namespaces for which functions get the other side's ``__main__``.
    by_reference : callable, optional
        Whether a class of this key is known to the other side. By itself all go by definition.
    named : collection of str
        Names of `namespace` whose values are saved for themselves: a function
        that uses one of them does not take its value along.
    keys : dict, optional
        Keys of classes, to be shared between picklers.
    """

    def __init__(self, file, namespace, shared=(), by_reference=None, named=(), keys=None):
        cloudpickle.Pickler.__init__(self, file, protocol=pickle.HIGHEST_PROTOCOL)
        self._namespace = namespace
        self._by_reference = by_reference
        self._named = named
        self._keys = {} if keys is None else keys
        marker = _Globals()
        for dictionary in shared:
            self.globals_ref[id(dictionary)] = marker
        self.modules = set()
        self.sources = set()  # files of code, which are cells
        self.classes = {}  # key -> class of the notebook that was met
        self.last = None

    def reducer_override(self, obj):
        """How an object is taken apart, where we or cloudpickle know better than pickle."""
        self.last = obj
        kind = type(obj)
        if issubclass(kind, type):
            reduced = cloudpickle.Pickler.reducer_override(self, obj)
            if isinstance(reduced, tuple) and len(reduced) == 6:
                return self._class(obj, reduced)
            if reduced is NotImplemented:
                self._note_module(obj)
            return reduced
        if kind is types.CodeType:
            make, args = self.dispatch_table[types.CodeType](obj)
            if _is_cell(obj.co_filename):
                self.sources.add(obj.co_filename)
            elif obj.co_filename.startswith("<"):
                return make, args
            return pickling.make_code, (make, args, obj.co_filename)
        if issubclass(kind, io.IOBase) and not issubclass(kind, (io.BytesIO, io.StringIO)) and not _is_stream(obj):
            # cloudpickle would send what the file holds, as a StringIO.
            raise pickle.PicklingError("cannot pickle an open file")
        if obj is os.environ:
            return getattr, (os, "environ")  # the job's own: this one holds secrets
        if issubclass(kind, BaseException):
            return self._error(obj)
        if kind is _CACHED and obj.__module__ == pickling.MAIN:
            about = obj.cache_parameters()
            return pickling.make_cached, (obj.__wrapped__, about["maxsize"], about["typed"])
        if kind is functools.cached_property:
            return pickling.make_cached_property, (obj.func, obj.attrname)
        if issubclass(kind, types.ModuleType):
            self.modules.add(obj.__name__)
            if kind is types.ModuleType or kind.__reduce__ is not object.__reduce__:
                return NotImplemented
            # Packages that import lazily, ours too, put a class of their own there, which cloudpickle does not know.
            return self.dispatch_table[types.ModuleType](obj)
        reduced = cloudpickle.Pickler.reducer_override(self, obj)
        if reduced is NotImplemented and kind in (types.FunctionType, types.BuiltinFunctionType):
            self._note_module(obj)
        if kind is types.FunctionType and isinstance(reduced, tuple) and len(reduced) == 6:
            return self._function(obj, reduced)
        return reduced

    def _function(self, function, reduced):
        attributes, slots = reduced[2]
        needed = slots["__globals__"]
        own = self._named if function.__globals__ is self._namespace else ()
        left = [name for name, value in needed.items() if name in own and not _is_light(value)]
        # A builtin under IPython's hand would make the job import IPython.
        given = [name for name, value in needed.items() if hasattr(builtins, name) and is_of_ipython(value)]
        if not left and not given:
            return reduced
        slots = dict(slots, __globals__={name: needed[name] for name in needed if name not in left + given})
        return reduced[:2] + ((reduced[5], (attributes, slots), left), None, None, pickling.set_function_state)

    def _note_module(self, obj):
        name = getattr(obj, "__module__", None)
        if isinstance(name, str):
            self.modules.add(name)

    def _class(self, cls, reduced):
        if cls not in self._keys:
            self._keys[cls] = pickling.key_of(cls, self._namespace)
        key = self._keys[cls]
        if key is not None:
            self.classes.setdefault(key, cls)
            if self._by_reference is not None and self._by_reference(key):
                return pickling.find_class, key
        _KEYS.setdefault(cls, None)
        args, (members, rest) = reduced[1], reduced[2]
        if not _makes_slots(cls):
            if any(isinstance(value, types.MemberDescriptorType) for value in vars(cls).values()):
                where = "put the class into a file beside the notebook"
                raise pickle.PicklingError("%s makes its slots in a way of its own: %s" % (type(cls).__name__, where))
        elif "__slots__" in members:
            # cloudpickle makes the class without them, and its instances would have a dictionary.
            slots = _slots(cls)
            args = args[:3] + (dict(args[3], __slots__=slots),) + args[4:]
            members = {name: value for name, value in members.items() if name not in slots}
        state = (reduced[5], (members, rest))
        return pickling.make_class, (key, reduced[0], args), state, None, None, pickling.set_class_state

    def _error(self, error):
        kind = type(error)
        own = [name for name in ("__reduce__", "__reduce_ex__") if isinstance(getattr(kind, name), types.FunctionType)]
        if own or not isinstance(kind.__init__, types.FunctionType):
            return NotImplemented
        reduced = error.__reduce_ex__(2)
        if not isinstance(reduced, tuple) or reduced[0] is not kind:
            return NotImplemented
        return (pickling.make_error, (kind,) + reduced[1]) + reduced[2:]
