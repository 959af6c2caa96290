"""What each node brings, from sbatch's options and what the launch lines say of counts."""

from __future__ import annotations

from typing import Any

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.model import How, SourceField
from clusterkernel.formats.sbatch import values as reads
from clusterkernel.formats.sbatch.checks import where
from clusterkernel.formats.sbatch.grammar import Given, Header, Origin
from clusterkernel.formats.sbatch.options import gres_gpus
from clusterkernel.spec import Launcher
from clusterkernel.units import GpuRequest

__all__ = ["Counting", "Counts"]


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What launch lines say of counts.

    Attributes
    ----------
    launcher : Launcher
        What starts the ranks of a node.
    ranks : int or None
        Ranks of a node under that launcher, where it says so.
    srun : dict
        Options of srun that say what the job's own leave open, by name.
    """

    launcher: Launcher = Launcher.NONE
    ranks: int | None = None
    srun: dict[str, str] = {}


class Counting:
    """Goes through the options that say how much, and keeps what they came to."""

    def __init__(self, header: Header, counts: Counts, name: str) -> None:
        self._given = header.given
        self._last = header.last
        self._counts = counts
        self._name = name
        self._ranks_of_node = 1
        self._values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._rows: dict[Given, SourceField] = {}
        self._more: list[SourceField] = []
        self._extra: list[str] = []

    def _shape(self) -> int:
        """Sets all that each node brings; gives Slurm's tasks on it."""
        nodes, tasks = self._tasks()
        gpus = self._gpus(nodes, tasks)
        tasks = self._ranks(tasks, gpus)
        self._memory(self._cpus(tasks, gpus), gpus)
        return tasks

    # -- rows -------------------------------------------------------------------------

    def _row(
        self, option: Given, field: str | None, how: How = How.EXACT, reason: str = "", *, value: str | None = None
    ) -> None:
        shown = option.value if value is None else value
        if option.filled and how is How.EXACT and field is not None:
            how = How.CHANGED
            reason = reason or f"{_shown(option.filled)} stands there, and sbatch fills no variables in."
        self._rows[option] = SourceField(
            option.key, secrets.shown(shown or ""), option.line, field, how, reason or _said_by(option)
        )

    def _set(self, field: str, value: Any, option: Given | None = None) -> None:
        self._values[field] = value
        self._origins[field] = where(option, self._name) if option else f"{self._name}: {field}"

    def _assume(self, key: str, value: object, field: str, reason: str) -> None:
        self._more.append(SourceField(key, str(value), None, field, How.ASSUMED, reason))

    def _overridden(self) -> None:
        for option in self._given:
            if not option.name:
                self._row(option, None, How.DROPPED, "sbatch reads it and takes no notice of it.")
            elif (counts := self._last[option.name]) is not option:
                place = f"line {counts.line}" if counts.line else counts.key
                self._row(option, None, How.EXACT, f"{place[:1].upper()}{place[1:]} says it again, and counts.")

    def _number(self, name: str) -> int | None:
        option = self._last.get(name)
        text = option.value if option else self._counts.srun.get(name)
        return int(text) if text and text.strip("+").isdecimal() else None

    # -- counts -----------------------------------------------------------------------

    def _tasks(self) -> tuple[int, int]:
        """Nodes, and Slurm's tasks on each."""
        each, total = self._number("ntasks-per-node"), self._number("ntasks")
        asked = self._last.get("nodes")
        nodes = self._nodes(each, total)
        if total is not None and total < nodes:
            nodes = total  # sbatch says so, and goes on
            if asked:
                self._row(asked, "nodes", How.CHANGED, f"{total} tasks need no more than {total} nodes.")
        self._set("nodes", nodes, asked)
        if (given := self._last.get("ntasks")) and total is not None:
            tasks = -(-total // nodes)
            if total % nodes:
                why = f"{total} tasks do not divide by {nodes} nodes: {tasks} on each."
                self._row(given, "tasks_per_node", How.CHANGED, why)
            elif nodes > 1:
                why = f"{total} tasks on {nodes} nodes are {tasks} on each."
                self._row(given, "tasks_per_node", How.EXACT if each == tasks else How.CHANGED, why)
            else:
                self._row(given, "tasks_per_node")
            if each_given := self._last.get("ntasks-per-node"):
                self._row(each_given, "tasks_per_node")
            return nodes, tasks
        if each_given := self._last.get("ntasks-per-node"):
            self._row(each_given, "tasks_per_node")
        if each is None and total is not None:
            each = -(-total // nodes)  # srun's
        return nodes, each or 1

    def _nodes(self, each: int | None, total: int | None) -> int:
        if option := self._last.get("nodes"):
            low, high = reads.nodes(option.value or "")
            if low == 0:
                raise FormatError(f"{where(option, self._name)} = {option.value!r} asks for no node.", hint="Write 1.")
            how, why = How.EXACT, ""
            if high > low:
                how, why = How.CHANGED, f"Slurm may give up to {high} nodes; {low} are asked for."
            self._row(option, "nodes", how, why)
            return low
        if (listed := self._last.get("nodelist")) and (count := reads.hosts(listed.value or "")):
            if count > 1:
                self._assume("--nodes", count, "nodes", "So many nodes are named by --nodelist.")
            return count
        if text := self._counts.srun.get("nodes"):
            try:
                low, _ = reads.nodes(text)
            except ValueError:
                low = 1
            if low > 1:
                self._assume("srun --nodes", low, "nodes", "The job asks for no number of nodes, but srun does.")
            return max(low, 1)
        if total is not None and each:
            count = -(-total // each)
            self._assume("--nodes", count, "nodes", f"{total} tasks, {each} on each node, need so many.")
            return count
        if total is not None and total > 1:
            self._assume("--nodes", 1, "nodes", f"Slurm would lay {total} tasks on as many nodes as it likes.")
        return 1

    def _gpus(self, nodes: int, tasks: int) -> GpuRequest | None:
        """GPUs of a node."""
        found: list[tuple[Given, GpuRequest]] = []
        rows: list[tuple[Given, How, str]] = []

        def take(option: Given, asked: GpuRequest | None, times: int = 1, over: int = 1, why: str = "") -> None:
            if asked is None:
                self._row(option, "gpus_per_node", reason="No GPUs.")
                return
            each = -(-asked.count * times // over)
            how = How.CHANGED if why else How.EXACT
            if asked.count * times % over:
                why = f"{asked.count} GPUs do not divide by {over} nodes: {each} on each."
            found.append((option, GpuRequest(each, asked.type)))
            rows.append((option, how, why))

        if option := self._last.get("gpus-per-node"):
            take(option, reads.gpus(option.value or ""))
        if option := self._last.get("gpus"):
            why = f"The job's total, over {nodes} nodes." if nodes > 1 else ""
            take(option, reads.gpus(option.value or ""), over=nodes, why=why)
        if option := self._last.get("gpus-per-task"):
            why = f"{tasks} tasks on each node." if tasks > 1 else ""
            take(option, reads.gpus(option.value or ""), times=tasks, why=why)
        if option := self._last.get("gpus-per-socket"):
            sockets = self._number("sockets-per-node") or 1
            take(option, reads.gpus(option.value or ""), times=sockets, why=f"{sockets} sockets of each node.")
        if (option := self._last.get("gres")) and option.value:
            asked, others = gres_gpus(option.value.replace("gres:", ""))
            if asked:
                take(option, GpuRequest(asked.count, asked.type.lower() if asked.type else None))
            if others and others != ["none"]:
                self._extra.append(f"--gres={','.join(others)}")
                if not asked:
                    self._row(option, "extra.slurm.gres")
                else:
                    key = SourceField(option.key, ",".join(others), option.line, "extra.slurm.gres")
                    self._more.append(key)
            elif not asked:
                self._row(option, None, How.EXACT, "It asks for nothing.")
        if not found:
            return self._gpus_of_srun(tasks)
        option, most = max(found, key=lambda pair: (pair[1].count, pair[1].type is not None))
        kind = next((asked.type for _, asked in found if asked.type), None)
        for said, how, why in rows:
            asked = next(request for each, request in found if each is said)
            if asked.count < most.count:
                how, why = How.CHANGED, f"{option.key} asks for more: {most.count}."
            self._row(said, "gpus_per_node", how, why)
        request = GpuRequest(most.count, kind)
        self._set("gpus_per_node", request, option)
        return request

    def _gpus_of_srun(self, tasks: int) -> GpuRequest | None:
        """What srun asks for, where the job itself asks for nothing: whole nodes have theirs anyway."""
        if (per := self._number("ntasks-per-gpu")) and (option := self._last.get("ntasks-per-gpu")):
            request = GpuRequest(max(1, tasks // per))
            self._row(option, "gpus_per_node", How.CHANGED, f"{tasks} tasks, {per} on each GPU.")
            self._set("gpus_per_node", request, option)
            return request
        for name, times in (("gpus-per-node", 1), ("gpus-per-task", tasks)):
            if text := self._counts.srun.get(name):
                try:
                    asked = reads.gpus(text)
                except ValueError:
                    continue
                if asked:
                    request = GpuRequest(asked.count * times, asked.type)
                    self._assume(f"srun --{name}", text, "gpus_per_node", "The job itself asks for no GPUs.")
                    self._set("gpus_per_node", request)
                    return request
        return None

    def _ranks(self, tasks: int, gpus: GpuRequest | None) -> int:
        """Sets the ranks of a node; gives Slurm's tasks on it."""
        per = self._last.get("ntasks-per-gpu")
        if per and per not in self._rows:
            each = int(per.value or 1)
            if gpus and "ntasks" not in self._last:
                tasks = gpus.count * each
            self._row(per, "tasks_per_node", How.CHANGED if each > 1 else How.EXACT, f"{tasks} tasks on each node.")
        if self._counts.launcher is Launcher.NONE:
            ranks = tasks
        else:
            ranks = self._counts.ranks or (gpus.count if gpus else 1)
            if self._counts.ranks and gpus is None and self._counts.ranks > 1:
                why = "The launcher starts so many ranks, and the job asks for no GPUs."
                self._assume("ranks", ranks, "tasks_per_node", why)
            for name in ("ntasks", "ntasks-per-node"):
                if option := self._last.get(name):
                    how = How.CHANGED if tasks > 1 else How.EXACT
                    why = f"One {self._counts.launcher.value} on each node starts its {ranks} ranks."
                    self._row(option, "launcher", how, why)
            tasks = 1
        if ranks != (gpus.count if gpus else 1):
            self._set("tasks_per_node", ranks, self._last.get("ntasks-per-node") or self._last.get("ntasks"))
        self._ranks_of_node = ranks
        return tasks

    def _cpus(self, tasks: int, gpus: GpuRequest | None) -> int | None:
        """Sets the cores of a rank; gives those of a node."""
        for name, times in (("cpus-per-task", tasks), ("cpus-per-gpu", gpus.count if gpus else 1), ("mincpus", 1)):
            option = self._last.get(name)
            text = option.value if option else self._counts.srun.get(name)
            if not text or not text.isdecimal():
                continue
            total, ranks = int(text) * times, self._ranks_of_node
            each = max(1, total // ranks)
            if option:
                how, why = How.EXACT, ""
                if total != each * ranks:
                    how, why = How.CHANGED, f"{total} cores of a node for {ranks} ranks: {each} each."
                elif int(text) != each:
                    how, why = How.CHANGED, f"{total} cores of a node are {each} for each of its {ranks} ranks."
                self._row(option, "cpus_per_task", how, why)
            else:
                self._assume(f"srun --{name}", text, "cpus_per_task", "The job itself asks for no cores.")
            self._set("cpus_per_task", each, option)
            return total
        return None

    def _memory(self, cpus: int | None, gpus: GpuRequest | None) -> None:
        for name, times in (("mem", 1), ("mem-per-cpu", cpus or 1), ("mem-per-gpu", gpus.count if gpus else 1)):
            if (option := self._last.get(name)) is None or option.value is None:
                continue
            size = reads.memory(option.value)
            if size == 0:
                if "exclusive" in self._last:
                    self._row(option, "exclusive", reason="All memory of whole nodes.")
                else:
                    self._extra.append("--mem=0")
                    self._row(option, "extra.slurm.mem", reason="All memory of its nodes.")
                return
            self._set("memory", f"{size * times}M", option)
            what = "cores" if name == "mem-per-cpu" else "GPUs"
            if times > 1:
                self._row(option, "memory", How.CHANGED, f"{times} {what} of each node.")
            else:
                self._row(option, "memory")


def _shown(names: tuple[str, ...]) -> str:
    return " and ".join(f"${name}" for name in dict.fromkeys(names))


def _said_by(option: Given) -> str:
    if option.origin is Origin.ENVIRONMENT:
        return "The environment counts over the script."
    return "The command line counts over the script." if option.origin is Origin.COMMAND else ""
