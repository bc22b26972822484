"""Programs that share a GPU, as steps that a simulated or a real process carries out, and mixes of them by name.

A program is a generator: it is asked for its next step when the last one is over, and may look at the clock. So one
description serves `aliquot sim turns` and `aliquot bench turns`. The busy phases of `irregular` and `on_off` go by the
clock: what a program wants then does not depend on what it gets, which is what a fluid can be held against.

The mixes are in mixes.toml. The misbehaviours each stand beside an honest neighbour that always wants the GPU and one
that works and rests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from random import Random
from typing import Any, Final

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
THINK_NS: Final = 20_000
"""From the end of a burst to the next launch of a program that does nothing in between."""
ENDLESS: Final = 1 << 50


@dataclass(frozen=True, slots=True)
class Burst:
    """Launch so many kernels of this length and wait for them, on the tenant's GPU of this number."""

    kernels: int
    kernel_ns: int
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Its own time between bursts: it is busy, and will launch again."""

    span_ns: int


@dataclass(frozen=True, slots=True)
class Rest:
    """It wants nothing."""

    span_ns: int


@dataclass(frozen=True, slots=True)
class Restart:
    """The process ends and another begins; with `rejoin` its tenant is removed and created again."""

    span_ns: int
    rejoin: bool = False


Step = Burst | Pause | Rest | Restart
Clock = Callable[[], int]
Program = Callable[[Clock, Random], Iterator[Step]]


def spinner(kernel_ns: int = MS) -> Program:
    """Launches without end."""

    def program(_clock: Clock, _rng: Random) -> Iterator[Step]:
        while True:
            yield Burst(ENDLESS, kernel_ns)

    return program


def loop(kernels: int, kernel_ns: int, pause_ns: int = THINK_NS) -> Program:
    """A burst and a pause, over and over."""

    def program(_clock: Clock, _rng: Random) -> Iterator[Step]:
        while True:
            yield Burst(kernels, kernel_ns)
            yield Pause(pause_ns)

    return program


def irregular() -> Program:
    """Busy for 0.2 to 4.2 s, then mostly at rest for up to 2 s; bursts of 1 to 6 kernels of 0.2 to 20 ms."""

    def program(clock: Clock, rng: Random) -> Iterator[Step]:
        while True:
            until_ns = clock() + int(rng.uniform(0.2, 4.2) * SECOND)
            while clock() < until_ns:
                longest_ns = 20 * MS if rng.randrange(10) == 0 else 3 * MS
                yield Burst(rng.randint(1, 6), MS // 5 + rng.randrange(longest_ns))
                yield Pause(THINK_NS)
            if rng.randrange(3):
                yield Rest(int(rng.uniform(0.02, 2) * SECOND))

    return program


def on_off(on_ns: int, off_ns: int, kernel_ns: int = MS) -> Program:
    """Kernels one after the other for a time, then nothing for another, by the clock."""

    def program(clock: Clock, _rng: Random) -> Iterator[Step]:
        while True:
            until_ns = clock() + on_ns
            while clock() < until_ns:
                yield Burst(4, kernel_ns)
                yield Pause(THINK_NS)
            yield Rest(off_ns)

    return program


def inference(rate: float, shortest_ns: int = MS, longest_ns: int = 20 * MS) -> Program:
    """Requests at random, `rate` a second, whether or not the last is answered; each takes kernels of half a ms."""

    def program(clock: Clock, rng: Random) -> Iterator[Step]:
        next_ns = clock()
        while True:
            next_ns += int(rng.expovariate(rate) * SECOND)
            if next_ns > clock():
                yield Rest(next_ns - clock())
            service_ns = int(shortest_ns * (longest_ns / shortest_ns) ** rng.random())
            yield Burst(max(1, 2 * service_ns // MS), MS // 2)

    return program


def restarting(every_ns: int, *, rejoin: bool, kernel_ns: int = MS) -> Program:
    """Ends periodically and restarts: as another process of its tenant, or as a new tenant of that name."""

    def program(clock: Clock, _rng: Random) -> Iterator[Step]:
        while True:
            until_ns = clock() + every_ns
            while clock() < until_ns:
                yield Burst(4, kernel_ns)
            yield Restart(MS, rejoin)

    return program


def alternating(burst_ns: int) -> Program:
    """Holds two GPUs and works on one of them at a time."""

    def program(_clock: Clock, _rng: Random) -> Iterator[Step]:
        while True:
            yield Burst(max(1, burst_ns // MS), MS, gpu=0)
            yield Burst(max(1, burst_ns // MS), MS, gpu=1)

    return program


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


_TABLE: Final = tomllib.loads(files(__package__).joinpath("mixes.toml").read_text("utf-8"))


def _member(
    name: str, *, share: tuple[int, int], program: Mapping[str, Any], gpus: Iterable[str] = ("g0",), **more: Any
) -> Member:
    ((kind, given),) = program.items()
    return Member(name, *share, globals()[kind](**given), tuple(gpus), **more)


def _mix(
    name: str, *, about: str, members: Mapping[str, Any] | None = None, requests: Iterable[int] = (), **more: Any
) -> Mix:
    named = [_member(member, **facts) for member, facts in (members or {}).items()]
    alike = [Member(f"t{number}", request, 1000, irregular()) for number, request in enumerate(requests)]
    return Mix(name, about, (*named, *alike), **more)


def _misbehaviour(name: str, *, about: str, others: Mapping[str, Any] | None = None, **facts: Any) -> Mix:
    members = {"x": {"share": (300, 1000), **facts}, **_TABLE["neighbours"], **(others or {})}
    return _mix(name, about=about, members=members, suspect="x")


MIXES: Final = tuple(_mix(name, **facts) for name, facts in _TABLE["mixes"].items())
MISBEHAVIOURS: Final = tuple(_misbehaviour(name, **facts) for name, facts in _TABLE["misbehaviours"].items())
BY_NAME: Final[Mapping[str, Mix]] = {mix.name: mix for mix in (*MIXES, *MISBEHAVIOURS)}
