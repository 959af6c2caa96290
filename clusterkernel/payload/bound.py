"""The names that a cell has surely bound at a place, and those that it reads before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from clusterkernel.payload.scopes import Kind, mangle

__all__ = ["Bound", "Read", "Scope", "Sure"]

# The names surely bound (or deleted) at a place; None where nothing comes by.
# It only grows along a way, so that what holds at the start of a block holds
# wherever an exception leaves it.
Sure: TypeAlias = frozenset[str] | None


class Read(msgspec.Struct, frozen=True):
    """A function reads a name of the module."""

    name: str
    line: int
    optional: bool


class Scope(msgspec.Struct):
    """A scope inside the module whose code runs at once."""

    kind: str  # "class", "comprehension" or "types" (of type parameters)
    prefix: str  # of a class: before the names that it binds, in the state
    bound: frozenset[str]
    declared: frozenset[str] = frozenset()  # ``global``
    deleted: frozenset[str] = frozenset()


class Bound:
    """What is known of names at one place of a cell.

    Attributes
    ----------
    reads : dict of str to int
        Names whose outside value may be seen, with the first line.
    assigns : dict of str to (Kind, int)
        Names that may be bound, with the first line.
    deletes, stars : list of str
        Names deleted; modules imported with ``*``.
    sure : Sure
        The names surely bound here.
    scopes : list of Scope
        Those around this place.
    private : str
        The class around this place, which spells its private names in another way.
    optional : int
        Above 0 where what is read can be done without.
    """

    def __init__(self) -> None:
        self.reads: dict[str, int] = {}
        self.assigns: dict[str, tuple[Kind, int]] = {}
        self.deletes: list[str] = []
        self.stars: list[str] = []
        self.sure: Sure = frozenset()
        self.scopes: list[Scope] = []
        self.private = ""
        self.optional = 0
        # Functions that run only once their name is used: key in the state -> what they read.
        self.waiting: dict[str, list[Read]] = {}
        self.waited = 0
        self._seen: dict[str, list[frozenset[str]]] = {}
        self._certain: set[str] = set()
        self._later: set[str] = set()  # read by a function that may run after the cell bound them

    def certain(self) -> frozenset[str]:
        """Those reads that nothing in the cell can serve."""
        later = frozenset[str]() if self.stars else self._later - self.assigns.keys()
        return frozenset(self._certain | later)

    def load(self, name: str, line: int) -> None:
        """A name is read here."""
        name = mangle(name, self.private)
        hidden = False
        for scope in reversed(self.scopes):
            if scope.kind != "class":
                if name in scope.bound:
                    return
                hidden = hidden or scope.kind == "comprehension"
            elif not hidden:
                if name in scope.bound:
                    key = scope.prefix + name
                    self.awake(key)
                    if self.sure is None or key in self.sure:
                        return
                hidden = True  # a class sees no other class around it
        self.read(Read(name, line, bool(self.optional)), later=False)

    def read(self, read: Read, *, later: bool) -> None:
        """A name of the module is read, by a function (`later`) or by the place itself."""
        name = read.name
        self.awake(name)
        if self.sure is None or name in self.sure:
            return
        self.reads[name] = min(read.line, self.reads.get(name, read.line))
        if read.optional or self.stars:
            return
        if later:
            self._later.add(name)
        elif name not in self.assigns:
            self._certain.add(name)

    def awake(self, key: str) -> None:
        """The name is used: the functions behind it may run from here on."""
        if key not in self.waiting or self.sure is None:
            return
        seen = self._seen.setdefault(key, [])
        if any(before <= self.sure for before in seen):
            return  # it could run with less: nothing new to learn
        seen.append(self.sure)
        for read in self.waiting[key]:
            self.read(read, later=True)

    def bind(self, name: str, kind: Kind, line: int) -> str:
        """Bind a name here; its key in the state."""
        name = mangle(name, self.private)
        for scope in reversed(self.scopes):
            if scope.kind == "class":
                if name in scope.declared:
                    break
                if name not in scope.deleted:
                    self.settle(scope.prefix + name)
                return scope.prefix + name
        self.note(name, kind, line)
        self.settle(name)
        return name

    def note(self, name: str, kind: Kind, line: int) -> None:
        """A name of the module may be bound."""
        before = self.assigns.get(name)
        if before is None:
            self.assigns[name] = (kind, line)
        elif before[0] is not kind:
            self.assigns[name] = (Kind.VALUE, before[1])

    def settle(self, key: str) -> None:
        """From here on the name's outside value cannot be seen."""
        if self.sure is not None:
            self.sure |= {key}

    def wait(self, key: str, reads: Iterable[Read]) -> None:
        """A function that reads these runs once the name is used, or never."""
        self.waiting.setdefault(key, []).extend(reads)
        self.waited += 1
        self._seen.clear()  # another function may call this one

    def is_local(self, name: str) -> bool:
        """Whether a comprehension around the place has it as its own."""
        return any(scope.kind == "comprehension" and name in scope.bound for scope in self.scopes)

    def delete(self, name: str) -> None:
        """A name is deleted here."""
        name = mangle(name, self.private)
        for scope in reversed(self.scopes):
            if scope.kind == "class" and name not in scope.declared:
                return  # the module's name shows again: see `deleted`
        if name not in self.deletes:
            self.deletes.append(name)
        self.settle(name)  # gone is gone: its outside value cannot be seen any more
