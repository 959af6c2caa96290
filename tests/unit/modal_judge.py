"""Imports Modal apps under the real client and prints what their functions declare, as JSON. Run as a program.

The paths come on standard input, one a line. The client is imported once, and
each app in a process of its own. The client's own decorators run; what they hand
on to the function's making is noted on the way. Nothing is sent, and there is no
server.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import modal
from modal import _functions
from modal.retries import Retries


def plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Retries):
        return {
            "max_retries": value.max_retries,
            "initial_delay": value.initial_delay.total_seconds(),
            "backoff": value.backoff_coefficient,
        }
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return repr(value)


def main(path: str) -> None:
    """Import the file and tell."""
    made: dict[str, dict[str, Any]] = {}
    before = _functions._Function._from_local

    def note(info: Any, app: Any, image: Any, **given: Any) -> Any:
        made[info.function_name] = {**given, "image": image}
        return before(info, app, image, **given)

    _functions._Function._from_local = staticmethod(note)
    spec = importlib.util.spec_from_file_location("app_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["app_under_test"] = module
    spec.loader.exec_module(module)
    app = module.app
    assert isinstance(app, modal.App)
    print(
        json.dumps(
            {
                "name": app.name,
                "functions": {name: plain(given) for name, given in made.items()},
                "entry": callable(module.main),
                "names": sorted(vars(module)),
                "scripts": {key: value for key, value in vars(module).items() if key.isupper()},
            },
            default=repr,
        )
    )


def serve() -> None:
    """Import one app after another; each answer ends with a line of its process's exit status."""
    for line in sys.stdin:
        path = line.strip()
        child = os.fork()
        if not child:
            os.chdir(Path(path).parent)
            os.environ["HOME"] = os.getcwd()
            main(path)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
