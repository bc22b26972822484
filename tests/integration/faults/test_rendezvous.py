"""Work on the GPU that waits for work its own tenant has yet to launch, beside a neighbour and alone."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from stage import Client, Stage
from turns import Grants, Span, Steps, going_before_other_programs, turns

from aliquot_lab.bench.progress import read_totals

pytestmark = pytest.mark.real_time

PROGRAM = Path(__file__).parent / "programs" / "rendezvous.py"
SECONDS = float(os.environ.get("ALIQUOT_RENDEZVOUS_SECONDS", "3"))


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


def steps(client: Client, seconds: float, *, words: Path | None = None, grants: Sequence[Grants] = ()) -> Steps:
    """The steps from now on; `grants` are looked at all the while.

    In `words` the GPU says each step; the program counts those that it has synchronised with, 20 at a time in `deep`.
    """

    def reached() -> int | None:
        if words is not None:
            return int.from_bytes(words.read_bytes()[:4], "little")
        totals = read_totals(client.progress)  # None while it is just being written
        return None if totals is None else totals.completed

    before = last = reached() or client.totals.completed
    start_s = moved_s = now_s = time.monotonic()
    gaps = []
    with going_before_other_programs():
        while now_s < start_s + seconds:
            looked_s, now_s = now_s, time.monotonic()
            step = reached()
            if step is not None and step != last:
                gaps.append(Span(moved_s, looked_s))  # until then it is certain that there was none
                moved_s, last = now_s, step
            for seen in grants:
                seen.look()
            time.sleep(0.001)
    return Steps((last - before) / seconds, [*gaps, Span(moved_s, now_s)])


def report(mode: str, beside: Steps, its_turns: Sequence[Span]) -> str:
    """The figures of a run, in milliseconds."""
    turn_s = max((turn.length_s for turn in its_turns), default=0.0)
    longest = f"longest gap {beside.longest_s * 1e3:.0f}, turn {turn_s * 1e3:.0f}"
    return f"{mode}: {longest}, gap beyond a turn {beside.beyond_s(its_turns) * 1e3:.0f} ms, {len(its_turns)} turns"


@pytest.mark.parametrize(
    ("mode", "kernels"),
    [
        ("streams", ()),
        ("deep", ()),
        ("ranks", ("--kernel-ms", "20", "--depth", "3")),
    ],
    ids=["streams", "deep", "ranks-long-kernels"],
)
def test_steps_that_wait_for_each_other_go_on_beside_a_neighbour(stage, mode, kernels):
    """Ranks of a collective, two streams, and ranks that launch ahead keep a part of the GPU, beside a neighbour.

    Beyond one turn of the neighbour they pause for 100 ms at most. A revocation catches them at different steps; what
    the one has launched then waits on the GPU for the other until the tenant is resumed, or the neighbour has waited
    as long as such work usually takes and 50 ms more.
    """
    scene = stage(gpus="v100" if mode == "streams" else "v100x2")
    found = partners(scene, mode)
    words = None if mode == "streams" else scene.directory / "words"
    alone = steps(found[0], 1.5, words=words)
    neighbour = scene.client("b", 500, 1000, "steady", *kernels).wait_ready()
    mine, its = Grants.of(scene, "a"), Grants.of(scene, "b")
    steps(found[0], 0.5)
    before, start_s = neighbour.totals.kernel_ns, time.monotonic()

    beside = steps(found[0], SECONDS, words=words, grants=(mine, its))

    share = (neighbour.totals.kernel_ns - before) / 1e9 / (time.monotonic() - start_s)
    its_turns = turns(its, mine, time.monotonic())
    print(report(mode, beside, its_turns))
    assert its_turns
    assert beside.rate > 0.25 * alone.rate, (alone.rate, beside.rate)
    assert beside.beyond_s(its_turns) <= 0.1, report(mode, beside, its_turns)
    assert 0.3 < share < 0.65
    assert neighbour.end() == 0
