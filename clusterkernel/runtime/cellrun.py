"""Runs a notebook's cell as a program: a fresh ``__main__``, the notebook's line numbers, its last value."""

import ast
import importlib
import os
import sys

from . import payloadfile, shellrun
from .pickling import Loader, Unpickler

_RESULT = "__clusterkernel_result__"
_CO_COROUTINE = 0x80


class Cell(object):
    """A cell payload, loaded.

    Parameters
    ----------
    context : Context
    """

    def __init__(self, context):
        about = context.payload
        folder = os.path.join(context.job_dir, "payload")
        main = sys.modules["__main__"]
        self.namespace = vars(main)
        self.loader = Loader(self.namespace)
        self.bind = about["bind"]
        self.outputs = self.bind + [name for name in about["outputs"] if name not in self.bind]
        # Only one process saves the names.
        self.named = frozenset(self.outputs + about["captured"]) if context.global_rank == 0 else ()
        self.keys = {}
        payloadfile.learn_sources(folder)
        with open(os.path.join(folder, "cell.py"), "rb") as file:
            source = file.read().decode("utf-8")
        first_line, filename = about["first_line"], about["filename"]
        # `inspect` looks for classes of `__main__` in its file, for functions in that of their code.
        for name in (filename, main.__file__):
            payloadfile.remember(name, "\n" * (first_line - 1) + source)
        self._code = _compile(source, filename, first_line)
        for name in about["imports"]:
            importlib.import_module(name)
        with open(os.path.join(folder, "names.pkl"), "rb") as file:
            unpickler = Unpickler(file, self.loader)
            for name in about["captured"]:
                self.namespace[name] = payloadfile.load_named(unpickler, name)
        self.namespace.update(payloadfile.changes(folder, self.loader))
        self.loader.settle()
        self.namespace[shellrun.NAME] = shellrun.run

    def run(self):
        """The value of the cell's last expression."""
        made = eval(self._code, self.namespace)
        if self._code.co_flags & _CO_COROUTINE:
            import asyncio

            asyncio.run(made)
        return self.namespace.pop(_RESULT, None)


def _compile(source, filename, first_line):
    tree = ast.parse(source, filename)
    ast.increment_lineno(tree, first_line - 1)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        target = ast.Name(id=_RESULT, ctx=ast.Store())
        tree.body[-1] = ast.copy_location(ast.Assign(targets=[target], value=last.value), last)
        ast.fix_missing_locations(tree)
    flags = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
    return compile(tree, filename, "exec", flags=flags, dont_inherit=True)
