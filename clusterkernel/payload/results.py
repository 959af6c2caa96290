"""What a job left, read back into the notebook."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from clusterkernel.errors import ResultFailed
from clusterkernel.runtime.pickling import Loader, MissingClass, Unpickler, peek

__all__ = ["is_promised", "load_error", "load_output", "load_result"]

# Classes that came back by definition, so that all files of a job share them: job's payload -> key -> class.
_KNOWN: Final[dict[str, weakref.WeakValueDictionary[Any, type]]] = {}
_MISSING: Final = object()


class _Job:
    """What one look into a job's files knows.

    Parameters
    ----------
    namespace : dict
        The notebook's.
    payload_dir : Path
    outputs : Path
        The folder of the saved names.
    """

    def __init__(self, namespace: dict[str, Any], payload_dir: Path, outputs: Path) -> None:
        self._namespace = namespace
        self._payload_dir = payload_dir
        self._outputs = outputs
        self._known = _KNOWN.setdefault(str(payload_dir), weakref.WeakValueDictionary())
        self._loader = Loader(namespace, prefer=namespace, fallback=self._shipped, known=self._known)
        self._sent: dict[str, Any] | None = None

    def load(self, path: Path) -> Any:
        """A file's value, with what its functions use."""
        value = self._unpickle(path)
        found: dict[str, Any] = {path.stem: value} if path.parent == self._outputs else {}
        while self._loader.wanted:
            around, names = self._loader.wanted.pop()
            for name in names:
                if name not in found:
                    found[name] = self._look_up(name)
                if found[name] is not _MISSING:
                    around.setdefault(name, found[name])
        return value

    def _unpickle(self, path: Path) -> Any:
        with open(path, "rb") as file:
            return Unpickler(file, self._loader).load()

    def _look_up(self, name: str) -> Any:
        """The value of a name that a function of the job used: what the job made of it, else what it was given."""
        try:
            return self._unpickle(self._outputs / f"{name}.pkl")
        except FileNotFoundError:
            pass
        except Exception:  # noqa: BLE001 - then the function lacks it, and says so if it is called
            return _MISSING
        here = self._namespace.get(name, _MISSING)
        if here is not _MISSING and not peek(type(here), "__clusterkernel_pending__", False):
            return here
        return self._captured().get(name, _MISSING)

    def _captured(self) -> dict[str, Any]:
        if self._sent is None:
            self._sent = dict(self._read_payload())
        return self._sent

    def _shipped(self, key: object) -> type | None:
        """A class as it was sent, where the notebook's own is gone or another now."""
        for _ in self._read_payload():
            if key in self._known:
                break
        return self._known.get(key)

    def _read_payload(self) -> Iterator[tuple[str, Any]]:
        """The values that were sent, one after the other; they see nothing of the notebook and it nothing of them."""
        loader = Loader({"__name__": "__main__"}, prefer={}, known=self._known)
        for file_name in ("names.pkl", "call.pkl"):
            try:
                file = open(self._payload_dir / file_name, "rb")  # noqa: SIM115 - closed below
            except FileNotFoundError:
                continue
            about = msgspec.json.decode((self._payload_dir / "payload.json").read_bytes())
            with file:
                unpickler = Unpickler(file, loader)
                for name in itertools.chain(about.get("captured", ()), itertools.repeat("")):
                    try:
                        yield name, unpickler.load()
                    except EOFError:
                        return


def load_result(out: Path, namespace: dict[str, Any], payload_dir: Path) -> Any:
    """The return value that a process left in its folder `out`.

    Raises
    ------
    ResultFailed
        It is not there, or cannot be unpickled here.
    """
    try:
        return _load(out / "result.pkl", namespace, payload_dir, out / "outputs")
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
        return _load(path, namespace, payload_dir, path.parent)
    except FileNotFoundError:
        raise ResultFailed(f"{path} is gone.", hint="Run the job again.") from None


def load_error(out: Path, namespace: dict[str, Any], payload_dir: Path) -> BaseException | None:
    """The exception that ended a process, where it left one that can be loaded here."""
    try:
        error = _load(out / "error.pkl", namespace, payload_dir, out / "outputs")
    except (FileNotFoundError, ResultFailed):
        return None
    return error if isinstance(error, BaseException) else None


def is_promised(out: Path) -> bool:
    """Whether a process says that it left a result in its folder."""
    return bool(_report(out).get("result", "none") != "none")


def _report(out: Path) -> dict[str, Any]:
    try:
        report = msgspec.json.decode((out / "report.json").read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
    return report if isinstance(report, dict) else {}


def _load(path: Path, namespace: dict[str, Any], payload_dir: Path, outputs: Path) -> Any:
    try:
        return _Job(namespace, payload_dir, outputs).load(path)
    except FileNotFoundError as error:
        if error.filename == str(path):
            raise
        raise ResultFailed(f"{path.stem} cannot be loaded: {error}.") from error
    except ModuleNotFoundError as error:
        raise ResultFailed(
            f"{path.stem} of {path} cannot be loaded: the module {error.name} is not here.",
            hint=f"Install {str(error.name).partition('.')[0]} for this kernel, or add its folder to sys.path.",
        ) from error
    except MissingClass as error:
        raise ResultFailed(f"{path.stem} cannot be loaded: {error}.", hint="Run the cell that defines it.") from error
    except Exception as error:  # a value's own code may raise anything
        raise ResultFailed(
            f"{path.stem} cannot be loaded: {type(error).__name__}: {error}", hint=f"It lies in {path}."
        ) from error
