"""A tenant whose process is stopped while it holds the GPU with kernels in flight, beside one that wants it."""

import signal
import sys
import time

import pytest
from stage import Client, Stage
from waiting import eventually

pytestmark = pytest.mark.real_time

BEYOND_S = 0.05
READ_S = 0.03
"""The arbiter is asked every other millisecond; this much later it may answer on a busy machine."""


def holds(scene: Stage) -> str | None:
    """Whose grant is valid, by the arbiter's word."""
    return scene.admin.status().gpus[0].holder


def stop_as_holder(scene: Stage, client: Client) -> None:
    """Stop it in a turn of its own, in which kernels have completed and more are in flight."""
    eventually(lambda: holds(scene) not in (client.name, None), "the other has its turn")
    before = client.totals.completed
    eventually(lambda: client.totals.completed > before and holds(scene) == client.name, "kernels of its next turn")
    client.process.send_signal(signal.SIGSTOP)


def delay_s(scene: Stage, holder: Client, waiter: Client) -> tuple[float, float]:
    """From the end of the holder's turn to the grant of the other, and to the first kernel of that."""
    completed = waiter.totals.completed
    eventually(lambda: holds(scene) != holder.name, "the turn ends")
    ended_s = time.monotonic()
    eventually(lambda: holds(scene) == waiter.name, "the other is granted")
    granted_s = time.monotonic()
    eventually(lambda: waiter.totals.completed > completed, "the other's kernels complete")
    return granted_s - ended_s, time.monotonic() - ended_s


def test_a_stopped_holder_delays_its_neighbour_by_fifty_milliseconds_however_often_it_is_stopped(stage):
    """The turn of a stopped process ends in time; its work is waited for 50 ms, and no longer the next times."""
    scene = stage()
    held = scene.client("a", 500).wait_ready()
    neighbour = scene.client("b", 500).wait_ready()
    time.sleep(0.5)
    delays = []
    for _ in range(4):
        stop_as_holder(scene, held)
        delays.append(delay_s(scene, held, neighbour))
        time.sleep(0.3)
        held.process.send_signal(signal.SIGCONT)
        time.sleep(0.3)

    assert sorted(granted for granted, _ in delays)[2] < BEYOND_S + READ_S, delays
    assert sorted(first for _, first in delays)[2] < BEYOND_S + READ_S, delays
    assert [held.end(), neighbour.end()] == [0, 0]


def test_a_stopped_tenant_is_charged_nothing_and_its_neighbour_keeps_its_limit(stage):
    """While a process is stopped its neighbour gets its limit and no more, and afterwards it has its share at once."""
    scene = stage()
    held = scene.client("a", 300, 300, "sync").wait_ready()
    neighbour = scene.client("b", 500, 500, "sync").wait_ready()
    time.sleep(1)
    stop_as_holder(scene, held)
    time.sleep(0.5)
    (beside_stopped,) = scene.shares([neighbour], 3)
    held.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    after = scene.charged([held, neighbour], 2)

    assert beside_stopped < 0.56
    assert after[0] > 0.2, after


def test_a_tenant_that_was_stopped_is_owed_nothing_for_that_time(stage):
    """When it goes on after seconds, its neighbour has its turns as before, with no long wait."""
    scene = stage()
    held = scene.client("a", 500).wait_ready()
    neighbour = scene.client("b", 500, 1000, "sync").wait_ready()
    time.sleep(1)
    stop_as_holder(scene, held)
    time.sleep(2.5)
    held.process.send_signal(signal.SIGCONT)

    assert longest_wait_s(neighbour, 2.5) < 0.4
    assert [held.end(), neighbour.end()] == [0, 0]


def test_a_stopped_process_takes_no_turns_from_another_of_its_tenant(stage):
    """While one of two processes is stopped, the other has its turns beside a neighbour, with no long wait."""
    scene = stage()
    folder = scene.tenant("a", 500, gpus=1)
    argv = [sys.executable, "-m", "aliquot_lab.bench.client", "sync", "--real-time", "--progress"]
    held, second = (
        scene.program(folder, [*argv, str(scene.directory / f"{name}.progress")], name).wait_ready()
        for name in ("held", "second")
    )
    neighbour = scene.client("b", 500, 1000, "sync").wait_ready()
    time.sleep(0.5)
    held.process.send_signal(signal.SIGSTOP)

    longest_s = longest_wait_s(second, 4)
    held.process.send_signal(signal.SIGCONT)

    assert longest_s < 0.4
    assert [held.end(), second.end(), neighbour.end()] == [0, 0, 0]


def longest_wait_s(client: Client, seconds: float) -> float:
    """The longest time from now on in which the client completed no kernel."""
    began_s = moved_s = time.monotonic()
    longest_s, before = 0.0, client.totals.completed
    while time.monotonic() < began_s + seconds:
        now_s, completed = time.monotonic(), client.totals.completed
        longest_s = max(longest_s, now_s - moved_s)
        if completed != before:
            moved_s, before = now_s, completed
        time.sleep(0.002)
    return longest_s
