"""The checks for a real GPU (tests/gpu), tried on an emulated one: they run, report and say what was not reached."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aliquot
from aliquot.driver.native import HOOK, NativePartMissing, native_part

ROOT = Path(__file__).parents[3]
RUN = ROOT / "tests" / "gpu" / "run.py"


@pytest.fixture
def run(tmp_path: Path):
    """Runs tests/gpu/run.py; the finished process and its report."""
    try:
        parts = native_part(HOOK).parent
    except NativePartMissing as missing:
        pytest.skip(str(missing))

    def start(*words: str) -> tuple[subprocess.CompletedProcess[str], dict]:
        env = {**os.environ, "ALIQUOT_NATIVE_DIR": str(parts), "PYTHONPATH": str(Path(aliquot.__file__).parents[1])}
        argv = [sys.executable, str(RUN), "--emulate", "h100", "--out", str(tmp_path), *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=100, check=False)
        report = tmp_path / "report.json"
        return done, json.loads(report.read_text()) if report.exists() else {}

    return start


def test_checks_run_on_an_emulated_gpu(run):
    """Checks of compute, load order and memory pass there, and the report has their figures."""
    done, report = run("compute-bindings-preload", "load_order", "memory_in_truth")

    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert ["passed"] * 3 == [check["verdict"] for check in report["checks"]]
    assert "h100, emulated" == report["machine"]["gpu"]
    assert 0 == report["checks"][0]["figures"]["hook"]["disagreed"]


def test_a_run_that_reaches_less_than_it_should_says_so(run):
    """A check that no time was left for is not a success: it is listed as unreached, and the exit status is 3."""
    done, report = run("--budget-s", "1", "load_order")

    assert (3, ["unreached"]) == (done.returncode, [check["verdict"] for check in report["checks"]])


def test_what_the_machine_lacks_is_skipped_with_its_reason(run):
    """A framework that is not installed, and one whose parent package is not, skip their checks."""
    done, report = run("compute-jax")

    assert [0, {"skipped"}] == [done.returncode, {check["verdict"] for check in report["checks"]}]
    assert {"no jax"} == {check["why"] for check in report["checks"]}


def test_a_name_that_is_no_check_is_a_mistake(run):
    """A run in which nothing was asked for that exists ends with status 2."""
    assert 2 == run("no-such-check")[0].returncode
