"""Small readings of a payload's folder."""

import io
import os
import types

from .context import read_json
from .pickling import Unpickler


class LoadFailed(Exception):
    """A value that was sent cannot be read here.

    Parameters
    ----------
    name : str
    """


def load_named(unpickler, name):
    """The next value of a stream."""
    try:
        return unpickler.load()
    except Exception as error:  # the code of the value's own type may raise anything
        raise LoadFailed(name) from error


def learn_sources(folder):
    """Let linecache know the notebook's cells that functions came from."""
    try:
        sources = read_json(os.path.join(folder, "sources.json"))
    except (IOError, OSError):
        return
    for filename, text in sources.items():
        remember(filename, text)


def remember(filename, text):
    """A source for linecache; without a time it is never looked up on disk."""
    import linecache  # not before: it brings half of `re`, and most short tasks have no source to keep

    linecache.cache[filename] = (len(text), None, lines(text), filename)


def lines(text):
    """The lines of a source, as Python's parser counts them: a form feed or U+2028 ends none."""
    return list(io.StringIO(text, newline=None))


def publish(namespace, value):
    """Let a function or class of the notebook be found under its name, as `multiprocessing` looks for it."""
    named = issubclass(type(value), (types.FunctionType, type)) and value.__module__ == "__main__"
    if named and "." not in value.__qualname__:
        namespace.setdefault(value.__qualname__, value)


def changes(folder, loader):
    """Parameters that a rerun replaced: name -> value. Later files win."""
    found = {}  # type: dict
    number = 1
    while True:
        try:
            file = open(os.path.join(folder, "changes-%d.pkl" % number), "rb")
        except (IOError, OSError):
            return found
        with file:
            found.update(Unpickler(file, loader).load())
        number += 1
