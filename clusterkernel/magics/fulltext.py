"""Our DataFrames as a notebook shows them: pandas cuts a text at 50 characters, and a reason is read to its end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["install", "remove"]

# Where the class says that it lives: in pandas 3, and before.
_HOMES: Final = ("pandas", "pandas.core.frame")


def _uncut(frame: pd.DataFrame) -> contextlib.AbstractContextManager[Any]:
    """Texts in full where the table is one of ours; others as pandas shows them."""
    if not frame.attrs.get("clusterkernel"):
        return contextlib.nullcontext()
    import pandas as pd

    uncut: contextlib.AbstractContextManager[Any] = pd.option_context("display.max_colwidth", None)
    return uncut


def _html(frame: Any) -> str | None:
    with _uncut(frame):
        made: str | None = frame._repr_html_()
        return made


def _text(frame: pd.DataFrame, printer: Any, _: bool) -> None:
    with _uncut(frame):
        printer.text(repr(frame))


def install(shell: InteractiveShell) -> None:
    """Register it; pandas is not imported for that."""
    for mime, show in (("text/html", _html), ("text/plain", _text)):
        for home in _HOMES:
            _formatter(shell, mime).for_type_by_name(home, "DataFrame", show)


def remove(shell: InteractiveShell) -> None:
    """Leave it to pandas again."""
    for mime in ("text/html", "text/plain"):
        for home in _HOMES:
            _formatter(shell, mime).pop(f"{home}.DataFrame", None)


def _formatter(shell: InteractiveShell, mime: str) -> Any:
    assert shell.display_formatter is not None
    return shell.display_formatter.formatters[mime]
