"""A name that a job has yet to deliver.

An old value under the same name would be used unseen, so a placeholder stands
there from the submission on. Whatever uses it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from clusterkernel.errors import PendingError
from clusterkernel.language import say
from clusterkernel.states import JobState

if TYPE_CHECKING:
    from clusterkernel.jobs import Job

__all__ = ["WHOLE", "Pending", "job_of", "pending_names", "still_pending"]

# Python looks these up on the type, past `__getattr__`; NumPy asks for `__array__` before it wraps an object.
_USES: Final = """
    call iter next len bool contains getitem setitem delitem int float complex index str bytes format fspath
    lt le gt ge eq ne neg pos abs invert round trunc floor ceil enter exit aenter aexit aiter anext await
    reversed array reduce_ex copy deepcopy
    add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift
    radd rsub rmul rtruediv rfloordiv rmod rdivmod rpow rmatmul rand ror rxor rlshift rrshift
    iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift
""".split()


# In these states what a job saved is what its whole code made.
WHOLE: Final = (JobState.SUCCEEDED, JobState.RESULT_FAILED)


class Pending:
    """Stands for a value that a job has yet to deliver.

    Its representation tells the job and its state; every other use raises
    `PendingError`.

    Parameters
    ----------
    name : str
        The variable.
    job : Job
        Who delivers it.
    """

    __slots__ = ("_clusterkernel_job", "_clusterkernel_name")
    __clusterkernel_pending__ = True

    _clusterkernel_name: str
    _clusterkernel_job: Job

    def __init__(self, name: str, job: Job) -> None:
        object.__setattr__(self, "_clusterkernel_name", name)
        object.__setattr__(self, "_clusterkernel_job", job)

    def __repr__(self) -> str:
        job = self._clusterkernel_job
        places = {"name": self._clusterkernel_name, "id": job.id, "state": job.state}
        if job.state.terminal:
            return say("<{name}: job {id} ({state}) did not deliver it>", **places)
        return say("<{name}: job {id} ({state}) has yet to deliver it>", **places)

    def __getattr__(self, name: str) -> Any:
        # Tools look for such names on whatever they meet, and expect no more than that there is none.
        if name.startswith(("__", "_repr_", "_ipython_")):
            raise AttributeError(name)
        raise still_pending(self)

    def __setattr__(self, name: str, value: object) -> None:
        raise still_pending(self)

    def __delattr__(self, name: str) -> None:
        raise still_pending(self)

    def __dir__(self) -> list[str]:
        return []

    __hash__ = object.__hash__


def _use() -> Callable[..., Any]:
    def use(self: Pending, *_: object, **__: object) -> Any:
        raise still_pending(self)

    return use


for _name in _USES:
    setattr(Pending, f"__{_name}__", _use())


def job_of(value: Pending) -> Job:
    """The job that delivers it."""
    return value._clusterkernel_job


def still_pending(value: Pending) -> PendingError:
    """The one line for a name that was used too early, or that never came."""
    name, job = value._clusterkernel_name, value._clusterkernel_job
    if not job.state.terminal:
        return PendingError(
            say("{name} is not there yet: job {id} is {state}.", name=name, id=job.id, state=job.state),
            hint=say(
                "Names come between cells: put %cluster_wait {id} in a cell before this one, "
                'or set %config ClusterKernel.on_pending = "wait".',
                id=job.id,
            ),
        )
    view = job.summary()
    output = view.outputs.get(name)
    if view.state not in WHOLE:
        why = view.error or view.reason
        left = output is not None and not output.error
        return PendingError(
            say(
                "{name} did not come: job {id} is {state}.",
                name=name,
                id=job.id,
                state=": ".join(filter(None, [str(view.state), why.rstrip(".")])),
            ),
            hint=say("%cluster_bind {id} {name} binds what it was by then.", id=job.id, name=name)
            if left
            else f"%cluster_{'logs' if view.log else 'status'} {job.id}",
        )
    if output is not None and output.error:
        from clusterkernel.loading import MEND  # only where something is wrong: loading must be quick

        text = say("{name} could not be saved by job {id}: {why}.", name=name, id=job.id, why=output.error)
        return PendingError(text, hint=say(MEND))
    if output is not None:
        return PendingError(
            say("{name} was saved by job {id} and is not bound.", name=name, id=job.id),
            hint=say("%cluster_bind {id} {name} binds it.", id=job.id, name=name),
        )
    return PendingError(
        say("{name} did not come: job {id} never set it.", name=name, id=job.id),
        hint=say("Take it out of -o, or set it."),
    )


def pending_names(namespace: Mapping[str, Any]) -> dict[str, Pending]:
    """The placeholders that stand in a namespace."""
    return {name: value for name, value in list(namespace.items()) if type(value) is Pending}
