"""The clients on the emulated driver, without Aliquot between."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from waiting import eventually

from aliquot.driver import emulation
from aliquot_lab.bench.progress import read_intervals, read_totals
from aliquot_lab.bench.scene import native_client

pytest.importorskip("cuda.bindings")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """An emulated V100."""
    return emulation.prepare(tmp_path_factory.mktemp("machine"), "v100")


@pytest.fixture
def run_client(machine, tmp_path):
    """Runs a client for half a second; its counts and its progress file."""

    def run(mode: str, *options: str):
        progress = tmp_path / "progress"
        argv = [sys.executable, "-m", "aliquot_lab.bench.client", mode, "--progress", str(progress), "--report"]
        env = dict(os.environ) | {"LD_LIBRARY_PATH": str(machine.libcuda.parent)}
        done = subprocess.run(
            [*argv, "--seconds", "0.5", *options], env=env, capture_output=True, text=True, timeout=30, check=True
        )
        return json.loads(done.stdout), progress

    return run


@pytest.mark.parametrize("mode", ["steady", "sync", "graph", "burst"])
def test_a_client_counts_what_it_completed(run_client, mode):
    """Completed kernels times their duration is the GPU time."""
    counts, progress = run_client(mode, "--kernel-ms", "1")

    assert counts["kernel_ns"] == counts["completed"] * 1_000_000
    assert counts["kernel_ns"] > 0
    assert read_totals(progress).completed == counts["completed"]


@contextmanager
def one_busy_processor() -> Iterator[None]:
    """What starts meanwhile runs on one processor, beside two loops."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)
        for loop in loops:
            loop.kill()
            loop.wait()


def may_run_before_others() -> bool:
    """Whether programs here may have a real-time policy."""
    command = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
    return subprocess.run([sys.executable, "-c", command], capture_output=True, check=False).returncode == 0


@pytest.mark.real_time
def test_a_client_that_runs_before_others_keeps_its_gpu_busy(run_client):
    """With --real-time a client of small kernels loses hardly any GPU time to two other programs on its processor."""
    if not may_run_before_others():
        pytest.skip("no right to a real-time policy here")
    with one_busy_processor():
        counts, _ = run_client("steady", "--kernel-ms", "0.5", "--seconds", "2", "--real-time")

    assert 0.8 < counts["kernel_ns"] / counts["ran_ns"] < 1.02


def test_a_long_kernel_takes_its_time(run_client):
    """A kernel asked to take 300 ms takes 300 ms."""
    _, progress = run_client("long", "--kernel-ms", "300")

    assert all(turn.ended_ns - turn.asked_ns >= 300_000_000 for turn in read_intervals(progress))


def test_allocations_are_timed(run_client):
    """Every allocation is an interval."""
    _, progress = run_client("memory")

    assert len(read_intervals(progress)) > 1


@pytest.fixture
def run_native(machine, tmp_path):
    """Runs a mode of the native client for a second and a half, or for so many intervals; its progress file."""

    def run(mode: str, *options: str, intervals: int = 0):
        progress = tmp_path / "progress"
        progress.unlink(missing_ok=True)
        env = dict(os.environ) | {"LD_LIBRARY_PATH": str(machine.libcuda.parent)}
        process = subprocess.Popen(native_client(mode, *options)(progress), env=env)
        eventually(lambda: read_totals(progress), "it launches")
        if intervals:
            eventually(lambda: len(read_intervals(progress)) >= intervals, f"{intervals} intervals")
        else:
            time.sleep(1.5)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(10)
        return progress

    return run


def test_arrivals_do_not_wait_for_answers(run_native):
    """Requests of a server that is too slow queue up: each next one waits longer, and arrivals keep their pace."""
    progress = run_native("inference", "2000000", "200", "10", "1", "7")
    seen = read_intervals(progress)

    assert read_totals(progress).completed == 1 + 10 * len(seen)
    assert seen[-1].ended_ns - seen[-1].asked_ns > seen[0].ended_ns - seen[0].asked_ns
    assert all(late.asked_ns > early.asked_ns for early, late in itertools.pairwise(seen))


def test_one_seed_means_the_same_arrivals(run_native):
    """Two runs see requests at the same distances, and a batch answers those that wait together."""
    work = ("inference", "100000", "300", "2", "8", "3")
    first, second = (read_intervals(run_native(*work, intervals=120)) for _ in range(2))

    gaps = [[late.asked_ns - early.asked_ns for early, late in itertools.pairwise(seen)] for seen in (first, second)]
    shared = min(len(gaps[0]), len(gaps[1]))
    assert shared > 100
    assert gaps[0][:shared] == gaps[1][:shared]


def test_the_native_client_counts_short_kernels(run_native):
    """Each kernel of 20 us is counted once."""
    totals = read_totals(run_native("steady", "20000"))

    assert totals.completed * 20_000 == totals.kernel_ns
    assert totals.completed > 1
