"""KubeShare's Fig. 6 as arithmetic: the schedule, what each tenant is due, and whether it got it; and a resize alike.

Three tenants come to one GPU and one leaves: A (request .3, limit .6) at 0 s, B (.4, .6) at 200 s, C (.3, .5) at 400 s;
C ends at 660 s. Alone, A may use its limit; with B, the spare time goes to the tenant furthest below its limit until
both have one half; with all three the requests add up to the GPU and each gets its request.

A share is measured over the part of a phase that begins one window after the newcomer's first kernel: before that, the
sliding window still looks back at the phase before.

Source: KubeShare (HPDC'20), section 5.2, Fig. 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NewType

from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest

Tenant = NewType("Tenant", str)

TOLERANCE: Final = 0.02
LEAST_DONE: Final = 0.95
LEAST_DONE_EMULATED: Final = 0.7
"""Of the time that tenants are charged, what their kernels fill at least; an emulated GPU needs a processor for it."""

A: Final = Tenant("a")
B: Final = Tenant("b")
C: Final = Tenant("c")


@dataclass(frozen=True)
class RequestedShare:
    """What one SharePod asks: milli-GPU guaranteed, milli-GPU at most, MiB of memory, how soon it is to wake.

    It may be parked after `park_after_s` without use; 0: never.
    """

    request_milli: int
    limit_milli: int
    memory_mib: int
    wake_us: int = 0
    park_after_s: float = 0.0

    @property
    def request(self) -> GpuRequest:
        """The same of the first GPU, all of it enforced."""
        return GpuRequest(
            self.request_milli, self.limit_milli, Memory(mib=self.memory_mib), gpu="0", enforce="all",
            wake_us=self.wake_us, park_after_s=self.park_after_s,
        )  # fmt: skip


ASKS: Final[Mapping[Tenant, RequestedShare]] = {
    A: RequestedShare(300, 600, 2048),
    B: RequestedShare(400, 600, 2048),
    C: RequestedShare(300, 500, 2048),
}


@dataclass(frozen=True)
class Phase:
    """A stretch of time with one set of tenants, what these ask, and the fraction of the GPU each is due."""

    name: str
    start_s: float
    end_s: float
    expected: Mapping[Tenant, float]
    asks: Mapping[Tenant, RequestedShare] = field(default_factory=lambda: ASKS)


@dataclass(frozen=True)
class Fig6Timeline:
    """The phases and the window the arbiter slides over them."""

    window_s: float
    phases: tuple[Phase, ...]

    @property
    def end_s(self) -> float:
        """When the last phase ends."""
        return self.phases[-1].end_s


def timeline(boundaries_s: Sequence[float], window_s: float) -> Fig6Timeline:
    """Fig. 6 with the given five boundaries: start, B comes, C comes, C ends, end."""
    due: tuple[tuple[str, Mapping[Tenant, float]], ...] = (
        ("A alone", {A: 0.6}),
        ("A and B", {A: 0.5, B: 0.5}),
        ("A, B and C", {A: 0.3, B: 0.4, C: 0.3}),
        ("A and B again", {A: 0.5, B: 0.5}),
    )
    edges = pairwise(boundaries_s)
    phases = (Phase(name, start, end, shares) for (name, shares), (start, end) in zip(due, edges, strict=True))
    return Fig6Timeline(window_s, tuple(phases))


PAPER: Final = timeline((0, 200, 400, 660, 800), window_s=10)
FAST: Final = timeline((0, 10, 22, 36, 48), window_s=2)


def _beside_b(name: str, start_s: float, end_s: float, milli: int) -> Phase:
    """A and B with nothing beyond what they ask."""
    asks = {A: RequestedShare(milli, milli, 2048), B: RequestedShare(300, 300, 2048)}
    return Phase(name, start_s, end_s, {tenant: ask.request_milli / 1000 for tenant, ask in asks.items()}, asks)


RESIZE: Final = Fig6Timeline(
    2, (_beside_b("A has .3", 0, 10, 300), _beside_b("A has .6", 10, 22, 600), _beside_b("A has .3 again", 22, 34, 300))
)
"""The share of a program grows and shrinks while it runs, beside a neighbour whose share stays."""


@dataclass(frozen=True)
class Sample:
    """What every tenant had used by one moment: ns charged by the arbiter, ns of kernels it saw completed itself."""

    at_ns: int
    charged_ns: Mapping[Tenant, int]
    completed_ns: Mapping[Tenant, int]


@dataclass(frozen=True)
class Measured:
    """One phase as it happened; `measured` is by the clients' own kernels, `charged` by the arbiter's records."""

    phase: Phase
    measured: Mapping[Tenant, float]
    charged: Mapping[Tenant, float]

    @property
    def done_per_charged(self) -> float:
        """The kernels of all tenants over the time they were charged for."""
        return sum(self.measured.values()) / (sum(self.charged.values()) or 1.0)

    def errors(self) -> dict[Tenant, float]:
        """How far each tenant is from what it was due, in what it was charged and in its part of all that was done.

        Of all that was done, because a machine whose processors are busy does less of everything on an emulated GPU.
        """
        scale = sum(self.phase.expected.values()) / (sum(self.measured.values()) or 1.0)
        return {
            tenant: max(abs(self.charged.get(tenant, 0.0) - due), abs(self.measured.get(tenant, 0.0) * scale - due))
            for tenant, due in self.phase.expected.items()
        }


def shares(first: Mapping[Tenant, int], last: Mapping[Tenant, int], span_ns: int) -> dict[Tenant, float]:
    """The fraction of `span_ns` each tenant used between two samples; a tenant missing in the first counts from 0."""
    if span_ns <= 0:
        raise ValueError(f"a share needs a span above zero, not {span_ns} ns")
    return {tenant: (last[tenant] - first.get(tenant, 0)) / span_ns for tenant in last}


def measure(phase: Phase, settled: Sample, last: Sample) -> Measured:
    """The shares of a phase from its first settled sample and its last."""
    span_ns = last.at_ns - settled.at_ns
    kept = set(phase.expected)
    completed = shares(settled.completed_ns, last.completed_ns, span_ns)
    charged = shares(settled.charged_ns, last.charged_ns, span_ns)
    return Measured(
        phase,
        {tenant: share for tenant, share in completed.items() if tenant in kept},
        {tenant: share for tenant, share in charged.items() if tenant in kept},
    )


@dataclass(frozen=True)
class UsagePoint:
    """The live picture: seconds since the start and each tenant's usage over the arbiter's window."""

    at_s: float
    usage: Mapping[Tenant, float]


@dataclass
class Report:
    """Everything the demonstration saw."""

    gpu: str
    emulated: bool
    phases: list[Measured] = field(default_factory=list)
    usage: list[UsagePoint] = field(default_factory=list)

    @property
    def max_error(self) -> float:
        """The worst error of all phases; 1.0 when a phase is missing."""
        return max((error for phase in self.phases for error in phase.errors().values()), default=1.0)

    @property
    def done_per_charged(self) -> float:
        """The least of all phases; 0.0 when there is none."""
        return min((phase.done_per_charged for phase in self.phases), default=0.0)

    @property
    def kept(self) -> bool:
        """Whether every share was within the tolerance, and filled with kernels."""
        least = LEAST_DONE_EMULATED if self.emulated else LEAST_DONE
        return self.max_error <= TOLERANCE and self.done_per_charged >= least

    def as_json(self) -> dict[str, Any]:
        """The facts for programs."""
        return {
            "phases": [
                {
                    "name": seen.phase.name,
                    "start_s": round(seen.phase.start_s, 3),
                    "end_s": round(seen.phase.end_s, 3),
                    "expected": dict(seen.phase.expected),
                    "measured": {tenant: round(share, 4) for tenant, share in seen.measured.items()},
                    "charged": {tenant: round(share, 4) for tenant, share in seen.charged.items()},
                }
                for seen in self.phases
            ],
            "max_error": round(self.max_error, 4),
            "done_per_charged": round(self.done_per_charged, 4),
            "gpu": self.gpu,
            "emulated": self.emulated,
        }
