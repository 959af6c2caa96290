"""What people see goes through gettext: a catalogue beside the package changes it, without one it costs no import."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterkernel import language, render
from clusterkernel.states import JobState
from clusterkernel.views import JobView

WORDS = {
    "": "Content-Type: text/plain; charset=UTF-8\nPlural-Forms: nplurals=2; plural=(n != 1);\n",
    "Succeeded": "Gelungen",
    "Where": "Wo",
    "State": "Zustand",
    "Job {id}": "Auftrag {id}",
    "{name} (bound)": "{name} (gebunden)",
    "but without {names}": "doch ohne {names}",
    "{count} job\0{count} jobs": "{count} Auftrag\0{count} Aufträge",
}


def catalogue(words: dict[str, str]) -> bytes:
    """The words as a .mo file (GNU gettext manual, "The Format of GNU MO Files")."""
    pairs = sorted((source.encode(), text.encode()) for source, text in words.items())
    at, table, data = 28 + 16 * len(pairs), [[], []], b""
    for column in (0, 1):
        for pair in pairs:
            table[column] += [len(pair[column]), at + len(data)]
            data += pair[column] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + struct.pack(f"<{4 * len(pairs)}I", *table[0], *table[1]) + data


@pytest.fixture
def german(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    folder = tmp_path / "locale" / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    (folder / "clusterkernel.mo").write_bytes(catalogue(WORDS))
    monkeypatch.setattr(language, "_FOLDER", tmp_path / "locale")

    def speak(name: str) -> None:
        language._catalogue.cache_clear()
        monkeypatch.setenv("LANGUAGE", name)

    yield speak
    language._catalogue.cache_clear()


VIEW = JobView(id="12", name="digits", state=JobState.SUCCEEDED, backend="local", bind=("x", "y"))


def test_a_card_and_a_table_speak_the_language_of_the_catalogue(german: Callable[[str], None]) -> None:
    german("de")
    text = render.job_text(VIEW, render.Around(bound=("x",)))
    assert text.splitlines()[0] == "Auftrag 12  ✓ Gelungen, doch ohne x, y  digits"
    assert "  Wo:        local" in text
    assert "x (gebunden)" in text
    assert "y (was never set)" in text, "what is not translated stays"
    assert "Gelungen" in render.job_html(VIEW)
    assert render.table_text([VIEW]).startswith("Job  Zustand")
    assert [language.plural("{count} job", "{count} jobs", n) for n in (1, 2)] == ["1 Auftrag", "2 Aufträge"]


def test_another_language_and_none_are_english(german: Callable[[str], None]) -> None:
    german("fr")
    assert render.job_text(VIEW).splitlines()[0] == "Job 12  ✓ Succeeded, but without x, y  digits"
    assert [language.plural("{count} job", "{count} jobs", n) for n in (1, 2)] == ["1 job", "2 jobs"]


def test_values_are_put_in_as_they_are() -> None:
    assert language.say("{name} (bound)", name="{odd}") == "{odd} (bound)"
    assert language.word("{as it is}") == "{as it is}"


def test_without_a_catalogue_gettext_is_not_imported() -> None:
    code = "import sys; from clusterkernel import language; language.say('a'); print('gettext' in sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, cwd=".")
    assert done.stdout.strip() == "False"
