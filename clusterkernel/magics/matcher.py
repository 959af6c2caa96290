"""Our part in IPython's completer; what it does is imported at the first Tab."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext, SimpleMatcherResult

    from clusterkernel.magics.extension import ClusterKernel

__all__ = ["install", "remove"]

_IDENTIFIER: Final = "clusterkernel.options"


class _Ours(list[Any]):
    """Completions of a line that is ours: IPython puts others aside only where there seems to be one."""

    def __len__(self) -> int:
        return max(1, super().__len__())


def install(kernel: ClusterKernel) -> Callable[..., Any] | None:
    """Add our matcher to the shell's completer.

    Returns
    -------
    callable or None
        The matcher; None where this IPython has no such thing.
    """
    try:
        from IPython.core.completer import context_matcher
    except ImportError:
        return None

    @context_matcher(identifier=_IDENTIFIER)  # type: ignore[untyped-decorator]
    def matcher(context: CompletionContext) -> SimpleMatcherResult:
        from IPython.core.completer import SimpleCompletion

        from clusterkernel.magics.complete import completions

        before = context.line_with_cursor[: context.cursor_position]
        words, fragment = completions(kernel, before, context.full_text)
        return {
            "completions": _Ours(SimpleCompletion(text=word, type="magic option") for word in words or ()),
            "matched_fragment": fragment,
            "suppress": words is not None,
            "do_not_suppress": set(),
            "ordered": False,
        }

    kernel.shell.Completer.custom_matchers.append(matcher)
    added: Callable[..., Any] = matcher
    return added


def remove(kernel: ClusterKernel, matcher: Callable[..., Any] | None) -> None:
    """Take our matcher out of the shell's completer."""
    matchers = kernel.shell.Completer.custom_matchers
    if matcher in matchers:
        matchers.remove(matcher)
