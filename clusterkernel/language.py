"""What people see, in their own language where there is a catalogue of it.

A catalogue is ``locale/LANGUAGE/LC_MESSAGES/clusterkernel.mo`` beside this file;
``LANGUAGE``, ``LC_ALL``, ``LC_MESSAGES`` or ``LANG`` says which is taken, as for
every program that uses gettext. To collect what is to be translated:
``xgettext -k -ksay -kplural:1,2 -kword``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gettext import NullTranslations

__all__ = ["plural", "say", "word"]

_DOMAIN: Final = "clusterkernel"
_FOLDER: Final = Path(__file__).with_name("locale")


@functools.cache
def _catalogue(folder: Path) -> NullTranslations | None:
    if not folder.is_dir():
        return None  # spares the import
    import gettext

    return gettext.translation(_DOMAIN, folder, fallback=True)


def say(text: str, /, **places: object) -> str:
    """A sentence, with values put into its places.

    Parameters
    ----------
    text : str
        In English, a literal: ``"Job {id} has ended."``.
    **places
        What goes into the braces.
    """
    found = _catalogue(_FOLDER)
    return (text if found is None else found.gettext(text)).format(**places)


def plural(one: str, many: str, /, count: int, **places: object) -> str:
    """The same for one or for several: `count` chooses, and is a place too."""
    found = _catalogue(_FOLDER)
    text = (one if count == 1 else many) if found is None else found.ngettext(one, many, count)
    return text.format(count=count, **places)


def word(text: str) -> str:
    """The same for what stands in a table of ours, without places; marked there, translated where it is shown."""
    found = _catalogue(_FOLDER)
    return text if found is None else found.gettext(text)
