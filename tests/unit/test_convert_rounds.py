"""Round trips by specs that hypothesis makes: what a report calls exact comes back as it was."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats import convert as converting
from clusterkernel.formats import sources
from clusterkernel.formats.convert import Conversion
from clusterkernel.formats.model import Format, How, Parsed, Program
from clusterkernel.spec import JobSpec
from tests.unit.convert_specs import held, jobs, same

READABLE = [Format.SLURM, Format.KUBERNETES, Format.MODAL_YAML, Format.BASETEN_YAML, Format.PROFILE]
PAIRS = [(one, other) for one in READABLE for other in READABLE if one is not other]
CLOUD = (Format.MODAL_YAML, Format.BASETEN_YAML)
QUICK = 8
FULL = 400


def kind(*forms: Format) -> bool | None:
    """Which programs the formats can hold: axolotl's only, or any."""
    return True if any(form in CLOUD for form in forms) else None


def running(parsed: Parsed, program: Program) -> Parsed:
    """What was read, with the program that a profile does not say."""
    return parsed if parsed.program.steps else msgspec.structs.replace(parsed, program=program)


def exact(done: Conversion) -> set[str]:
    """The fields all of whose rows are exact."""
    ways: dict[str, set[How]] = {}
    for row in done.rows:
        if row.field:
            ways.setdefault(row.field, set()).add(row.how)
    return {field for field, found in ways.items() if found == {How.EXACT}}


def write(spec: JobSpec, program: Program, to: Format) -> Conversion | None:
    """The conversion; None where the format refuses the job by name."""
    try:
        return converting.write(Parsed(format=to, spec=spec, program=program, fields=()), to)
    except ClusterKernelError:
        return None


def there_and_back(examples: int, one: Format, other: Format) -> int:
    """Go from one format to another and back; gives how many fields came back."""
    back = 0

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(jobs(axolotl=kind(one, other)))
    def check(job: tuple[JobSpec, Program]) -> None:
        nonlocal back
        source = write(*job, one)
        if source is None:
            return
        first = sources.read(source.text, "first", source_format=one)
        try:
            there = converting.write(running(first, job[1]), other)
            second = sources.read(there.text, "second", source_format=other)
            again = converting.write(running(second, job[1]), one)
        except ClusterKernelError:
            # The one job that a manifest refuses by name.
            assert Format.KUBERNETES in (one, other)
            assert first.spec.array is not None
            assert first.spec.resources.nodes > 1
            return
        listed = [(row.source, row.value, row.line) for row in there.rows if row.source]
        assert listed == [(field.key, field.value, field.line) for field in first.fields]
        third = sources.read(again.text, "third", source_format=one)
        before, after = held(first.spec, first.program), held(third.spec, third.program)
        for field in exact(there) & exact(again) & before.keys():
            assert same(field, before, after), (field, before[field], after.get(field), there.text, again.text)
            back += 1
        told = {row.field for row in there.rows}
        for field in before:
            assert field in told or field == "tasks_per_node", (field, source.text)

    check()
    return back


def written_and_read(examples: int, form: Format) -> int:
    """Write and read again; gives how many fields came back."""
    back = 0

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(jobs(axolotl=kind(form)))
    def check(job: tuple[JobSpec, Program]) -> None:
        nonlocal back
        spec, program = job
        written = write(spec, program, form)
        if written is None:
            return
        again = sources.read(written.text, "again", source_format=form)
        before, after = held(spec, program), held(again.spec, again.program)
        module, function = converting._WRITERS[form]
        fields = __import__(f"clusterkernel.formats.{module}", fromlist=[function])
        told = {field.field: field for field in getattr(fields, function)(written.spec, program).fields}
        for field, value in before.items():
            target = converting._answer(field, told)
            assert target is not None or field == "tasks_per_node", field
            if target is not None and target.how is How.EXACT:
                assert same(field, before, after), (field, value, after.get(field), written.text)
                back += 1

    check()
    return back


@pytest.mark.parametrize("form", READABLE)
def test_what_a_writer_calls_exact_is_read_as_it_was(form: Format) -> None:
    assert written_and_read(3 * QUICK, form) > 3 * QUICK


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda form: form.value)
def test_what_both_formats_hold_comes_back(one: Format, other: Format) -> None:
    assert there_and_back(QUICK, one, other) > QUICK


@pytest.mark.full
@pytest.mark.parametrize("form", READABLE)
def test_full_what_a_writer_calls_exact_is_read_as_it_was(form: Format) -> None:
    written_and_read(3 * FULL, form)


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda form: form.value)
def test_full_what_both_formats_hold_comes_back(one: Format, other: Format) -> None:
    there_and_back(FULL, one, other)
