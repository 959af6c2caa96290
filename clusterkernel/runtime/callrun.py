"""Runs a function, or a function over the items of one array task."""

import os
import struct
import sys
import types

from . import payloadfile
from .pickling import Loader, Unpickler


class Call(object):
    """A function payload, loaded.

    Parameters
    ----------
    context : Context
    """

    outputs = bind = ()
    named = ()

    def __init__(self, context):
        self.keys = {}
        self.namespace = vars(sys.modules["__main__"])
        self.loader = Loader(self.namespace)
        folder = os.path.join(context.job_dir, "payload")
        about = context.payload
        payloadfile.learn_sources(folder)
        with open(os.path.join(folder, "call.pkl"), "rb") as file:
            unpickler = Unpickler(file, self.loader)
            self.function = payloadfile.load_named(unpickler, about["title"])
            payloadfile.publish(self.namespace, self.function)
            if about.get("array"):
                unpickler.load()  # the classes of the items
                self.items = self._items(folder, context.task)
                self.args, self.kwargs = [], {}
            else:
                self.items = None
                self.args = [payloadfile.load_named(unpickler, name) for name in about["positional"]]
                self.kwargs = {name: payloadfile.load_named(unpickler, name) for name in about["keywords"]}
        for name, value in payloadfile.changes(folder, self.loader).items():
            if name in about["positional"] and not about.get("array"):
                self.args[about["positional"].index(name)] = value
            else:
                self.kwargs[name] = value
        self.loader.settle()
        self.unwrap = about.get("chunk", 1) == 1

    def _items(self, folder, task):
        with open(os.path.join(folder, "items.idx"), "rb") as file:
            file.seek(8 * task)
            start, _ = struct.unpack("<2Q", file.read(16))
        with open(os.path.join(folder, "items.pkl"), "rb") as file:
            file.seek(start)
            return payloadfile.load_named(Unpickler(file, self.loader), "item %d" % task)

    def run(self):
        """What the function returns; over items, the list of that, or the one of a single item."""
        if self.items is None:
            return self._call(*self.args)
        values = [self._call(item) for item in self.items]
        return values[0] if self.unwrap else values

    def _call(self, *args):
        value = self.function(*args, **self.kwargs)
        if isinstance(value, types.CoroutineType):
            import asyncio

            return asyncio.run(value)
        return value
