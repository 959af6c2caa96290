"""Small rules that look at a job before it is sent: each with an id, a level, a reason and a mend.

>>> from clusterkernel import advice
>>> from clusterkernel.fields import build
>>> [item.rule for item in advice.check(build({"backend": "modal", "gpus_per_node": "h100:9"}))][:1]
['modal-gpu-count']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterkernel.advice.base import Advice, Case, Facts, Level, Rule, rules
from clusterkernel.formats.model import Format, Program, SourceField
from clusterkernel.spec import JobSpec

__all__ = ["Advice", "Case", "Facts", "Level", "Rule", "check", "check_case", "mended", "rules"]

_ORDER = list(Level)


def check(
    spec: JobSpec,
    program: Program | None = None,
    *,
    format: Format | None = None,
    fields: Sequence[SourceField] = (),
    config: Mapping[str, Any] | None = None,
    schema: Mapping[str, Any] | None = None,
    facts: Facts | None = None,
) -> tuple[Advice, ...]:
    """What a person should know of a job before it is sent; the worst first.

    Parameters
    ----------
    spec : JobSpec
        What is asked for; its backend is the platform.
    program : Program, optional
        What is run.
    format, fields
        Of the source that was read (`clusterkernel.formats.model.Parsed`).
    config : mapping, optional
        axolotl's configuration.
    schema : mapping, optional
        axolotl's own JSON schema (`clusterkernel.advice.axolotl_schema`).
    facts : Facts, optional
        What is known of the platform.
    """
    case = Case(
        spec=spec,
        program=program or Program(),
        format=format,
        fields=tuple(fields),
        config=config,
        schema=schema,
        facts=facts or Facts(),
    )
    return check_case(case)


def check_case(case: Case, *, beyond_notes: bool = False) -> tuple[Advice, ...]:
    """As `check`.

    Parameters
    ----------
    case : Case
        What is looked at.
    beyond_notes : bool
        Leave out what the backend's own notes say.
    """
    found: list[Advice] = []
    for item in rules():
        if beyond_notes and case.spec.backend in item.noted:
            continue
        found += item.check(case)
    return tuple(sorted(found, key=lambda item: _ORDER.index(item.level)))


def mended(case: Case, found: Sequence[Advice]) -> Case:
    """The case with all mends applied that need no person."""
    for item in found:
        case = item.applied(case)
    return case
