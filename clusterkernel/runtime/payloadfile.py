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
    for filename, (shown, text) in sources.items():
        remember(filename, text, shown)


def remember(filename, text, shown=None):
    """A source for linecache, and how a traceback calls it; without a time it is never looked up on disk."""
    import linecache  # not before: it brings half of `re`, and most short tasks have no source to keep

    linecache.cache[filename] = (len(text), None, lines(text), shown or filename)


def with_cells(text):
    """A traceback's text with the notebook's cells called as IPython calls them."""
    import linecache

    for filename, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and entry[3].startswith("Cell "):
            text = text.replace('File "%s"' % filename, 'File "%s"' % entry[3])
    return text


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
