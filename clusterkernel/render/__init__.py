"""What is known of a job, as text, as HTML and as data. Pure: nothing is read, nothing is sent.

The HTML stands alone: no script, no style sheet. A saved notebook, GitHub and
nbconvert show it as JupyterLab does. Colours come from JupyterLab's theme where there
is one, and a state is always a word and a symbol beside its colour.
"""

from __future__ import annotations

from typing import Final

from clusterkernel.render.card import Around, bundle, job_html, job_text
from clusterkernel.render.table import array_bundle, attention, table_html, table_text
from clusterkernel.render.words import MIME, clean_lines, format_metric, format_size, state_text

__all__ = [
    "ARRAY_ROWS",
    "MIME",
    "Around",
    "array_bundle",
    "attention",
    "bundle",
    "clean_lines",
    "format_metric",
    "format_size",
    "job_html",
    "job_text",
    "state_text",
    "table_html",
    "table_text",
]

#: Tasks of an array that its card shows.
ARRAY_ROWS: Final = 12
