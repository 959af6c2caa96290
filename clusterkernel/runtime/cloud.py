"""Our pickler: cloudpickle, with the notebook's classes and globals treated as `pickling` says.

In a module of its own, since cloudpickle takes 30 ms to import and simple values do without.
"""

import io
import linecache
import pickle
import sys
import types

import cloudpickle

from . import pickling
from .pickling import _KEYS


class _Globals(object):
    """Stands for the notebook's namespace where a function's globals are pickled."""

    def __reduce__(self):
        return pickling.main_globals, ()


def _is_cell(filename):
    """Whether a source is known to linecache alone, as IPython's and our cells are."""
    entry = linecache.cache.get(filename)
    return entry is not None and len(entry) > 1 and entry[1] is None


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
    """

    def __init__(self, file, namespace, shared=(), by_reference=None):
        cloudpickle.Pickler.__init__(self, file, protocol=pickle.HIGHEST_PROTOCOL)
        self._namespace = namespace
        self._by_reference = by_reference
        self._globals = _Globals()
        self._keep = list(shared)
        for dictionary in shared:
            self.globals_ref[id(dictionary)] = self._globals
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
                self.modules.add(obj.__module__)
            return reduced
        if kind is types.CodeType:
            make, args = self.dispatch_table[types.CodeType](obj)
            if _is_cell(obj.co_filename):
                self.sources.add(obj.co_filename)
                return pickling.make_code, (make, args, obj.co_filename)
            return make, args
        if issubclass(kind, io.IOBase) and not issubclass(kind, (io.BytesIO, io.StringIO)):
            # cloudpickle would send what the file holds, as a StringIO.
            if obj is not sys.stdout and obj is not sys.stderr:
                raise pickle.PicklingError("cannot pickle an open file")
        if issubclass(kind, BaseException):
            return self._error(obj)
        if kind is types.ModuleType:
            self.modules.add(obj.__name__)
            return NotImplemented
        reduced = cloudpickle.Pickler.reducer_override(self, obj)
        if reduced is NotImplemented and kind in (types.FunctionType, types.BuiltinFunctionType):
            self.modules.add(obj.__module__)
        return reduced

    def _class(self, cls, reduced):
        key = pickling.key_of(cls, self._namespace)
        if key is not None:
            self.classes.setdefault(key, cls)
            if self._by_reference is not None and self._by_reference(key):
                return pickling.find_class, key
        _KEYS.setdefault(cls, None)
        state = (reduced[5], reduced[2])
        return pickling.make_class, (key, reduced[0], reduced[1]), state, None, None, pickling.set_class_state

    def _error(self, error):
        kind = type(error)
        own = [name for name in ("__reduce__", "__reduce_ex__") if isinstance(getattr(kind, name), types.FunctionType)]
        if own or not isinstance(kind.__init__, types.FunctionType):
            return NotImplemented
        reduced = error.__reduce_ex__(2)
        if not isinstance(reduced, tuple) or reduced[0] is not kind:
            return NotImplemented
        return (pickling.make_error, (kind,) + reduced[1]) + reduced[2:]
