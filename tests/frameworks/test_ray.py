"""Ray starts the workers of two actors as examples/ray says, and the arbiter measures what each gets."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HERE
from environments import python
from gpuruns import SOURCES
from waiting import eventually

PROGRAM = HERE.parents[1] / "examples" / "ray" / "two_actors.py"
COMPUTES_S = 30


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell where `aliquot` is found and an engine with one emulated H100 is up."""
    runtime = tempfile.mkdtemp(prefix="alq-")  # a socket's path is short, and pytest's folders are not
    (tmp_path / "aliquot").write_text(f'#!/bin/sh\nexec {sys.executable} -m aliquot.cli "$@"\n')
    (tmp_path / "aliquot").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCES), "ALIQUOT_RUNTIME_DIR": runtime,
        "RAY_TMPDIR": runtime,
    }  # fmt: skip
    subprocess.run(["aliquot", "up", "-d", "--no-web", "--emulate", "h100"], env=environment, check=True)
    yield environment
    subprocess.run(["aliquot", "down"], env=environment, check=True)
    shutil.rmtree(runtime, ignore_errors=True)


def usage(environment: dict[str, str]) -> dict[int, float]:
    """What the arbiter charged each actor over its window, by thousandths requested."""
    top = subprocess.run(["aliquot", "top", "-o", "json"], env=environment, check=True, capture_output=True)
    return {one["request_milli"]: one["usage"] or 0.0 for one in json.loads(top.stdout)["gpus"][0]["tenants"]}


@pytest.mark.timeout(600)
def test_two_actors_get_their_shares(machine: dict[str, str]):
    """Over a window actors with 0.3 and 0.7 are charged that within a point, and neither can allocate more memory."""
    due = pytest.approx({300: 0.3, 700: 0.7}, abs=0.01)
    pipe = subprocess.PIPE
    run = subprocess.Popen([python("ray"), PROGRAM, str(COMPUTES_S)], env=machine, text=True, stdout=pipe, stderr=pipe)
    try:
        eventually(lambda: usage(machine) == due, "each is charged its share of a window", timeout_s=120)
        out, errors = run.communicate(timeout=120)
    finally:
        run.terminate()
        run.wait(timeout=60)
    seen = {line["actor"]: line for line in map(json.loads, out.splitlines())}

    assert 0 == run.returncode, errors
    assert [4096, 8192] == [seen[name]["total_mib"] for name in ("small", "large")]
    assert all(line["largest_mib"] < line["total_mib"] for line in seen.values())
