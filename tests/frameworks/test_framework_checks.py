"""The checks for a real GPU that need PyTorch (tests/gpu), tried on an emulated one."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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


def tried(out: Path, site: Path, environment: str, *checks: str) -> dict[str, dict[str, Any]]:
    """The result of each check on an emulated H100, with the Python of an environment; of this one where it is ""."""
    argv = [python(environment) if environment else sys.executable, RUN, "--emulate", "h100", "--budget-s", "3000"]
    path = os.pathsep.join(map(str, (SOURCES, site)))
    env = os.environ | {"PYTHONPATH": path, "ALIQUOT_NATIVE_DIR": str(native_part(HOOK).parent)}
    done = subprocess.run([*argv, "--out", out, *checks], env=env, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return {each["name"]: each for each in json.loads((out / "report.json").read_text())["checks"]}


@pytest.mark.timeout(600)
def test_checks_that_need_pytorch(tmp_path: Path, site: Path):
    """Ranks that sum with NCCL and training loops that share go to their end on an emulated H100, and pass."""
    found = tried(tmp_path, site, "cuda13", "nccl_two_ranks", "eager_training")

    assert {"nccl_two_ranks": "passed", "eager_training": "passed"} == {n: each["verdict"] for n, each in found.items()}


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_check_runs_on_an_emulated_gpu(tmp_path: Path, site: Path):
    """Each check passes in one of the environments, but for nvidia-smi, which needs the driver's own."""
    found = [tried(tmp_path / name, site, name) for name in ("cuda13", "jax", "")]
    seen = {name: {each[name]["verdict"] for each in found} for name in found[0]}

    assert {"nvidia_smi"} == {name for name, verdicts in seen.items() if "passed" not in verdicts}, seen
    assert [] == [name for name, verdicts in seen.items() if not verdicts <= {"passed", "skipped"}], seen
