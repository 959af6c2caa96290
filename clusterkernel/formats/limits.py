"""A limit that a spec runs into on some platform: told by the advice, and raised by the writers where it is final."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from clusterkernel.errors import SpecError
from clusterkernel.spec import JobSpec

__all__ = ["Limit", "raise_first", "set_field"]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit.

    Attributes
    ----------
    rule : str
        The id of the advice: ``modal-gpu-count``.
    field : str
        Field of the spec.
    message : str
        What is wrong, a sentence with the value.
    hint : str
        The mend, a sentence.
    change : callable, optional
        Applies the mend to a spec.
    fatal : bool
        Nothing can be written that means the same: the writer refuses.
    """

    rule: str
    field: str
    message: str
    hint: str
    change: Callable[[JobSpec], JobSpec] | None = None
    fatal: bool = True


def raise_first(limits: Iterable[Limit]) -> None:
    """Refuse what cannot be written.

    Raises
    ------
    SpecError
        For the first limit that is final.
    """
    for limit in limits:
        if limit.fatal:
            flag = "--" + limit.field.replace("_", "-")
            raise SpecError(limit.message, field=flag, hint=limit.hint)


def set_field(name: str, value: Any) -> Callable[[JobSpec], JobSpec]:
    """A change that sets one field of a spec, by its flat name."""

    def change(spec: JobSpec) -> JobSpec:
        from clusterkernel import fields

        group = fields.FIELDS[name].group
        if not group:
            return msgspec.structs.replace(spec, **{name: value})
        inner = msgspec.structs.replace(getattr(spec, group), **{name: value})
        return msgspec.structs.replace(spec, **{group: inner})

    return change
