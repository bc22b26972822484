"""Tenants that work and rest, as programs do: what each gets in every window, against the fluid."""

from dataclasses import dataclass

import numpy as np
import pytest
from irregular import STEP_NS, busy_of, fluid_of, random_phases, windows
from virtual import VirtualNode

from aliquot.tokens import MS, SECOND, Share

SHARES = {"a": Share(200, 500), "b": Share(300, 1000), "c": Share(500, 500)}
SECONDS = 60
WARM = 5 * SECOND // STEP_NS


@dataclass(frozen=True)
class Outcome:
    """Parts of windows of 10 s; one number a window and tenant."""

    off: np.ndarray
    """How far from the fluid."""
    kept: np.ndarray
    """What was charged beyond request x time it wanted the GPU; negative where that was not kept."""
    over: np.ndarray
    """Beyond the limit."""


def play(phases: dict[str, list[tuple[int, int]]]) -> Outcome:
    """Run tenants through their phases."""
    node = VirtualNode(keep_log=False, delay_ns=300_000)
    for name, share in SHARES.items():
        node.tenant(name, share.request_milli, share.limit_milli, phases=phases[name], residual_ns=MS)
    got: dict[str, list[int]] = {name: [0] for name in SHARES}
    for step in range(1, SECONDS * SECOND // STEP_NS + 1):
        node.run_until(step * STEP_NS)
        for name in SHARES:
            got[name].append(node.charged(name))
    fluid, busy = fluid_of(SHARES, phases, SECONDS), busy_of(phases, SECONDS)
    off, kept, over = [], [], []
    for name, share in SHARES.items():
        charged, due, wanted = (np.array(windows(sums[name])[WARM:]) for sums in (got, fluid, busy))
        off.append(charged - due)
        kept.append(charged - wanted * share.request_milli / 1000)
        over.append(charged - share.limit_milli / 1000)
    return Outcome(np.array(off), np.array(kept), np.array(over))


@pytest.mark.parametrize("seed", range(4))
def test_tenants_that_rest_get_what_the_fluid_gives(seed: int):
    """In every window each gets its request for the time it wants the GPU, and what the fluid gives to two points."""
    found = play(random_phases(seed, "abc", SECONDS))
    assert found.kept.min() > -0.02
    assert found.over.max() < 0.02
    assert float(np.percentile(abs(found.off), 95)) < 0.01
    assert abs(found.off).max() < 0.02


def test_sleeping_saves_up_no_turns():
    """A tenant that sleeps half of the time gets no more than the fluid gives it, and its neighbours no less."""
    naps = [(at * SECOND, (at + 2) * SECOND) for at in range(0, SECONDS, 4)]
    always = [(0, SECONDS * SECOND)]
    found = play({"a": always, "b": naps, "c": always})
    assert abs(found.off).max() < 0.02
    assert found.kept.min() > -0.02
