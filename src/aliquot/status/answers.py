"""What a program answers besides its GPUs and workloads: links, events, the last hour, explanations and trials.

Fractions are milli-GPU (1000 = one GPU), memory is MiB, moments are seconds since 1970, durations carry their unit in
the name. A field that is not known is its default. Readers ignore fields they do not know: later versions add some.
"""

from __future__ import annotations

import msgspec

from aliquot.status.gpus import Gpu
from aliquot.status.workloads import Piece


class TreeNode(msgspec.Struct, frozen=True):
    """A node of the access-cost tree: a link class such as PIX and its children; for a leaf the row of `links`."""

    label: str
    cost: int
    free: int
    gpu: int = -1
    children: list[TreeNode] = []


class TopologyFacts(msgspec.Struct, frozen=True):
    """The links of a node: `links[i][j]` is NV12, PIX, SYS, ...; of `costs[i][j]` the lower is nearer."""

    node: str
    links: list[list[str]]
    costs: list[list[int]]
    numa: list[int | None]
    cores: list[str]
    tree: TreeNode | None = None


class Event(msgspec.Struct, frozen=True):
    """An event; `id` increases with time. One that repeats takes the place of itself, with a new id and its count."""

    id: int
    at_s: float
    kind: str
    subject: str
    text: str
    count: int = 1


class Series(msgspec.Struct, frozen=True):
    """One tenant on one GPU over time, each list as long as the history's `at_s`; None while it was absent."""

    tenant: str
    usage_milli: list[float | None]
    wait_ms: list[float | None]
    quota_ms: list[float | None]
    debt_ms: list[float | None]
    memory_mib: list[float | None]


class History(msgspec.Struct, frozen=True):
    """The last hour of one GPU, oldest first, one point each `step_s`."""

    gpu: str
    step_s: float
    at_s: list[float]
    series: list[Series]


class Reason(msgspec.Struct, frozen=True):
    """Why a place, or a group of them, cannot take a request; `lasting` when an empty one could not either."""

    where: str
    text: str
    lasting: bool = False


class Explanation(msgspec.Struct, frozen=True):
    """Why a workload waits or is placed where it is: the answer first, then each place.

    `why` are sentences for one that has a place. For one that has none there are `reasons`, `nearest` (the smallest
    change that would help) and `ways` (that one and others, as sentences).
    """

    name: str
    sentence: str
    why: list[str] = []
    reasons: list[Reason] = []
    nearest: str = ""
    ways: list[str] = []


class Trial(msgspec.Struct, frozen=True):
    """A dry run: where a request would be placed now, why, and what would be left; nothing is reserved."""

    fits: bool
    sentence: str
    policy: str
    pieces: list[Piece] = []
    before: list[Gpu] = []
    after: list[Gpu] = []
    why: list[str] = []
    reasons: list[Reason] = []
    nearest: str = ""
    ways: list[str] = []
