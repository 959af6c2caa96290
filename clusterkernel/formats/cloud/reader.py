"""Reads axolotl's cloud YAML: ``modal.yaml`` and ``baseten.yaml``.

The file says where ``axolotl train train.yaml --cloud FILE`` runs, and not what:
the configuration is named in a comment (as our own writer does), by
``values={"CONFIG": "train.yaml"}``, or assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from clusterkernel import fields
from clusterkernel.errors import FormatError, nearest
from clusterkernel.formats import secrets
from clusterkernel.formats.cloud import keys
from clusterkernel.formats.cloud.document import Document, short
from clusterkernel.formats.model import Format, How, Parsed, Program, Runs, SourceField, Step
from clusterkernel.payload import yamltext
from clusterkernel.spec import JobSpec, Launcher, Stage, Volume
from clusterkernel.units import GpuRequest

__all__ = ["read"]

_COMMAND: Final = re.compile(r"^#\s*axolotl (preprocess|train) (\S+)((?: \S+)*)\s*$", re.MULTILINE)
_LAUNCHERS: Final = {"torchrun": Launcher.TORCHRUN, "accelerate": Launcher.ACCELERATE}
_INSTALLS: Final = re.compile(r"\s*RUN\s+(.*\S)\s*", re.DOTALL | re.IGNORECASE)


def read(text: str, *, name: str, values: Mapping[str, str] | None = None) -> Parsed:
    """Read a cloud YAML.

    Parameters
    ----------
    text : str
        The YAML.
    name : str
        What errors call it.
    values : mapping, optional
        ``CONFIG``, the configuration's path; and variables that ``env`` takes from the shell.

    Raises
    ------
    FormatError
        A value is of the wrong type, or the provider is unknown.
    PayloadError
        It is no YAML, or too large.
    """
    document, twice = yamltext.load(text, name)
    if not isinstance(document, dict):
        kind = "empty" if document is None else f"a {type(document).__name__}"
        raise FormatError(f"{name} is no cloud file of axolotl's: it is {kind}.", hint="It has keys such as gpu: h100.")
    reader = _Reader(text, name, document, values or {})
    return reader.read(twice)


class _Reader(Document):
    def read(self, twice: list[str]) -> Parsed:
        self._read_provider()
        for sentence in twice:
            self._rows.append(SourceField(sentence.split()[0], "", None, None, How.EXACT, sentence))
        known = keys.MODAL if self._provider == "modal" else keys.BASETEN
        for key in self._document:
            if key == "provider":
                continue
            if isinstance(key, str) and key in known:
                getattr(self, f"_read_{key}")()
            else:
                self._unknown(key)
        stage = self._stage()
        gpus = self._gpus()
        self._defaults(gpus)
        if self._secrets:
            self._found["secrets"] = self._secrets
        program = self._program(stage is not None)
        self._found["backend"] = self._provider
        origins = {field: f"{self._name}: {field}" for field in self._found}
        spec = fields.build(self._found, JobSpec(), origins=origins)
        if stage:
            spec = msgspec.structs.replace(spec, stages=(stage,))
        form = Format.MODAL_YAML if self._provider == "modal" else Format.BASETEN_YAML
        return Parsed(format=form, spec=spec, program=program, fields=tuple(self._rows))

    # -- keys -------------------------------------------------------------------------

    def _read_provider(self) -> None:
        said = self._document.get("provider")
        if said is None:
            if "provider" not in self._document:
                self._assume("provider", "modal", "backend", "axolotl takes Modal where no provider is named.")
            return
        if said not in ("modal", "baseten"):
            raise self._wrong("provider", "no provider that axolotl knows", "Write provider: modal, or baseten.")
        self._provider = said
        self._row("provider", said, None, why="The format says it.")

    def _unknown(self, key: Any) -> None:
        text = short(key)
        value = self._document[key]
        if text in keys.IGNORED:
            if text == "project_name" and isinstance(value, str) and value.strip() and value.isprintable():
                self._found["name"] = value.strip()
                why = f"{keys.IGNORED[text]} Here it names the job."
                self._row(text, value, "name", How.CHANGED, why)
                return
            self._row(text, value, None, How.DROPPED, keys.IGNORED[text])
            return
        hint = keys.UNKNOWN.get(text) or nearest(text, keys.KNOWN)
        hint = hint if hint.startswith("Did") or text in keys.UNKNOWN else ""
        shown = secrets.HIDDEN if secrets.is_name(text) else value
        self._row(text, shown, None, How.DROPPED, f"axolotl does not know {text}, and ignores it. {hint}".strip())

    def _read_project_name(self) -> None:
        self._found["name"] = self._text("project_name")
        self._row("project_name", self._found["name"], "name")

    def _read_volumes(self) -> None:
        volumes = []
        for number, item in enumerate(self._list("volumes")):
            key = f"volumes[{number}]"
            named = isinstance(item, dict) and all(isinstance(item.get(part), str) for part in ("name", "mount"))
            if not named or not item["name"].strip() or not item["mount"].startswith("/"):
                raise self._wrong(key, "no volume", "Write - name: NAME, and below it mount: /PATH.")
            volumes.append(Volume(name=item["name"], mount=item["mount"]))
            self._row(key, f"{item['name']}:{item['mount']}", f"volumes.{item['name']}")
            for other in item:
                if other not in ("name", "mount"):
                    self._row(f"{key}.{short(other)}", item[other], None, How.DROPPED, "axolotl does not read it.")
        if volumes:
            self._found["volumes"] = volumes

    def _read_secrets(self) -> None:
        for number, name, value in self._names("secrets"):
            key, field = f"secrets[{number}]", f"secrets.{name}"
            if value is None:
                self._row(key, name, field)
            else:
                why = f"A secret in the clear became a name: %cluster_secret set {name} keeps its value."
                self._row(key, f"{name}: {secrets.HIDDEN}", field, How.CHANGED, why)
            if name not in self._secrets:
                self._secrets.append(name)

    def _read_env(self) -> None:
        env: dict[str, str] = {}
        for number, name, value in self._names("env"):
            key = f"env[{number}]"
            if secrets.is_name(name) or (isinstance(value, str) and secrets.is_value(value)):
                if name not in self._secrets:
                    self._secrets.append(name)
                why = f"It is a secret, and axolotl writes it into the image: %cluster_secret set {name} keeps it."
                self._row(key, f"{name}: {secrets.HIDDEN}", f"secrets.{name}", How.CHANGED, why)
            elif value is not None or name in self._values:
                env[name] = _plain(value) if value is not None else self._values[name]
                self._row(key, f"{name}: {env[name]}", f"env.{name}")
            else:
                why = f'The shell that starts axolotl has it: values={{"{name}": "..."}} gives it here.'
                self._row(key, name, None, How.DROPPED, why)
        if env:
            self._found["env"] = env

    def _read_branch(self) -> None:
        self._options.append(f"branch={self._text('branch')}")
        self._row("branch", self._text("branch"), "program.options.axolotl.branch")

    def _read_docker_tag(self) -> None:
        tag = self._text("docker_tag")
        if not re.fullmatch(r"[\w.-]{1,128}", tag, re.ASCII):
            raise self._wrong("docker_tag", "no tag of an image", "Write it as docker_tag: main-latest.")
        self._found["image"] = keys.RELEASES + tag
        self._row("docker_tag", tag, "image")

    def _read_dockerfile_commands(self) -> None:
        setup: list[str] = []
        for number, line in enumerate(self._list("dockerfile_commands")):
            key = f"dockerfile_commands[{number}]"
            if not isinstance(line, str):
                raise self._wrong(key, "no line of a Dockerfile", "Write - RUN pip install NAME.")
            match = _INSTALLS.fullmatch(line)
            if match and match[1].isprintable():
                setup.append(match[1])
                why = "It runs before the code, and not while the image is built."
                self._row(key, line, f"setup.{len(setup) - 1}", How.CHANGED, why)
            else:
                self._row(key, line, None, How.DROPPED, "Only an image of your own can have it.")
        if setup:
            self._found["setup"] = setup

    def _read_gpu(self) -> None:
        self._text("gpu")  # together with gpu_count, see `_gpus`

    def _read_gpu_count(self) -> None:
        self._number("gpu_count", 1024)

    def _read_node_count(self) -> None:
        self._found["nodes"] = self._number("node_count", 100_000)
        self._row("node_count", self._found["nodes"], "nodes")

    def _read_memory(self) -> None:
        self._found["memory"] = f"{self._number('memory', 1 << 20)}G"
        self._row("memory", f"{self._document['memory']} GiB", "memory")

    def _read_timeout(self) -> None:
        self._found["time"] = f"{self._number('timeout', 366 * 86400)}s"
        self._row("timeout", f"{self._document['timeout']} s", "time")

    def _read_memory_preprocess(self) -> None:
        self._number("memory_preprocess", 1 << 20)

    def _read_timeout_preprocess(self) -> None:
        self._number("timeout_preprocess", 366 * 86400)

    # -- together ---------------------------------------------------------------------

    def _stage(self) -> Stage | None:
        if self._provider != "modal":
            return None
        memory = self._document.get("memory_preprocess")
        limit = self._document.get("timeout_preprocess")
        if memory is None and limit is None:
            return None
        if memory is not None:
            self._row("memory_preprocess", f"{memory} GiB", "stages.preprocess.memory")
        if limit is not None:
            self._row("timeout_preprocess", f"{limit} s", "stages.preprocess.time")
        return Stage(
            name="preprocess",
            memory=int(memory) * 1024 if memory is not None else None,
            time=int(limit) if limit is not None else None,
        )

    def _gpus(self) -> GpuRequest:
        count = self._number("gpu_count", 1024) if "gpu_count" in self._document else 1
        said = self._text("gpu").lower() if "gpu" in self._document else ""
        if said and not re.fullmatch(r"[a-z][\w.-]{0,40}", said, re.ASCII):
            raise self._wrong("gpu", "no GPU", "Write it as gpu: h100.")
        kind = said
        if self._provider == "baseten":
            kind = keys.BASETEN_GPU
            if not said:
                self._assume("gpu", kind, "gpus_per_node", "axolotl always takes H100 on Baseten.")
            elif said == kind:
                self._row("gpu", self._document["gpu"], "gpus_per_node")
            else:
                why = "axolotl takes H100 on Baseten, whatever is asked for."
                self._row("gpu", self._document["gpu"], "gpus_per_node", How.CHANGED, why)
        elif not said:
            kind = "l40s"
            self._assume("gpu", kind, "gpus_per_node", "axolotl means to take it where no GPU is named, and crashes.")
        elif said in keys.MODAL_GPUS:
            self._row("gpu", self._document["gpu"], "gpus_per_node")
        else:
            why = f"axolotl itself refuses it on Modal; it knows {', '.join(keys.MODAL_GPUS)}."
            self._row("gpu", self._document["gpu"], "gpus_per_node", How.CHANGED, why)
        if "gpu_count" in self._document:
            self._row("gpu_count", count, "gpus_per_node")
        else:
            self._assume("gpu_count", 1, "gpus_per_node", "axolotl takes one where no number is given.")
        request = GpuRequest(count, kind)
        self._found["gpus_per_node"] = request
        return request

    def _defaults(self, gpus: GpuRequest) -> None:
        if self._provider != "modal":
            return
        if "memory" not in self._document:
            self._found["memory"] = f"{keys.DEFAULTS['memory']}G"
            self._assume("memory", "128 GiB", "memory", "axolotl asks Modal for so much where none is given.")
        if "timeout" not in self._document:
            self._found["time"] = f"{keys.DEFAULTS['timeout']}s"
            self._assume("timeout", "86400 s", "time", "axolotl sets a day where no limit is given.")
        cores = max(1, keys.CORES // gpus.count)
        self._found["cpus_per_task"] = cores
        self._assume("cpu", keys.CORES, "cpus_per_task", f"axolotl always asks Modal for {keys.CORES} cores.")

    def _program(self, preprocess: bool) -> Program:
        commands = {match[1]: match for match in _COMMAND.finditer(self._text_of_comments())}
        train = commands.get("train")
        config = self._values.get("CONFIG") or (train[2] if train else "")
        launcher = Launcher.TORCHRUN
        if train and (match := re.search(r"--launcher[ =](\w+)", train[3])):
            launcher = _LAUNCHERS.get(match[1], launcher)
        line = self._source[: train.start()].count("\n") + 1 if train else None
        how, why = How.EXACT, ""
        if not config:
            config, how = "train.yaml", How.ASSUMED
            why = 'A cloud file does not name its configuration: values={"CONFIG": "..."} does.'
        self._rows.append(SourceField("axolotl train", config, line, "program.config", how, why))
        if train:
            self._rows.append(SourceField("--launcher", launcher.value, line, "launcher"))
        else:
            self._assume("--launcher", "torchrun", "launcher", "It is what starts axolotl on any number of nodes.")
        self._found["launcher"] = launcher
        steps = []
        if preprocess or "preprocess" in commands:
            steps.append(Step(name="preprocess", shell=f"axolotl preprocess {config}", runs=Runs.HEAD))
        steps.append(Step(name="train", shell=f"axolotl train {config}", runs=Runs.NODES, launched=True))
        for number, step in enumerate(steps):
            key = f"axolotl {step.name}"
            self._rows.append(SourceField(key, step.shell, line, f"program.steps.{number}", how, why))
        options = {"axolotl": tuple(self._options)} if self._options else {}
        return Program(steps=tuple(steps), config=config, options=options)

    def _text_of_comments(self) -> str:
        return self._source[:4000]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
