"""A Modal app: one Python file that ``modal run`` starts.

The function runs a shell script, as a node of a cluster would. Several nodes
are a clustered function; a first step with needs of its own, which leaves what
it makes on a volume, is a function of its own and runs before.

Source: the modal client 1.6 and Modal's guide. The client checks little, so
`modal.limits` does.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from clusterkernel import fields
from clusterkernel.errors import SpecError
from clusterkernel.formats.container import script as container_script
from clusterkernel.formats.container.image import image_of
from clusterkernel.formats.launch.writer import Meeting
from clusterkernel.formats.limits import raise_first, set_field
from clusterkernel.formats.modal import function as modal_function
from clusterkernel.formats.modal import limits as modal_limits
from clusterkernel.formats.model import Program, Runs, Step, Written
from clusterkernel.formats.python_text import Source, block, call, identifier, literal
from clusterkernel.formats.reporting import Report, by_name
from clusterkernel.spec import JobSpec, Stage, describe

__all__ = ["write"]

WORK: Final = "/root/work"
PORT: Final = "29500"
_TAG: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_NO_PLACE: Final = {
    "partition": "Modal has no queues.",
    "account": "Modal charges the workspace.",
    "qos": "Modal has no quality of service.",
    "priority": "Modal has no priorities.",
    "constraint": "Modal chooses the hosts by what is asked for.",
    "exclusive": "Modal shares hosts; who asks for all 8 GPUs of one has it for himself.",
    "reservation": "Modal has no reservations.",
    "zone": "Modal takes a region; the nodes of a cluster lie together anyway.",
    "dependency": "Modal starts a function without regard to others.",
    "checkpoint_signal": "Modal sends no signal before the time limit: write checkpoints as you go.",
    "shm": "Modal sets /dev/shm itself.",
    "interpreter": "The image brings its own Python.",
    "max_cost": "Modal takes no ceiling for a run: set --time by the price.",
}
# Names that the file uses itself.
_NAMES: Final = frozenset({"app", "call", "cluster", "image", "main", "modal", "os", "script", "subprocess", "task"})
_REST: Final = "Modal has no place for it."
_HEAD: Final = '''\
def _run(script: str, **variables: str) -> None:
    """Run a script in the working folder, and keep what it left on the volumes."""
    try:
        done = subprocess.run(["bash", "-c", script], cwd=WORK, env={**os.environ, **variables}, check=False)
    finally:
        for volume in VOLUMES.values():
            volume.commit()
    if done.returncode:
        raise RuntimeError(f"The script ended with exit code {done.returncode}.")
'''


def write(spec: JobSpec, program: Program) -> Written:
    """The app's source, and how each field fared.

    Raises
    ------
    SpecError
        Modal cannot run it, or the program says not what to run.
    """
    raise_first(modal_limits.limits(spec))
    if not program.steps:
        raise SpecError("The source does not say what is run.", field="program", hint="Add a command: an app runs one.")
    report = Report()
    spec = by_name(spec, report)
    text = _App(spec, program, report).text()
    return Written(text=text, fields=report.rows(spec, program, _REST))


class _Staged(msgspec.Struct, frozen=True):
    """A step that is a function of its own."""

    function: str
    step: Step
    stage: Stage
    shell: str

    @property
    def constant(self) -> str:
        """The name that the file gives to its script."""
        return self.function.upper()


class _App:
    """Puts the file together."""

    def __init__(self, spec: JobSpec, program: Program, report: Report) -> None:
        self.spec, self.program, self.report = spec, program, report
        self.nodes = spec.resources.nodes
        time = spec.schedule.time
        self.about = describe(set_field("time", min(time, modal_limits.LONGEST))(spec) if time else spec)
        self.workdir = self._workdir()
        self.staged = self._staged()
        self.function = self._free_name(program.called, "train", self.staged)

    def text(self) -> str:
        """The source."""
        for field, why in _NO_PLACE.items():
            if fields.get(self.spec, field) != fields.FIELDS[field].default:
                self.report.dropped(field, why)
        self.report.exact("nodes", "clustered size" if self.nodes > 1 else "function", self.nodes)
        name = self._name()
        script = self._script()
        parts = [
            f'"""{name} on Modal: {self.about}.\n\n'
            f"    modal run --detach FILE\n\n"
            "starts it, prints what it prints, and leaves it running where this terminal ends.\n"
            'It needs the client modal 1.6 or later.\n"""',
            "import os\nimport subprocess\n\nimport modal",
            f"app = {self._app(name)}",
            f"WORK = {literal(self.workdir)}",
            self._image(),
            f"VOLUMES = {self._volumes()}",
            f"SECRETS = {self._secrets()}",
            *(f"{staged.constant} = {block(staged.shell)}" for staged in self.staged),
            f"SCRIPT = {block(script)}",
            "\n" + _HEAD.rstrip(),
            *(f"\n{self._stage(staged)}" for staged in self.staged),
            f"\n{self._function()}",
            f"\n{self._entry()}",
        ]
        return "\n\n".join(parts) + "\n"

    # -- names ------------------------------------------------------------------------

    def _name(self) -> str:
        asked = self.spec.name
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", asked or self.function).strip("-")[:64] or "job"
        if asked is None:
            self.report.assumed("name", "App", name, "An app has a name, and none is given.")
        elif modal_limits.is_name(asked):
            self.report.exact("name", "App", asked)
            return asked
        else:
            why = "A name here holds letters, digits, dashes, dots and underscores, 64 at most."
            self.report.changed("name", "App", name, why)
        return name

    def _app(self, name: str) -> str:
        tags = {}
        for tag in self.spec.tags:
            if _TAG.fullmatch(tag):
                tags[tag] = "true"
                self.report.exact(f"tags.{tag}", "App tags", tag)
            else:
                self.report.dropped(f"tags.{tag}", "A tag here holds letters, digits, dashes, dots and underscores.")
        return f"modal.App({literal(name)}" + (f", tags={literal(tags)})" if tags else ")")

    # -- files and image ----------------------------------------------------------------

    def _workdir(self) -> str:
        asked = self.spec.environment.workdir
        if asked is not None and self._on_volume(asked):
            self.report.exact("workdir", "WORK", asked)
            return asked
        if asked is not None:
            why = "Modal sees no files of the cluster: the folder that the app is started from is brought along."
            self.report.changed("workdir", "WORK", WORK, why)
        return WORK

    def _on_volume(self, path: str) -> bool:
        mounts = [volume.mount.rstrip("/") for volume in self.spec.storage.volumes]
        return any(path == mount or path.startswith(f"{mount}/") for mount in mounts)

    def _image(self) -> str:
        image = image_of(self.spec, self.program, self.report, key="Image.from_registry")
        lines = [f"image = modal.Image.from_registry({literal(image)})"]
        if self.program.config and (self.spec.environment.files or self.workdir == WORK):
            self.report.exact("program.config", "Image.add_local_file", self.program.config)
        elif self.program.config:
            self.report.exact("program.config", "WORK", f"{self.workdir}/{self.program.config}")
        given = self.spec.environment.files
        for name in given:
            self.report.exact(f"files.{name}", "Image.add_local_file", name)
        if given:
            wanted = list(dict.fromkeys([*given, *filter(None, [self.program.config])]))
            lines += [
                f"FILES = {literal(wanted)}",
                "if modal.is_local():",
                "    for name in FILES:",
                "        add = image.add_local_dir if os.path.isdir(name) else image.add_local_file",
                f"        image = add(name, os.path.normpath(os.path.join({literal(WORK)}, name)))",
            ]
        elif self.workdir == WORK:
            why = "Modal sees no files of this machine or the cluster: the folder of the app is brought along."
            self.report.assumed("files", "Image.add_local_dir", ".", why)
            ignore = '[".git", ".venv", "**/__pycache__"]'
            lines.append(f'image = image.add_local_dir(".", {literal(WORK)}, ignore={ignore})')
        return "\n".join(lines)

    def _volumes(self) -> str:
        made: dict[str, object] = {}
        for volume in self.spec.storage.volumes:
            name = volume.name
            if modal_limits.is_name(name):
                self.report.exact(f"volumes.{name}", "Volume.from_name", f"{name} at {volume.mount}")
            else:
                name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:64].strip("-") or "volume"
                why = "A volume's name here holds letters, digits, dashes, dots and underscores."
                self.report.changed(f"volumes.{volume.name}", "Volume.from_name", name, why)
            made[volume.place] = Source(f"modal.Volume.from_name({literal(name)}, create_if_missing=True)")
        for number, mount in enumerate(self.program.mounts):
            why = f"{mount.source} is a path of the cluster's nodes: put its files onto a volume."
            self.report.dropped(f"program.mounts.{number}", why)
        return literal(made)

    def _secrets(self) -> str:
        made: list[object] = []
        for name in self.spec.environment.secrets:
            self.report.exact(f"secrets.{name}", "Secret.from_name", name)
            made.append(Source(f"modal.Secret.from_name({literal(name)}, required_keys=[{literal(name)}])"))
        return literal(made)

    # -- the functions ------------------------------------------------------------------

    def _function(self) -> str:
        lines = ["@" + call("app.function", modal_function.arguments(self.spec, self.report))]
        array = self.spec.array is not None
        arguments = "task: int" if array else ""
        variables = "CK_TASK=str(task), " if array else ""
        if self.nodes > 1:
            fabric = self.spec.schedule.network
            lines.append(f"@modal.clustered(size={self.nodes}, rdma=True)")
            if fabric is not None:
                self.report.changed("network", "clustered rdma", "True", "Modal has one fast network: RDMA, or not.")
            else:
                self.report.assumed("network", "clustered rdma", "True", "The GPUs of several nodes talk by RDMA.")
        elif self.spec.schedule.network is not None:
            self.report.dropped("network", "One node needs no network.")
        lines.append(f"def {self.function}({arguments}) -> None:")
        lines.append(f'    """{self.about}."""')
        if self.nodes > 1:
            lines += [
                "    cluster = modal.Cluster.from_context()",
                "    rank, head = cluster.container_rank(), cluster.container_ips()[0]",
            ]
            variables += "CK_JOB=cluster.object_id, CK_RANK=str(rank), CK_HEAD=head, "
        lines.append(f"    _run({', '.join(filter(None, ['SCRIPT', variables.rstrip(', ')]))})")
        return "\n".join(lines)

    def _entry(self) -> str:
        lines = [
            "@app.local_entrypoint()",
            "def main() -> None:",
            f'    """Start it and wait: {self.about}."""',
        ]
        lines += [f"    {staged.function}.remote()" for staged in self.staged]
        if (array := self.spec.array) is not None:
            # a task that fails does not end the others
            lines += [
                f"    ended = {self.function}.map(range({array.size}), return_exceptions=True)",
                "    failed = {task: error for task, error in enumerate(ended) if isinstance(error, BaseException)}",
                "    if failed:",
                '        raise SystemExit(f"Tasks that failed: {failed}")',
            ]
            self.report.exact("array", "map", array.size)
        else:
            # spawn: the call goes on where this process is interrupted
            lines += [f"    call = {self.function}.spawn()", "    print(call.object_id)", "    call.get()"]
        return "\n".join(lines)

    # -- scripts and stages ---------------------------------------------------------------

    def _script(self) -> str:
        place = container_script.Place(
            platform="Modal",
            meeting=Meeting("$CK_RANK", "$CK_HEAD", PORT, "$CK_JOB"),
            task="$CK_TASK",
            job="$CK_JOB" if self.nodes > 1 else "$MODAL_TASK_ID",
        )
        steps = self.program.steps[len(self.staged) :]
        shell = container_script.script(self.spec, self.program, place, self.report, steps=steps)
        bring = self.spec.environment.files and self.workdir != WORK
        return f"cp -r {WORK}/. .\n{shell}" if bring else shell

    @staticmethod
    def _free_name(name: str, empty: str, staged: list[_Staged]) -> str:
        return identifier(name, empty, {*_NAMES, *(item.function for item in staged)})

    def _staged(self) -> list[_Staged]:
        """First steps that leave what they make on a volume: with needs of their own, or once for all nodes."""
        stages = {stage.name: stage for stage in self.spec.stages}
        found: list[_Staged] = []
        for step in self.program.steps[:-1]:
            alone = step.name in stages or self.nodes > 1
            if step.runs is not Runs.HEAD or not alone or not self.spec.storage.volumes:
                break
            place = container_script.Place(platform="Modal", meeting=Meeting("0", "", "", ""))
            single = fields.build({"nodes": 1}, base=self.spec)
            shell = container_script.script(single, self.program, place, self.report, steps=[step])
            name = self._free_name(step.name, "stage", found)
            found.append(_Staged(name, step, stages.get(step.name, Stage(name=step.name)), shell))
        return found

    def _stage(self, staged: _Staged) -> str:
        step, stage = staged.step, staged.stage
        made: dict[str, object] = {"image": Source("image")}
        cpus = stage.cpus_per_task or (self.spec.resources.cpus_per_task or 0) * self.spec.ranks_per_node
        if cpus:
            made["cpu"] = float(cpus)
        if memory := stage.memory or self.spec.resources.memory:
            made["memory"] = memory
        made["timeout"] = min(stage.time or modal_limits.LONGEST, modal_limits.LONGEST)
        made |= {"volumes": Source("VOLUMES"), "secrets": Source("SECRETS")}
        if env := dict(sorted(self.spec.environment.env.items())):
            made["env"] = env
        for name, key in (("cpus_per_task", "cpu"), ("memory", "memory"), ("time", "timeout")):
            if (value := getattr(stage, name)) is None:
                continue
            place = (f"stages.{step.name}.{name}", f"{step.name} {key}")
            if name == "time" and value > modal_limits.LONGEST:
                self.report.changed(*place, modal_limits.LONGEST, "Modal's longest run is 24 hours.")
            else:
                self.report.exact(*place, value)
        head = "@" + call("app.function", made)
        doc = f'    """{step.name}: before the training, without GPUs."""'
        return f"{head}\ndef {staged.function}() -> None:\n{doc}\n    _run({staged.constant})"
