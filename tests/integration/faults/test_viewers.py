"""Processes that only ask, beside the program of their own tenant."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stage import Client, Stage
from waiting import eventually

VIEWER = Path(__file__).parent / "programs" / "viewer.py"
SPELL_S = 0.5


class Viewer:
    """One running viewer; `answers` are the lines it has printed."""

    def __init__(self, scene: Stage, folder, mode: str, seconds: float = 60) -> None:
        self.out = scene.directory / f"viewer-{mode}.out"
        command = f"exec {sys.executable} {VIEWER} {mode} {seconds} > {self.out}"
        self.client = scene.program(folder, ["sh", "-c", command], f"viewer-{mode}", stdin=subprocess.PIPE)
        eventually(lambda: self.answers, "the viewer has asked", 30)

    @property
    def answers(self) -> list[dict]:
        assert not self.client.said, self.client.said
        return [json.loads(line) for line in self.out.read_text().splitlines()] if self.out.exists() else []


def bursty(scene: Stage, folder) -> Client:
    """A program that works for 20 ms and rests for 20 ms, so it returns the token by itself."""
    argv = [sys.executable, "-m", "aliquot_lab.bench.client", "burst", "--real-time", "--idle-ms", "20"]
    return scene.program(folder, [*argv, "--progress", str(scene.directory / "a.progress")], "a").wait_ready()


def rate(client: Client) -> float:
    """Kernels a second from now on, by the client's own clock, in the best of three spells."""
    rates = []
    for _ in range(3):
        before = client.totals
        time.sleep(SPELL_S)
        after = client.totals
        rates.append((after.completed - before.completed) * 1e9 / (after.at_ns - before.at_ns))
    return max(rates)


@pytest.mark.real_time
def test_a_process_that_only_asks_costs_its_tenant_nothing(stage):
    """A monitor beside a bursty program of the same tenant leaves its kernels a second alone."""
    scene = stage()
    folder = scene.tenant("a", 500)
    program = bursty(scene, folder)
    alone = rate(program)
    viewer = Viewer(scene, folder, "nvml")

    beside = rate(program)

    assert 2 == scene.seen("a").processes
    assert beside > 0.85 * alone, (alone, beside)
    assert viewer.client.process.poll() is None
    assert program.end() == 0


def test_a_monitor_sees_its_tenant_and_loads_no_driver(stage):
    """A program of NVML alone sees the tenant's limit and processes; it has one thread and loads no CUDA driver."""
    scene = stage()
    folder = scene.tenant("a", 500)
    program = bursty(scene, folder)
    viewer = Viewer(scene, folder, "nvml")
    eventually(lambda: viewer.answers[-1]["processes"] == 1, "the monitor sees the program")
    answer = viewer.answers[-1]

    assert {"total": 2048 << 20, "threads": 1} == {key: answer[key] for key in ("total", "threads")}
    assert str(scene.machine.libcuda.resolve()) not in answer["drivers"]
    assert answer["used"] > 0
    assert program.end() == 0


def test_a_monitor_finds_a_new_arbiter_by_itself(stage):
    """After an arbiter is killed and started again a monitor is listed again, as a viewer, and sees new figures."""
    scene = stage()
    folder = scene.tenant("a", 500)
    viewer = Viewer(scene, folder, "nvml")
    scene.kill()
    scene.start()
    eventually(lambda: scene.seen("a").processes == 1, "the monitor has attached again")
    program = bursty(scene, folder)
    eventually(lambda: viewer.answers[-1]["processes"] == 1, "the monitor sees the program that came after")

    before = program.totals.completed
    eventually(lambda: program.totals.completed > before, "the program goes on")
    viewer.client.process.kill()
    eventually(lambda: scene.seen("a").processes == 1, "the monitor's end is seen")
    assert program.end() == 0


def test_a_program_that_asks_first_and_launches_later_takes_part_in_turns(stage):
    """A process that has only asked for an hour may launch at any time, and then shares as everybody does."""
    scene = stage()
    folder = scene.tenant("a", 500)
    viewer = Viewer(scene, folder, "later", 2)
    neighbour = scene.client("b", 500).wait_ready()
    viewer.client.process.stdin.write(b"go\n")
    viewer.client.process.stdin.flush()

    assert viewer.client.process.wait(20) == 0, viewer.client.said

    assert 0 == viewer.answers[-1]["status"]
    assert viewer.answers[-1]["launches"] > 0
    assert scene.seen("a").handovers > 0
    assert neighbour.end() == 0
