"""What a job left, read back into the notebook."""

from __future__ import annotations

import io
import pickle
import weakref
from pathlib import Path
from typing import Any, Final

import msgspec

from clusterkernel.errors import ResultFailed
from clusterkernel.runtime.pickling import Loader, MissingClass, Unpickler

__all__ = ["load_error", "load_output", "load_result"]

# Classes that came back by definition, so that all files of a job share them: job's payload -> key -> class.
_KNOWN: Final[dict[str, weakref.WeakValueDictionary[Any, type]]] = {}


def _loader(namespace: dict[str, Any], payload_dir: Path) -> Loader:
    known = _KNOWN.setdefault(str(payload_dir), weakref.WeakValueDictionary())
    return Loader(namespace, prefer=namespace, fallback=lambda key: _shipped(payload_dir, namespace, key), known=known)


def _shipped(payload_dir: Path, namespace: dict[str, Any], key: object) -> type | None:
    """The class as it was sent, where the notebook's own is gone or another now."""
    known = _KNOWN.setdefault(str(payload_dir), weakref.WeakValueDictionary())
    apart: dict[str, Any] = {"__name__": "__main__"}
    loader = Loader(apart, prefer={}, known=known)
    keep = []
    for name in ("names.pkl", "call.pkl"):
        try:
            file = open(payload_dir / name, "rb")
        except FileNotFoundError:
            continue
        with file:
            unpickler = Unpickler(file, loader)
            while True:
                try:
                    keep.append(unpickler.load())
                except EOFError:
                    break
                if key in known:
                    return known[key]
    return known.get(key)


def load_result(out: Path, namespace: dict[str, Any], payload_dir: Path) -> Any:
    """The return value that a process left in its folder `out`.

    Raises
    ------
    ResultFailed
        It is not there, or cannot be unpickled here.
    """
    try:
        return _load(out / "result.pkl", namespace, payload_dir)
    except FileNotFoundError:
        if _report(out).get("result") == "none":
            return None
        raise ResultFailed(f"There is no result in {out}.", hint="The log shows how the process ended.") from None


def load_output(path: Path, namespace: dict[str, Any], payload_dir: Path) -> Any:
    """A saved name's value.

    Raises
    ------
    ResultFailed
        It is not there, or cannot be unpickled here.
    """
    try:
        return _load(path, namespace, payload_dir)
    except FileNotFoundError:
        raise ResultFailed(f"{path} is gone.", hint="Run the job again.") from None


def load_error(out: Path, namespace: dict[str, Any], payload_dir: Path) -> BaseException | None:
    """The exception that ended a process, where it left one that can be loaded here."""
    try:
        error = _load(out / "error.pkl", namespace, payload_dir)
    except (FileNotFoundError, ResultFailed):
        return None
    return error if isinstance(error, BaseException) else None


def _report(out: Path) -> dict[str, Any]:
    try:
        report = msgspec.json.decode((out / "report.json").read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    return report if isinstance(report, dict) else {}


def _load(path: Path, namespace: dict[str, Any], payload_dir: Path) -> Any:
    with open(path, "rb") as file:
        try:
            return Unpickler(file, _loader(namespace, payload_dir)).load()
        except ModuleNotFoundError as error:
            raise ResultFailed(
                f"{path.stem} of {path} cannot be loaded: the module {error.name} is not here.",
                hint=f"Install {str(error.name).partition('.')[0]} for this kernel, or add its folder to sys.path.",
            ) from error
        except MissingClass as error:
            raise ResultFailed(f"{path.stem} cannot be loaded: {error}.", hint="Run the cell that defines it.") from error
        except (Exception, RecursionError) as error:  # noqa: BLE001 - a value's own code may raise anything
            raise ResultFailed(
                f"{path.stem} cannot be loaded: {type(error).__name__}: {error}", hint=f"It lies in {path}."
            ) from error
