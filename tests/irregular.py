"""Tenants that work and rest at random, and what the fluid gives them."""

import random
from collections.abc import Mapping

from aliquot.tokens import MS, SECOND, Share
from aliquot.tokens.fluid import WHOLE, rates

STEP_NS = 10 * MS
Phases = Mapping[str, list[tuple[int, int]]]


def random_phases(seed: int, names: str, seconds: int) -> dict[str, list[tuple[int, int]]]:
    """Busy for 0.2 to 4.2 s, then, two times of three, at rest for up to 2 s, each by itself; on the grid of steps."""
    chance = random.Random(seed)
    found: dict[str, list[tuple[int, int]]] = {}
    for name in names:
        at, phases = 0, []
        while at < seconds * SECOND:
            end = at + int(chance.uniform(0.2, 4.2) * SECOND)
            at, end = at // STEP_NS * STEP_NS, end // STEP_NS * STEP_NS
            rest = int(chance.uniform(0.02, 2) * SECOND) if chance.randrange(3) else 0
            if phases and phases[-1][1] == at:
                phases[-1] = (phases[-1][0], end)
            else:
                phases.append((at, end))
            at = end + rest
        found[name] = phases
    return found


def fluid_of(shares: Mapping[str, Share], phases: Phases, seconds: int) -> dict[str, list[int]]:
    """Nanoseconds the fluid has given each at the end of every step."""
    steps = seconds * SECOND // STEP_NS
    given: dict[str, list[int]] = {name: [0] for name in shares}
    marks = {name: {at // STEP_NS for phase in phases[name] for at in phase} for name in shares}
    wants = dict.fromkeys(shares, False)
    rate = dict.fromkeys(shares, 0)
    for step in range(steps):
        changed = [name for name in shares if step in marks[name]]
        for name in changed:
            wants[name] = any(begin <= step * STEP_NS < end for begin, end in phases[name])
        if changed:
            busy = [name for name in shares if wants[name]]
            of_busy = rates([shares[n] for n in busy], [["g"]] * len(busy))
            rate = dict.fromkeys(shares, 0) | dict(zip(busy, of_busy, strict=True))
        for name in shares:
            given[name].append(given[name][-1] + rate[name] * STEP_NS // WHOLE)
    return given


def busy_of(phases: Phases, seconds: int) -> dict[str, list[int]]:
    """Nanoseconds each has wanted the GPU for at the end of every step."""
    found = {}
    for name, of_one in phases.items():
        on = [False] * (seconds * SECOND // STEP_NS)
        for begin, end in of_one:
            on[begin // STEP_NS : end // STEP_NS] = [True] * len(on[begin // STEP_NS : end // STEP_NS])
        sums = [0]
        for step in on:
            sums.append(sums[-1] + (STEP_NS if step else 0))
        found[name] = sums
    return found


def windows(sums: list[int], window_ns: int = 10 * SECOND) -> list[float]:
    """The part of every window, one a step, that was given."""
    width = window_ns // STEP_NS
    return [(later - earlier) / window_ns for earlier, later in zip(sums, sums[width:], strict=False)]
