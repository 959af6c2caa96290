"""A `concurrent.futures.Executor` whose workers are a cluster's."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterkernel import arrays, fields, paths, profiles, secretstore, submission, units
from clusterkernel.backends import registry
from clusterkernel.backends.base import Plan
from clusterkernel.errors import BackendUnavailable, ClusterKernelError, PayloadError, SpecError, shown
from clusterkernel.jobs import Job
from clusterkernel.spec import JobSpec

if TYPE_CHECKING:
    from clusterkernel.payload import Artefact

__all__ = ["Executor", "plan"]

# An iterable that does not end must not take the kernel's memory.
_MOST_ITEMS: Final = 1_000_000
# Each has files of its own.
_MOST_TASKS: Final = 100_000


class Executor(concurrent.futures.Executor):
    """Submits functions, commands and axolotl configurations.

    Parameters
    ----------
    backend : str, optional
        ``local``, ``slurm``; default: the profile's, else ``local``.
    profile : str, optional
        A saved profile to start from.
    **wanted
        Fields of the spec, as flags without the dashes: ``nodes=2``,
        ``gpus_per_node="h100:8"``, ``time="4h"``.

    Raises
    ------
    SpecError
        A field is not known or its value is wrong.

    Examples
    --------
    >>> with Executor("local", time="10m") as ex:  # doctest: +SKIP
    ...     ex.submit(pow, 2, 10).result()
    1024
    """

    def __init__(self, backend: str | None = None, *, profile: str | None = None, **wanted: object) -> None:
        base = profiles.load(profile) if profile is not None else profiles.default()
        values = fields.merge(base.values, {**({"backend": backend} if backend is not None else {}), **wanted})
        origins = {name: where for name, where in base.origins.items() if name not in wanted}
        origins.update({name: name for name in wanted})
        self.spec: JobSpec = fields.build(values, origins=origins)
        secretstore.refuse_in_script(self.spec, python=True)
        registry.get(self.spec.backend)
        self._submitted: list[Job] = []
        self._shut = False

    def __repr__(self) -> str:
        return f"<Executor {' '.join(f'{name}={value}' for name, value in fields.flatten(self.spec).items())}>"

    def _check_open(self) -> None:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
        """Run ``fn(*args, **kwargs)``. Returns at once; each call sends a job of its own."""
        from clusterkernel.payload import function

        self._check_open()
        _check_arguments(fn, args, kwargs)
        return self._send(function.build(fn, args, kwargs, modules_root=paths.working_folder()))

    def _send(self, artefact: Artefact, wanted: JobSpec | None = None) -> Job:
        wanted = wanted or self.spec
        made = submission.submit(wanted, _taking(artefact, wanted))
        assert isinstance(made, Job)
        self._submitted.append(made)
        return made

    def map_jobs(self, fn: Callable[[Any], Any], items: Iterable[Any], *, chunksize: int = 1) -> arrays.JobArray:
        """Run ``fn(item)`` for each item, as one array.

        Each call sends anew, as `submit` does: only a cell attaches to a job that
        does the same already. Keep the array's id; ``ck.job(id)`` finds it again.

        Parameters
        ----------
        fn : callable
            Of one argument.
        items : iterable
            At least one.
        chunksize : int
            Items of each array task; more than one for short items.

        Returns
        -------
        JobArray
            One `Job` a task.
        """
        from clusterkernel.payload import function

        self._check_open()
        try:
            todo = _gone_through(items)
        except TypeError:
            raise PayloadError(f"items = {shown(items)} cannot be gone through.", hint="Give a list.") from None
        if not todo:
            raise ClusterKernelError("map_jobs got no items.", hint="Give it at least one.")
        _check_arguments(fn, (todo[0],), {})
        chunksize = units.parse_count(chunksize, field="chunksize", least=1)
        if (tasks := -(-len(todo) // chunksize)) > _MOST_TASKS:
            raise PayloadError(
                f"map_jobs would make {tasks:,} tasks, more than {_MOST_TASKS:,}.",
                hint=f"Write chunksize={-(-len(todo) // 1000)}: each task then does so many items.",
            )
        artefact = function.build_map(fn, todo, chunksize=chunksize, modules_root=paths.working_folder())
        made = submission.submit(self.spec, _taking(artefact, self.spec), tasks=tasks)
        assert isinstance(made, arrays.JobArray)
        self._submitted += made
        return made

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """As in the standard library, sent as one array, anew at each call. Abandoning the iterator cancels nothing."""
        for one in iterables:
            if not isinstance(one, Iterable):
                raise PayloadError(f"{shown(one)} cannot be gone through.", hint="Give lists.")
        items = _gone_through(zip(*iterables, strict=False))
        if not items:
            return iter(())
        made = self.map_jobs(_star(fn), items, chunksize=chunksize)
        return _results(made, timeout)

    def run(self, argv: Sequence[str | os.PathLike[str]]) -> Job:
        """Run a command, given as a list of words; no shell reads them."""
        from clusterkernel.payload import command

        self._check_open()
        words: Any = argv
        if isinstance(words, Sequence) and not isinstance(words, str | bytes):
            words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in words]
        return self._send(command.build(words))

    def train(self, config: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Job:
        """Train an axolotl configuration: preprocess, then train.

        Parameters
        ----------
        config : path
            The YAML file.
        overrides : mapping, optional
            Keys that replace those of the file.
        """
        from clusterkernel.payload import axolotl

        self._check_open()
        if not isinstance(config, str | os.PathLike):
            raise PayloadError(f"config = {shown(config)} is no path.", hint="Give the path of a YAML file.")
        wanted = axolotl.with_launcher(self.spec)
        made = axolotl.build(Path(os.fsdecode(config)), overrides=overrides or {}, launcher=wanted.launcher)
        if not registry.get(wanted.backend).capabilities.shared_files:
            wanted = axolotl.with_side_files(wanted, made.source)
        return self._send(made, wanted)

    def plan(self) -> Plan:
        """What would be sent."""
        return plan(self.spec)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more; with `wait`, wait for the end of what was submitted.

        Parameters
        ----------
        wait : bool
            As in the standard library. Without it the jobs go on.
        cancel_futures : bool
            Cancel what has not started.
        """
        self._shut = True
        if cancel_futures:
            for job in self._submitted:
                if not job.running():
                    with contextlib.suppress(BackendUnavailable):  # the request stands, and is repeated
                        job.cancel()
        if wait:
            for job in self._submitted:
                job.wait()
        self._submitted.clear()


def _gone_through(items: Iterable[Any]) -> list[Any]:
    found = list(itertools.islice(items, _MOST_ITEMS + 1))
    if len(found) > _MOST_ITEMS:
        raise PayloadError(f"There are more than {_MOST_ITEMS:,} items.", hint="Does what gives them end?")
    return found


def _taking(artefact: Artefact, wanted: JobSpec) -> Artefact:
    """The payload with the files that go along."""
    if not wanted.environment.files:
        return artefact
    from clusterkernel.payload import taken

    return taken.with_files(artefact, wanted.environment)


def plan(wanted: JobSpec, artefact: Artefact | None = None) -> Plan:
    """What a backend would send for a spec, without sending it; `artefact`: what it would run, where that is known."""
    if not isinstance(wanted, JobSpec):
        raise SpecError(f"{shown(wanted)} is no JobSpec.", hint="Write ck.plan(executor.spec), or executor.plan().")
    complete = submission.complete(wanted, sending=False)
    backend = registry.get(complete.backend)
    # On some platforms what is sent hangs on what is run.
    of_artefact = getattr(backend, "plan_of", None)
    if artefact is not None and of_artefact is not None:
        made: Plan = of_artefact(complete, artefact.kind, artefact.title, artefact.body.get("steps", ()))
        return made
    return backend.plan(complete)


def _check_arguments(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that cannot work before it waits in a queue for it."""
    if not callable(fn):
        raise PayloadError(
            f"{type(fn).__name__} {shown(fn)} is not a function.",
            hint="Write submit(fn, *args), without calling fn.",
        )
    from clusterkernel.payload import function

    signature = function.signature_of(fn)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = function.title_of(fn)
        raise PayloadError(f"{name} cannot be called so: {error}.", hint=f"It takes {name}{signature}.") from None


def _star(fn: Callable[..., Any]) -> Callable[[tuple[Any, ...]], Any]:
    def call(arguments: tuple[Any, ...]) -> Any:
        return fn(*arguments)

    return call


def _results(made: arrays.JobArray, timeout: float | None) -> Iterator[Any]:
    import time

    deadline = None if timeout is None else time.monotonic() + timeout
    chunked = made.chunksize > 1
    for job in made:
        value = job.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if chunked:
            yield from value
        else:
            yield value
