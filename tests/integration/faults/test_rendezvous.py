"""Work on the GPU that waits for work its own tenant has yet to launch, beside a neighbour and alone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from stage import Client, Stage

from aliquot.bench.progress import read_totals

PROGRAM = Path(__file__).parent / "programs" / "rendezvous.py"


def partners(scene: Stage, mode: str, request: int = 500, limit: int = 1000) -> list[Client]:
    """The processes of one tenant whose steps wait for each other; each has its own GPU but for `streams`."""
    folder = scene.tenant("a", request, limit)
    shared = scene.directory / "words"
    shared.write_bytes(bytes(4096))
    count = 1 if mode == "streams" else 2
    found = []
    for rank in range(count):
        progress = scene.directory / f"a{rank}.progress"
        argv = [sys.executable, str(PROGRAM), mode, str(progress), str(shared), str(rank)]
        found.append(scene.program(folder, argv, f"a{rank}"))
    return [client.wait_ready() for client in found]


def steps(client: Client, seconds: float, *, words: Path | None = None) -> tuple[float, float]:
    """Steps a second from now on, and the longest time without one, in seconds.

    In `words` the GPU says each step; the program counts those that it has synchronised with, 20 at a time in `deep`.
    """

    def reached() -> int | None:
        if words is not None:
            return int.from_bytes(words.read_bytes()[:4], "little")
        totals = read_totals(client.progress)  # None while it is just being written
        return None if totals is None else totals.completed

    before = last = reached() or client.totals.completed
    start_s = moved_s = time.monotonic()
    longest = 0.0
    while (now_s := time.monotonic()) < start_s + seconds:
        step = reached()
        if step is not None and step != last:
            longest, moved_s, last = max(longest, now_s - moved_s), now_s, step
        time.sleep(0.002)
    return (last - before) / seconds, max(longest, now_s - moved_s)


@pytest.mark.parametrize("mode", ["ranks", "streams", "deep"])
def test_steps_that_wait_for_each_other_go_on_beside_a_neighbour(stage, mode):
    """Ranks of a collective, two streams, and ranks that launch ahead keep a part of the GPU, beside a neighbour."""
    scene = stage(gpus="v100" if mode == "streams" else "v100x2")
    found = partners(scene, mode)
    words = None if mode == "streams" else scene.directory / "words"
    alone, _ = steps(found[0], 1.5, words=words)
    neighbour = scene.client("b", 500).wait_ready()
    steps(found[0], 0.5)
    before, start_s = neighbour.totals.kernel_ns, time.monotonic()

    beside, longest = steps(found[0], 3, words=words)

    share = (neighbour.totals.kernel_ns - before) / 1e9 / (time.monotonic() - start_s)
    assert beside > 0.25 * alone, (alone, beside)
    assert longest < 0.3
    assert 0.3 < share < 0.65
    assert neighbour.end() == 0


def test_a_small_share_is_no_deadlock(stage):
    """A tenant of a tenth whose steps wait for each other goes on, though its waiting is charged."""
    scene = stage(gpus="v100x2")
    found = partners(scene, "ranks", 100)
    scene.client("b", 900).wait_ready()

    rate, longest = steps(found[0], 4)

    assert rate > 15
    assert longest < 2


def test_a_limit_is_no_deadlock(stage):
    """A tenant alone, held at half of the GPU, is stopped between steps that wait for each other, and goes on."""
    scene = stage(gpus="v100")
    found = partners(scene, "streams", 300, 500)

    rate, longest = steps(found[0], 3)

    assert rate > 60
    assert longest < 0.5
