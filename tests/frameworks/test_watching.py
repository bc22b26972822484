"""A client that hangs is ended, with what it was doing."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import HERE, PROGRAMS
from gpuruns import Run
from watching import Watched, below, runs

HANGS = """
import json, subprocess, sys, time
import running
print(json.dumps({"feature": "first"}), flush=True)
def waits_for_ever():
    child = subprocess.Popen(["sleep", "inf"])
    time.sleep(float(sys.argv[1]))
    child.kill()
waits_for_ever()
"""


def client(folder: Path, seconds: float) -> Run:
    """A client that says a line and then sleeps, beside a child."""
    sink = folder / "errors"
    argv = ["env", f"PYTHONPATH={HERE / 'clients'}:{PROGRAMS}", sys.executable, "-c", HANGS, str(seconds)]
    with sink.open("wb") as errors:
        return Run(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True), sink)


@pytest.mark.parametrize("where", ["within a feature", "at the end"])
def test_a_client_that_hangs_is_ended_with_its_stacks(tmp_path: Path, where: str):
    """A client that says nothing for too long, or does not end after its features, is ended; its stacks are kept."""
    run = client(tmp_path, 1000)
    watched = Watched(run)
    if where == "within a feature":
        seen = [line["feature"] for line in watched.facts(silent_s=3)]
    else:
        seen = [next(watched.facts(silent_s=60))["feature"]]
        children = below(run.process.pid)
        assert "had not ended" in watched.ended(within_s=3)
        assert [] == [pid for pid in children if runs(pid)]

    assert ["first"] == seen
    assert "waits_for_ever" in watched.hung
    assert run.process.returncode is not None


def test_a_client_that_ends_is_not_disturbed(tmp_path: Path):
    """A client that ends by itself has no stacks and no error."""
    watched = Watched(client(tmp_path, 0.1))

    assert ["first"] == [line["feature"] for line in watched.facts(silent_s=60)]
    assert "" == watched.ended(within_s=60) == watched.hung
