"""What ``%load_ext clusterkernel`` puts into a shell, and takes out again."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from IPython.core.magic import no_var_expand
from traitlets import Enum, Int, default
from traitlets.config import Configurable

from clusterkernel.errors import SpecError
from clusterkernel.magics import commands, fulltext, matcher
from clusterkernel.magics.binding import Deliveries
from clusterkernel.magics.cards import Cards
from clusterkernel.magics.guard import Guard
from clusterkernel.magics.notebook import interactive

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from clusterkernel.magics.complete import LiveValues

__all__ = ["ClusterKernel"]

_SHORT: Final = ("ck", "cluster")
_WORDS: Final = MappingProxyType(
    {"CLUSTERKERNEL_ON_PENDING": ("refuse", "wait"), "CLUSTERKERNEL_INTERACTIVE": ("0", "1")}
)


class ClusterKernel(Configurable):
    """One shell's extension; ``%config ClusterKernel`` shows and sets its options.

    Parameters
    ----------
    shell : InteractiveShell
        The shell.
    """

    on_pending = Enum(
        ["refuse", "wait"],
        help="What a cell does that reads a name which a job has yet to deliver. Default: $CLUSTERKERNEL_ON_PENDING.",
    ).tag(config=True)
    bind_limit_mb = Int(256, min=0, help="Names of a job that take more together are not bound by themselves.").tag(
        config=True
    )

    @default("on_pending")
    def _default_on_pending(self) -> str:
        return os.environ.get("CLUSTERKERNEL_ON_PENDING") or "refuse"

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(parent=shell)
        for variable, words in _WORDS.items():
            if (word := os.environ.get(variable)) and word not in words:
                raise SpecError(
                    f"{variable} = {word!r} is not known.", field=variable, hint=f"Set {' or '.join(words)}."
                )
        self.shell = shell
        self.deliveries = Deliveries(shell, lambda: self.bind_limit_mb * 1_000_000)
        self.cards: Cards = self.deliveries.cards
        self.guard = Guard(shell, self.deliveries, lambda: self.on_pending == "wait" or not interactive(shell))
        self._matcher: Any = None

    @functools.cached_property
    def live_values(self) -> LiveValues:
        """Asks the platforms for what can be completed."""
        from clusterkernel.magics.complete import LiveValues

        return LiveValues()

    def install(self) -> None:
        """Register all there is."""
        for command in commands.COMMANDS:
            self._register(command.magic, self._magic(command), cell=command.cell)
        for name in _SHORT:
            self._register(name, self._short(name), cell=True)
        self.shell.ast_transformers.append(self.guard)
        self.shell.events.register("pre_execute", self.deliveries.before_cell)
        self.shell.events.register("post_execute", self.deliveries.after_cell)
        formatter = self._formatter()
        for module, name in _SHOWN:
            formatter.for_type_by_name(module, name, self.cards.formatter)
        fulltext.install(self.shell)
        self.shell.configurables.append(self)  # type: ignore[arg-type]
        self._matcher = matcher.install(self)
        atexit.register(self.cards.stop)
        self.deliveries.adopt()

    def remove(self) -> None:
        """Take all of it out."""
        from clusterkernel import watcher

        self.deliveries.close()
        self.cards.stop()
        atexit.unregister(self.cards.stop)
        matcher.remove(self, self._matcher)
        self.shell.configurables.remove(self)  # type: ignore[arg-type]
        formatter = self._formatter()
        for module, name in _SHOWN:
            formatter.pop(f"{module}.{name}", None)
        fulltext.remove(self.shell)
        self.shell.events.unregister("post_execute", self.deliveries.after_cell)
        self.shell.events.unregister("pre_execute", self.deliveries.before_cell)
        self.shell.ast_transformers.remove(self.guard)
        magics = self.shell.magics_manager.magics
        for name in (*_SHORT, *(command.magic for command in commands.COMMANDS)):
            magics["line"].pop(name, None)
            magics["cell"].pop(name, None)
        watcher.stop_all()

    def _formatter(self) -> Any:
        assert self.shell.display_formatter is not None
        return self.shell.display_formatter.ipython_display_formatter

    def _register(self, name: str, magic: Callable[..., Any], *, cell: bool) -> None:
        self.shell.magics_manager.register_function(magic, magic_kind="line_cell" if cell else "line", magic_name=name)

    def _magic(self, command: commands.Command) -> Callable[..., Any]:
        if command.cell:

            def magic(line: str, cell: str | None = None) -> Any:
                return commands.run(self, command, line, cell)
        else:

            def magic(line: str) -> Any:  # type: ignore[misc]
                return commands.run(self, command, line)

        magic.__name__ = command.magic
        magic.__doc__ = command.help
        # IPython asks an object for `getdoc` first: parsers and their help are made when somebody asks.
        magic.getdoc = lambda: commands.parser_of(command).format_help()  # type: ignore[attr-defined]
        return no_var_expand(magic)

    def _short(self, name: str) -> Callable[..., Any]:
        def magic(line: str, cell: str | None = None) -> Any:
            return commands.dispatch(self, line, cell)

        magic.__name__ = name
        magic.__doc__ = f"`%{name} jobs` is `%cluster_jobs`, and so on; over a cell it is `%%cluster_train`."
        return no_var_expand(magic)


_SHOWN: Final = (("clusterkernel.jobs", "Job"), ("clusterkernel.arrays", "JobArray"))
