"""Reading and writing what travels between a notebook and its jobs.

Functions of the notebook find the job's fresh ``__main__`` under their globals.
Classes of the notebook travel by definition once, and by reference (module,
qualified name, fingerprint) after that, so that what comes back is an instance
of the notebook's own class.

The streams name the functions below as globals; `Unpickler` puts a loader's own
in their place, whatever package this module lies in.
"""

import builtins
import sys
import types
import weakref

try:  # `pickle` itself would bring `re`
    from _pickle import Pickler as Pickler
    from _pickle import Unpickler as _Unpickler
    from _pickle import UnpicklingError
except ImportError:  # another Python than CPython
    from pickle import Pickler as Pickler
    from pickle import Unpickler as _Unpickler
    from pickle import UnpicklingError

# This package's name here and in a job, and the other way round.
_PACKAGES = ("clusterkernel.runtime.", "ckruntime.")
MAIN = "__main__"

# Classes that were pickled or unpickled here -> their key, None where no name leads to them. A class that stands here
# is complete: the definition in a stream adds nothing, and would only overwrite it.
_KEYS = weakref.WeakKeyDictionary()  # type: weakref.WeakKeyDictionary


def _only_our_unpickler(*_):
    raise UnpicklingError("this was written by clusterkernel and is read by clusterkernel.payload.results")


def make_class(*args):
    """Stands in a stream for `Loader.make_class`."""
    _only_our_unpickler(*args)


def set_class_state(*args):
    """Stands in a stream for `Loader.set_class_state`."""
    _only_our_unpickler(*args)


def set_function_state(*args):
    """Stands in a stream for `Loader.set_function_state`."""
    _only_our_unpickler(*args)


def find_class(*args):
    """Stands in a stream for `Loader.find_class`."""
    _only_our_unpickler(*args)


def main_globals(*args):
    """Stands in a stream for `Loader.main_globals`."""
    _only_our_unpickler(*args)


def make_error(*args):
    """Stands in a stream for `Loader.make_error`."""
    _only_our_unpickler(*args)


def make_cached(*args):
    """Stands in a stream for `Loader.make_cached`."""
    _only_our_unpickler(*args)


def make_cached_property(*args):
    """Stands in a stream for `Loader.make_cached_property`."""
    _only_our_unpickler(*args)


def make_code(*args):
    """Stands in a stream for `Loader.make_code`."""
    _only_our_unpickler(*args)


class MissingClass(UnpicklingError):
    """A class that came by reference is found nowhere."""


def peek(value, name, default=None):
    """An attribute; `default` also where the value's own code raises, as it may whatever it likes."""
    try:
        return getattr(value, name, default)
    except Exception:
        return default


def is_proxy(value):
    """Whether a value passes for another type than its own, as proxies do; they may raise when they are looked at."""
    return peek(value, "__class__") is not type(value)


def key_of(cls, namespace):
    """(module, qualified name, fingerprint) of a class that `namespace`, a ``__main__``, knows by name; else None."""
    if cls in _KEYS and _KEYS[cls] is not None:
        return _KEYS[cls]
    if peek(cls, "__module__") not in (MAIN, "__mp_main__") or look_up(namespace, cls.__qualname__) is not cls:
        return None
    from . import fingerprint  # not before: most short tasks have no class of the notebook

    return (MAIN, cls.__qualname__, fingerprint.of_class(cls))


def look_up(namespace, qualname):
    """What a dotted name leads to, None where it leads nowhere."""
    first, _, rest = qualname.partition(".")
    found = namespace.get(first)
    for name in rest.split(".") if rest else ():
        found = peek(found, name)
    return found


class Loader(object):
    """What unpickling needs to know, and remembers.

    Parameters
    ----------
    namespace : dict
        The globals of the notebook's functions.
    prefer : dict, optional
        A ``__main__`` whose classes are taken where name and fingerprint agree.
        Without it `namespace` is the ``__main__`` itself, and gets the classes.
    fallback : callable, optional
        Gives, for the key of a class, the class, where it is known nowhere else.
    known : mutable mapping, optional
        Classes by key, to be shared between loaders.
    """

    def __init__(self, namespace, prefer=None, fallback=None, known=None):
        self.namespace = namespace
        self.prefer = prefer
        self.fallback = fallback
        self.known = {} if known is None else known  # key -> class
        self.wanted = []  # (globals of a function, names that it needs and the stream does not hold)
        self._unfinished = {}  # id -> class that has no content yet

    def _find(self, key):
        if self.prefer is not None:
            found = look_up(self.prefer, key[1])
            if isinstance(found, type) and key_of(found, self.prefer) == key:
                return found
        return self.known.get(key)

    def make_class(self, key, make, args):
        """The class of a definition: the one that is known under its key, else a new one."""
        found = self._find(key) if key is not None else None
        if found is not None:
            return found
        made = make(*args)
        if made not in _KEYS:
            _KEYS[made] = key
            self._unfinished[id(made)] = made
        if key is not None:
            self.known[key] = made
            if self.prefer is None and "." not in key[1]:
                self.namespace.setdefault(key[1], made)
        return made

    def set_class_state(self, cls, state):
        """Complete a class that `make_class` made."""
        if self._unfinished.pop(id(cls), None) is not None:
            set_state, inner = state
            set_state(cls, inner)

    def set_function_state(self, function, state):
        """Complete a function, some of whose globals were left out as they are saved under their names."""
        set_state, inner, names = state
        set_state(function, inner)
        self.wanted.append((function.__globals__, names))

    def find_class(self, *key):
        """The class that came by reference."""
        found = self._find(key)
        if found is None and self.fallback is not None:
            found = self.fallback(key)
        if found is None:
            raise MissingClass("class %s is not defined here" % key[1])
        return found

    def main_globals(self):
        """The globals of the notebook's functions."""
        return self.namespace

    def settle(self):
        """Undo what cloudpickle did to the ``__builtins__`` of `namespace`: in a ``__main__`` it is the module."""
        self.namespace["__builtins__"] = builtins

    def make_error(self, cls, *args):
        """An exception as it was, without its own ``__init__``, which may take other arguments than it stored."""
        error = cls.__new__(cls, *args)
        for base in cls.__mro__:
            init = vars(base).get("__init__")
            if init is not None and not isinstance(init, types.FunctionType):
                init(error, *args)
                break
        return error

    def make_cached(self, function, maxsize, typed):
        """A function under `functools.lru_cache`, which starts empty."""
        import functools

        return functools.lru_cache(maxsize, typed)(function)

    def make_cached_property(self, function, name):
        """A `functools.cached_property`, which has a lock on some versions."""
        import functools

        made = functools.cached_property(function)
        if name is not None:
            made.__set_name__(None, name)
        return made

    def make_code(self, make, args, filename):
        """A code object that knows its cell, so that tracebacks and `inspect` find its source."""
        block = make(*args)
        return block.replace(co_filename=filename) if hasattr(block, "replace") else block


class Unpickler(_Unpickler):
    """Reads what our pickler wrote.

    Parameters
    ----------
    file : binary file
    loader : Loader
    """

    def __init__(self, file, loader):
        _Unpickler.__init__(self, file)
        self._loader = loader

    def find_class(self, module, name):
        """The global of a stream."""
        for package in _PACKAGES:
            if module.startswith(package):
                module = __name__.rpartition(".")[0] + "." + module[len(package) :]
        if module == __name__:
            return getattr(self._loader, name)
        if module == MAIN:
            loader = self._loader
            found = look_up(loader.namespace if loader.prefer is None else loader.prefer, name)
            if found is not None:
                return found
        return _Unpickler.find_class(self, module, name)


class TooLarge(Exception):
    """More bytes than allowed."""


class Counter(object):
    """A file that counts, and refuses more than a limit.

    Parameters
    ----------
    file : binary file, optional
        Where the bytes go.
    limit : int, optional
        How many may come.
    """

    def __init__(self, file=None, limit=None):
        self.file = file
        self.limit = limit
        self.size = 0

    def write(self, data):
        """Take bytes."""
        count = memoryview(data).nbytes  # a large array comes as a PickleBuffer, which has no length
        self.size += count
        if self.limit is not None and self.size > self.limit:
            raise TooLarge(self.size)
        if self.file is not None:
            self.file.write(data)
        return count


def main_module():
    """The dictionary of the ``__main__`` that is now."""
    return vars(sys.modules[MAIN])
