"""What a reader gives, what a writer takes and gives, and how a field fared on the way.

A reader is ``read(text, *, name, values) -> Parsed``: `name` is what errors call
the source, `values` fills variables in. A writer is ``write(spec, program) ->
Written``. `clusterkernel.formats.convert` puts the two together and makes the
report: one row for each `SourceField`, and one for each value that the target
needs and the source lacks.

What a job needs stands in the `JobSpec` (its environment, setup lines, image,
launcher, too); what it runs stands in the `Program`.

Names of fields
---------------
`SourceField.field` and `TargetField.field` name the same thing in the same way,
which is how the two sides meet:

- a field of the spec: ``nodes``, ``gpus_per_node``, ``time`` (`fields.FIELDS`),
- one item of a field that holds several: ``env.NCCL_DEBUG``, ``secrets.HF_TOKEN``,
  ``setup.0``, ``volumes.data``, ``files.train.py``, ``tags.sweep``,
- ``array``, ``stages.preprocess.memory``,
- an option that goes to one platform as it is: ``extra.slurm.mail-type``,
- a part of the program: ``program.config``, ``program.steps.0``,
  ``program.launcher_args.0``, ``program.mounts.0``, ``program.options.slurm.output``.

A `TargetField` without an item (``env``) answers for all items of that field;
the longest name that fits wins. A source field that no target field answers for
is reported as dropped: the target has no place for it.
"""

from __future__ import annotations

import enum
import re
import shlex

import msgspec

from clusterkernel.spec import JobSpec

__all__ = ["Format", "How", "Mount", "Parsed", "Program", "Runs", "SourceField", "Step", "TargetField", "Written"]


class Format(str, enum.Enum):
    """The files that can be read, written, or both."""

    SLURM = "slurm"  # an sbatch script
    MODAL_YAML = "modal-yaml"  # axolotl's cloud YAML with provider: modal
    BASETEN_YAML = "baseten-yaml"  # axolotl's cloud YAML with provider: baseten
    MODAL = "modal"  # a Modal app (.py)
    BASETEN = "baseten"  # a truss config.py
    KUBERNETES = "kubernetes"  # a manifest
    PROFILE = "profile"  # a profile of ours (TOML)


class How(str, enum.Enum):
    """How a field fared. The later, the more a person should look at it (`worst`)."""

    EXACT = "exact"  # it means the same there
    ASSUMED = "assumed"  # nobody said it: a default, or a guess that is named
    CHANGED = "changed"  # it is there, but not the same: rounded, renamed, merged
    DROPPED = "dropped"  # it is not there any more


_ORDER = list(How)


def worst(*ways: How) -> How:
    """The one of several that a person should look at."""
    return max(ways, key=_ORDER.index)


class Runs(str, enum.Enum):
    """Where a step runs."""

    HEAD = "head"  # once, on the first node (rank 0 of a platform that has no head)
    NODES = "nodes"  # once on each node; what a launcher starts is always this
    RANKS = "ranks"  # once for each rank: `JobSpec.ranks_per_node` on each node


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a program. Steps run one after another; the next only if this one did well.

    Attributes
    ----------
    name : str
        ``preprocess``, ``train``, ``run``, ``run2``: unique in its program.
    shell : str
        A command line (or several lines) as bash reads it, with what surrounds it taken off: no srun, no
        container, no launcher with its counts and rendezvous. Where `launched`, it is what stands behind the
        launcher's own options (``train.py --lr 1e-4``, ``-m package.train``); for axolotl, the whole
        ``axolotl train train.yaml``. It may hold variables that are only known inside the job.
    runs : Runs
        Where.
    launched : bool
        `JobSpec.launcher` starts it: see `launch.writer.command_line`.
    launcher_args : tuple of str
        Further options of the launcher, each a word as bash reads it (``--max-restarts=3``); never a count,
        an address, a port or an id.
    """

    name: str
    shell: str
    runs: Runs = Runs.RANKS
    launched: bool = False
    launcher_args: tuple[str, ...] = ()

    @property
    def axolotl(self) -> bool:
        """Whether the command is axolotl's, which takes its launcher as an option."""
        return self.shell.split(None, 1)[:1] == ["axolotl"]

    @property
    def is_lines(self) -> bool:
        """Whether it is lines of a script, which change its shell, and after which it goes on in any case."""
        return re.fullmatch(r"prepare\d*", self.name) is not None and self.runs is Runs.HEAD

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The words, where they mean the same without a shell; else None: run it by ``bash -c``."""
        if any(char in self.shell for char in "$`*?[]{}~|&;<>()!#\n\\"):
            return None
        try:
            words = tuple(shlex.split(self.shell))
        except ValueError:
            return None
        return None if not words or "=" in words[0] else words


class Mount(msgspec.Struct, frozen=True, gc=False):
    """A path of the node that a container sees.

    Attributes
    ----------
    source, target : str
        Path on the node, and in the container.
    options : str
        ``ro`` and the like; empty for none.
    """

    source: str
    target: str
    options: str = ""

    @property
    def text(self) -> str:
        """As pyxis and apptainer write it."""
        return ":".join(filter(None, (self.source, self.target, self.options)))


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes
    ----------
    steps : tuple of Step
        Empty where the source says nothing of what is run (a profile, a cloud YAML without its configuration).
    config : str
        Path of axolotl's configuration, where the program is axolotl's (``train.yaml``), as the steps name it.
    mounts : tuple of Mount
        Paths of the node that a container sees.
    options : dict
        Platform (``slurm``) -> options that say how that platform is to be asked, as the source spelled them:
        where the log goes, indices of an array. Only a writer of the same platform reads them.
    """

    steps: tuple[Step, ...] = ()
    config: str = ""
    mounts: tuple[Mount, ...] = ()
    options: dict[str, tuple[str, ...]] = {}

    @property
    def called(self) -> str:
        """The name of what it is there for: of its last step that does more than to prepare or to tidy up."""
        names = [step.name for step in self.steps if not step.is_lines] or [step.name for step in self.steps]
        return names[-1] if names else ""


# gc=False here and elsewhere: there are hundreds in each report, and no cycle passes through what holds texts only.
class SourceField(msgspec.Struct, frozen=True, gc=False):
    """One field of a source.

    Attributes
    ----------
    key : str
        As the source names it: ``--gpus-per-task``, ``gpu_count``, ``spec.completions``, ``export HF_TOKEN``.
    value : str
        Its value as a person reads it; ``***`` for a secret.
    line : int or None
        Where it stands, from 1; None for what the source does not say (`How.ASSUMED`).
    field : str or None
        What it became (see the module's docstring). None where nothing stands for it: it was dropped, or, with
        another `how` than DROPPED, nothing has to (a later line says it again), for the `reason`.
    how : How
        How it fared on the way into the spec.
    reason : str
        A full sentence, where it is not exact.
    """

    key: str
    value: str
    line: int | None = None
    field: str | None = None
    how: How = How.EXACT
    reason: str = ""


class TargetField(msgspec.Struct, frozen=True, gc=False):
    """One field of the spec or program, on its way into a target.

    Attributes
    ----------
    field : str
        Which one (see the module's docstring).
    key : str
        As the target names it; empty where it was dropped.
    value : str
        Its value there.
    how : How
        `ASSUMED` for what the target needs and neither spec nor program say.
    reason : str
        A full sentence, where it is not exact.
    """

    field: str
    key: str = ""
    value: str = ""
    how: How = How.EXACT
    reason: str = ""


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader found: nothing of the source is missing in `fields`."""

    format: Format
    spec: JobSpec
    program: Program
    fields: tuple[SourceField, ...]


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a writer made; `fields` has an entry for all that the spec and the program say."""

    text: str
    fields: tuple[TargetField, ...]
