"""Programs that share a GPU: what `aliquot sim turns` and `aliquot bench turns` run, by name.

The misbehaviours each stand beside an honest neighbour that always wants the GPU and one that works and rests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .programs import (
    MS,
    SECOND,
    Program,
    alternating,
    inference,
    irregular,
    loop,
    on_off,
    restarting,
    spinner,
)


@dataclass(frozen=True)
class Member:
    """One tenant: its shares in thousandths, its program, and how its processes behave towards the arbiter."""

    name: str
    request_milli: int
    limit_milli: int
    program: Program
    gpus: tuple[str, ...] = ("g0",)
    processes: int = 1
    late_ns: int = 0
    """How much later than others it asks after a turn."""
    clings: bool = False
    """It never gives a turn back that it does not use."""


@dataclass(frozen=True)
class Mix:
    """Tenants on one GPU or two; `wakes` is the one whose waits after a rest are reported."""

    name: str
    about: str
    members: tuple[Member, ...]
    wakes: str = ""
    clocked: bool = True
    """Whether the phases of all go by the clock, so that they can be held against the fluid."""
    suspect: str = ""
    """The tenant that misbehaves: what matters is what it gains and what the others get."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs."""
        return tuple(sorted({gpu for member in self.members for gpu in member.gpus}))


_SHARES_8: Final = (20, 50, 80, 100, 120, 150, 200, 280)


def _many(shares: tuple[int, ...]) -> tuple[Member, ...]:
    return tuple(Member(f"t{n}", share, 1000, irregular()) for n, share in enumerate(shares))


MIXES: Final = (
    Mix(
        "irregular",
        "three that work and rest: .2 to .5, .3 to 1, .5 to .5",
        (
            Member("a", 200, 500, irregular()),
            Member("b", 300, 1000, irregular()),
            Member("c", 500, 500, irregular()),
        ),
    ),
    Mix(
        "alone",
        "one that works and rests, alone: what is lost without a hand-over",
        (Member("a", 500, 1000, irregular()),),
    ),
    Mix("eight", "eight that work and rest, .02 to .28", _many(_SHARES_8)),
    Mix(
        "many",
        "thirty-two that work and rest, .0125 to .05",
        _many(tuple(round(12.5 * (1 + n % 4)) for n in range(32))),
    ),
    Mix(
        "steady",
        "three that always want the GPU: .2, .3, .5",
        (Member("a", 200, 500, spinner()), Member("b", 300, 1000, spinner()), Member("c", 500, 500, spinner())),
    ),
    Mix(
        "pauses",
        ".5 that works 20 ms and pauses 5 ms beside .5 without pauses",
        (Member("a", 500, 1000, loop(20, MS, 5 * MS)), Member("b", 500, 1000, spinner())),
        suspect="a",
    ),
    Mix(
        "waking",
        "inference of .3, 15 requests a second, beside training of .7 with kernels of 1 ms",
        (Member("infer", 300, 1000, inference(15)), Member("train", 700, 1000, spinner())),
        wakes="infer",
        clocked=False,
    ),
    Mix(
        "long",
        "kernels of 1 s of .3 beside .7 with kernels of 1 ms",
        (Member("long", 300, 1000, loop(1, SECOND)), Member("short", 700, 1000, spinner())),
    ),
    Mix(
        "huge",
        "kernels of 5 s of .5 beside .5 with kernels of 1 ms",
        (Member("huge", 500, 1000, loop(1, 5 * SECOND)), Member("short", 500, 1000, spinner())),
    ),
)


def _beside(name: str, about: str, program: Program, **more: object) -> Mix:
    gpus = more.pop("gpus", ("g0",))
    assert isinstance(gpus, tuple)
    members = [Member("x", 300, 1000, program, gpus=gpus, **more), Member("spin", 300, 1000, spinner())]  # type: ignore[arg-type]
    members.append(Member("work", 400, 1000, irregular()))
    if len(gpus) > 1:
        members.append(Member("far", 700, 1000, spinner(), gpus=gpus[1:]))
    return Mix(name, about, tuple(members), suspect="x")


MISBEHAVIOURS: Final = (
    _beside("sleeps", "works for 1 s and sleeps for 1 s, to be owed turns", on_off(SECOND, SECOND)),
    _beside(
        "sips", "bursts of 1 ms with pauses of 2.6 ms, just above what the token stays for", loop(1, MS, 2_600_000)
    ),
    _beside(
        "lingers",
        "bursts of 0.1 ms with pauses of 1.9 ms, just below what the token stays for",
        loop(1, MS // 10, 1_900_000),
    ),
    _beside("hogs", "kernels of 1 s, which cannot be stopped", loop(1, SECOND)),
    _beside("jolts", "a kernel of 0.3 s, then a pause of 0.3 s", loop(1, 300 * MS, 300 * MS)),
    _beside("floods", "kernels of 20 us without end", spinner(20_000)),
    _beside("clings", "never gives back a turn it does not use", loop(2, MS, 20 * MS), clings=True),
    _beside("dawdles", "asks 50 ms late after every turn", spinner(), late_ns=50 * MS),
    _beside("reconnects", "its process ends and begins anew ten times a second", restarting(100 * MS, rejoin=False)),
    _beside("rejoins", "its tenant is removed and made anew twice a second", restarting(500 * MS, rejoin=True)),
    _beside("rejoins-long", "the same, after every kernel of 0.5 s", restarting(MS, rejoin=True, kernel_ns=125 * MS)),
    _beside("forks", "eight processes, each without end", spinner(), processes=8),
    _beside("alternates", "holds two GPUs and works on one at a time", alternating(20 * MS), gpus=("g0", "g1")),
)

BY_NAME: Final[Mapping[str, Mix]] = MappingProxyType({mix.name: mix for mix in (*MIXES, *MISBEHAVIOURS)})
