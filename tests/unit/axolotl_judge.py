"""The real axolotl as a judge of configurations, where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.advice import axolotl_schema

# The settings that axolotl's own schema keeps of what it is given; it raises where one is wrong.
_PROBE = """
import json, sys
from axolotl.utils.schemas.config import AxolotlInputConfig as Config
given = json.loads(sys.argv[1])
kept = Config(**given).model_dump(by_alias=True)
print(json.dumps({key: kept[key] for key in given if key in kept}, default=str))
"""


def python() -> Path:
    """A Python that has axolotl; the test is skipped where there is none."""
    named = os.environ.get("CLUSTERKERNEL_AXOLOTL_PYTHON")
    found = Path(named) if named else axolotl_schema.find()
    if found is None:
        pytest.skip("axolotl is not installed here; CLUSTERKERNEL_AXOLOTL_PYTHON names a Python that has it")
    return found


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """What axolotl makes of a configuration, key by key; without those that it drops."""
    done = subprocess.run(
        [str(python()), "-W", "ignore", "-c", _PROBE, json.dumps(config)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found
