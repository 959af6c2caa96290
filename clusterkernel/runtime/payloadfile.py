"""Small readings of a payload's folder."""

import json
import os
import types

from .pickling import Unpickler


def global_rank(context):
    """This process's number among all ranks of the job."""
    return int(os.environ.get("RANK") or context.rank)


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
        with open(os.path.join(folder, "sources.json"), "rb") as file:
            sources = json.loads(file.read().decode("utf-8"))
    except (IOError, OSError):
        return
    for filename, text in sources.items():
        remember(filename, text)


def remember(filename, text):
    """A source for linecache; without a time it is never looked up on disk."""
    import linecache  # not before: it brings half of `re`, and most short tasks have no source to keep

    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)


def publish(namespace, value):
    """Let a function or class of the notebook be found under its name, as `multiprocessing` looks for it."""
    if issubclass(type(value), (types.FunctionType, type)) and value.__module__ == "__main__":
        if "." not in value.__qualname__:
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
