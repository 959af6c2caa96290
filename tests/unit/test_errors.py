"""The tree of errors: one line each, with a mend; whole after a trip between processes."""

from __future__ import annotations

import concurrent.futures
import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from clusterkernel import errors
from clusterkernel.errors import ClusterKernelError, JobError, SpecError

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, ClusterKernelError)]
JOB_ERRORS = [cls for cls in CLASSES if issubclass(cls, JobError)]


def test_all_errors_are_public_and_drawn() -> None:
    assert {cls.__name__ for cls in CLASSES} == {name for name in errors.__all__ if name[0].isupper()}
    for cls in CLASSES:
        assert re.search(rf"\b{cls.__name__}\b", errors.__doc__ or ""), f"{cls.__name__} is not in the tree"


def test_codes_differ() -> None:
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


def depth(line: str) -> int:
    return len(line) - len(line.lstrip(" │├└─"))


def test_the_drawn_tree_is_the_real_one() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.match(r"^ {4}[ │├└─]*[A-Z]", line)]
    assert len(lines) == len(CLASSES)
    parents: list[tuple[int, type[BaseException]]] = []
    for line in lines:
        name, standard = re.findall(r"([A-Z]\w+)(?:\s\(([\w.]+)\))?", line)[0]
        cls = getattr(errors, name)
        while parents and parents[-1][0] >= depth(line):
            parents.pop()
        if parents:
            assert cls.__bases__[0] is parents[-1][1]
        if standard:
            assert standard.rpartition(".")[2] in {base.__name__ for base in cls.__mro__}
        parents.append((depth(line), cls))


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("trip", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_is_whole_after_a_trip(cls: type[ClusterKernelError], trip: Any) -> None:
    about: dict[str, Any] = {"hint": "Mend it."}
    if issubclass(cls, SpecError):
        about["field"] = "--nodes"
    if issubclass(cls, JobError):
        about |= {"job_id": "12_3", "log_tail": "last words", "remote_traceback": "Traceback"}
    error = cls("It is wrong.", **about)
    error.add_note("seen in cell 3") if hasattr(error, "add_note") else None
    again = trip(error)
    assert type(again) is cls
    assert str(again) == "It is wrong. Mend it."
    assert again.args == ("It is wrong.",)
    assert {name: getattr(again, name) for name in about} == about
    assert getattr(again, "__notes__", []) == getattr(error, "__notes__", [])


@pytest.mark.parametrize("cls", CLASSES)
def test_a_person_sees_one_line_and_no_frame_of_ours(cls: type[ClusterKernelError]) -> None:
    error = cls("It is wrong.", hint="Mend it.")
    assert error._render_traceback_() == [f"{cls.__name__}: It is wrong. Mend it."]
    assert str(cls("It is wrong.")) == "It is wrong."


def test_a_job_error_shows_what_the_job_said() -> None:
    error = errors.JobFailed("Job 12 failed.", log_tail="epoch 1\nepoch 2\n")
    assert error._render_traceback_() == ["JobFailed: Job 12 failed.", "", "epoch 1", "epoch 2"]
    error = errors.JobFailed("Job 12 failed.", log_tail="epoch 1", remote_traceback="Traceback:\n  cell 3\n")
    assert error._render_traceback_() == ["JobFailed: Job 12 failed.", "", "Traceback:", "  cell 3"]


def test_errors_are_caught_as_the_standard_ones() -> None:
    # Code that waits for a Future catches these, and must catch ours.
    with pytest.raises(concurrent.futures.CancelledError):
        raise errors.JobCancelled("It was cancelled.")
    with pytest.raises(TimeoutError):
        raise errors.JobTimedOut("It reached its time limit.")
    with pytest.raises(LookupError, match="no job 12"):  # not quoted, as a KeyError's text is
        raise errors.UnknownJobError("There is no job 12.")
    with pytest.raises(OSError, match="cannot be used"):
        raise errors.JobRootError("The job root cannot be used.")


@pytest.mark.parametrize("cls", JOB_ERRORS)
def test_no_job_error_passes_for_an_interrupt(cls: type[JobError]) -> None:
    assert issubclass(cls, Exception)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("slrum", "Did you mean slurm?"),
        ("SLURM", "Known: local, modal, slurm."),
        ("zzz", "Known: local, modal, slurm."),
        ("", "Known: local, modal, slurm."),
    ],
)
def test_the_nearest_word_is_named(word: str, hint: str) -> None:
    assert errors.nearest(word, ["slurm", "local", "modal"]) == hint
    assert errors.nearest(word, []) == ""
