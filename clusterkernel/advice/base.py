"""What a rule of the advice sees, what it says, and where rules are found."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from clusterkernel.formats.model import Format, Program, SourceField
from clusterkernel.spec import JobSpec

__all__ = ["Advice", "Case", "Facts", "Level", "Rule", "rule", "rules"]


class Level(str, enum.Enum):
    """How much a person should care."""

    ERROR = "error"  # it will not run, or not do what was asked for
    WARNING = "warning"  # it runs, and probably not as meant
    INFO = "info"  # it could be better


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the platform; None for what is not.

    Attributes
    ----------
    version : tuple of int or None
        Slurm's: ``(25, 11)``.
    node_cpus, node_gpus : int or None
        Of the largest node that the job may run on.
    node_memory : int or None
        MiB of that node.
    features : tuple of str
        Features of the nodes, as ``--constraint`` takes them.
    default_time, longest_time : int or None
        Seconds: of a job that asks for no limit, and at most.
    hard_memory : bool or None
        A job that uses more memory than it asked for is ended.
    operator : bool or None
        The person may set priorities.
    array_size : int or None
        MaxArraySize: an index must be below it.
    submitted : int or None
        How many more jobs the person may submit.
    network_option : bool or None
        ``--network`` means something here (HPE Slingshot, Cray).
    shared : tuple of str
        Folders that all nodes see; empty where that is not known.
    """

    version: tuple[int, int] | None = None
    node_cpus: int | None = None
    node_memory: int | None = None
    node_gpus: int | None = None
    features: tuple[str, ...] = ()
    default_time: int | None = None
    longest_time: int | None = None
    hard_memory: bool | None = None
    operator: bool | None = None
    array_size: int | None = None
    submitted: int | None = None
    network_option: bool | None = None
    shared: tuple[str, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at.

    Attributes
    ----------
    spec, program : JobSpec, Program
        What is asked for, and what is run.
    format : Format or None
        Of the source, where there is one.
    fields : tuple of SourceField
        Each field of the source.
    config : mapping or None
        axolotl's configuration, where the program is axolotl's and it could be read.
    schema : mapping or None
        axolotl's own JSON schema, where axolotl is installed.
    facts : Facts
        What is known of the platform.
    """

    spec: JobSpec
    program: Program = Program()
    format: Format | None = None
    fields: tuple[SourceField, ...] = ()
    config: Mapping[str, Any] | None = None
    schema: Mapping[str, Any] | None = None
    facts: Facts = Facts()

    @property
    def nodes(self) -> int:
        """How many nodes."""
        return self.spec.resources.nodes

    @property
    def gpus(self) -> int:
        """GPUs of each node."""
        request = self.spec.resources.gpus_per_node
        return request.count if request else 0

    @property
    def env(self) -> Mapping[str, str]:
        """The environment variables."""
        return self.spec.environment.env

    @property
    def axolotl(self) -> bool:
        """Whether axolotl is run."""
        return self.config is not None or any(step.axolotl for step in self.program.steps)

    def lines(self) -> Iterator[tuple[str, str]]:
        """All text that a shell reads, with the field that it stands in."""
        for number, line in enumerate(self.spec.environment.setup):
            yield f"setup.{number}", line
        for number, step in enumerate(self.program.steps):
            yield f"program.steps.{number}", " ".join([step.shell, *step.launcher_args])

    def with_spec(self, change: Callable[[JobSpec], JobSpec]) -> Case:
        """The case after a change of its spec."""
        return msgspec.structs.replace(self, spec=change(self.spec))


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice.

    Attributes
    ----------
    level : Level
        How much a person should care.
    rule : str
        The rule's id, which stays.
    field : str
        What it is about: a field of the spec, or as `clusterkernel.formats.model` names parts of a program.
    message : str
        What is wrong or could be better, and why.
    fix : str
        The mend, in a sentence.
    change : callable, optional
        Applies the mend.
    """

    level: Level
    rule: str
    field: str
    message: str
    fix: str = ""
    change: Callable[[Case], Case] | None = None

    def applied(self, case: Case) -> Case:
        """The case with the mend applied; unchanged where only a person can do it."""
        return self.change(case) if self.change is not None else case


Check = Callable[[Case], Iterable[Advice]]


class Rule(msgspec.Struct, frozen=True):
    """One rule.

    Attributes
    ----------
    id : str
        ``gpu-ratio``.
    about : str
        What it looks for, in one line.
    check : callable
        Case -> its advice.
    noted : frozenset of str
        Backends whose own notes say the same.
    ids : tuple of str
        The ids of its advice: its own, or those of the several things that it looks for. They stay.
    """

    id: str
    about: str
    check: Check
    noted: frozenset[str] = frozenset()
    ids: tuple[str, ...] = ()


_MODULES: Final = ("resources", "places", "network", "secrets", "slurm", "platforms", "axolotl", "sources")


def rule(id: str, *, noted: Iterable[str] = (), ids: Iterable[str] = ()) -> Callable[[Check], Rule]:
    """Make a rule of a function; the first line of its docstring says what it looks for."""

    def make(check: Check) -> Rule:
        about = (check.__doc__ or "").strip().splitlines()[0]
        return Rule(id, about, check, frozenset(noted), tuple(ids) or (id,))

    return make


def rules() -> tuple[Rule, ...]:
    """All rules, in the order in which they are told."""
    import importlib

    found = []
    for name in _MODULES:
        module = importlib.import_module(f"clusterkernel.advice.{name}")
        found += [item for item in vars(module).values() if isinstance(item, Rule)]
    return tuple(found)
