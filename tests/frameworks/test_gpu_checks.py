"""The checks for a real GPU that need PyTorch (tests/gpu), tried on an emulated one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import HERE
from environments import python
from gpuruns import SOURCES

from aliquot.driver.native import HOOK, native_part

RUN = HERE.parent / "gpu" / "run.py"
OURS = ("msgspec", "structlog", "click", "yaml", "_yaml", "prometheus_client", "pynvml", "typing_extensions")
"""What the package imports and the frameworks' environment lacks; both have the same Python."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with those modules alone."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name in OURS:
        place = Path(importlib.import_module(name).__file__ or "")
        place = place.parent if place.name == "__init__.py" else place
        (folder / place.name).symlink_to(place)
    return folder


@pytest.mark.timeout(400)
@pytest.mark.parametrize("check", ["nccl_two_ranks"])
def test_a_check_that_needs_pytorch(tmp_path: Path, site: Path, check: str):
    """The check runs to its end on an emulated H100 and passes, but for what only a GPU computes."""
    path = os.pathsep.join(map(str, (SOURCES, site)))
    env = os.environ | {"PYTHONPATH": path, "ALIQUOT_NATIVE_DIR": str(native_part(HOOK).parent)}
    argv = [python("cuda13"), RUN, "--emulate", "h100", "--out", tmp_path, check]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    print(done.stdout)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert ["passed"] == [each["verdict"] for each in json.loads((tmp_path / "report.json").read_text())["checks"]]
