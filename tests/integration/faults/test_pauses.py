"""Programs that work and pause beside one that never pauses."""

import time

import pytest

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize(("work_ms", "pause_ms"), [(5, 5), (0.5, 3)])
def test_no_pattern_of_pauses_gains_anything(stage, work_ms, pause_ms):
    """A half that pauses between bursts gets no more than its half, and takes nothing from the other half's program."""
    scene = stage()
    kernel_ms = min(1, work_ms)
    burst = ("--kernel-ms", str(kernel_ms), "--batch", str(round(work_ms / kernel_ms)), "--depth", "64")
    pausing = scene.client("a", 500, 1000, "burst", *burst, "--idle-ms", str(pause_ms)).wait_ready()
    steady = scene.client("b", 500, 1000, "steady", "--kernel-ms", "1").wait_ready()
    time.sleep(0.5)

    got, others = scene.charged([pausing, steady])

    assert got < 0.52
    assert others > 0.44
