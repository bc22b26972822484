"""A workload: a tenant with its shares and use on all of its GPUs, or one that waits for them.

What a program answers besides its GPUs and workloads: links, events, the last hour, explanations and trials.

Fractions are milli-GPU (1000 = one GPU), memory is MiB, moments are seconds since 1970, durations carry their unit in
the name. A field that is not known is its default. Readers ignore fields they do not know: later versions add some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from aliquot.model.ids import split_key
from aliquot.model.requests import Slice
from aliquot.status.gpus import Gpu, Share

WorkloadKind = Literal["SharePod", "Pod", "ResourceClaim", "Run"]
PENDING: Final = "Pending"
RUNNING: Final = "Running"
COMPLETED: Final = "Completed"
PARKED: Final = "Parked"
"""Its memory is in the host's until it needs its GPU."""
SCHEDULED: Final = "Scheduled"
SHARE_MISSING: Final = "GpuShareMissing"
"""A pod of which a container runs without its share; the reason of the event that its node's agent writes on it."""
_STARTING: Final = (SCHEDULED, "ContainerCreating", "PodInitializing")
_UNDER_WAY: Final = (PENDING, RUNNING, PARKED, COMPLETED, "Terminating", *_STARTING)
_SUMS: Final = [name for name in Share.__struct_fields__ if name.endswith(("_milli", "_mib"))]
"""Amounts of a share, which add up over the GPUs of a workload."""


class ContainerState(msgspec.Struct, frozen=True):
    """What one container does; `reason` is kubelet's word for why it waits or has ended, empty if it has none."""

    stage: Literal["waiting", "running", "terminated"]
    reason: str = ""
    exit_code: int = 0

    @property
    def word(self) -> str:
        """The reason; of one that has ended without one `Completed` or `Error`."""
        if self.reason or self.stage != "terminated":
            return self.reason
        return "Error" if self.exit_code else COMPLETED


def pod_state(
    phase: str,
    containers: Sequence[ContainerState],
    *,
    init: Sequence[ContainerState] = (),
    reason: str = "",
    leaving: bool = False,
) -> str:
    """The state of a pod that has a place in one word, as in kubectl's column STATUS; Running only where it runs.

    `init` are its init containers but for sidecars that have started, `reason` is that of the pod's status, `leaving`
    says that it was deleted. Of several containers the first in trouble decides.

    Source: kubectl, pkg/printers/internalversion/printers.go, printPod.
    """
    if leaving:
        return "Terminating"
    for number, container in enumerate(init):
        if container.stage == "terminated" and not container.exit_code:
            continue
        waits = container.stage == "running" or container.word in ("", "PodInitializing")
        return f"Init:{number}/{len(init)}" if waits else f"Init:{container.word}"
    words = [container.word for container in containers if container.stage != "running" and container.word]
    troubles = [word for word in words if word not in _UNDER_WAY]
    if troubles:
        return troubles[0]
    if any(container.stage == "running" for container in containers):
        return RUNNING
    if words:
        return words[0]
    plain = {"Succeeded": COMPLETED, "Failed": "Error", "Pending": SCHEDULED}
    return reason or ("ContainerCreating" if containers else plain.get(phase, phase))


class Standing(msgspec.Struct, frozen=True):
    """What is known of a workload with a place besides its shares: `message` says why it does not run."""

    kind: WorkloadKind = "Pod"
    state: str = RUNNING
    age_s: float = 0.0
    restarts: int = 0
    message: str = ""


class Piece(msgspec.Struct, frozen=True):
    """A part of one GPU in a plan."""

    node: str
    index: int
    uuid: str
    request_milli: int
    limit_milli: int
    memory_mib: int


class Workload(msgspec.Struct, frozen=True):
    """A SharePod, a pod with a share or a single run: its state as `pod_state` says it, Pending or Parked; its place,
    promise and use.

    `message` says why it waits or does not run. `measured` is false where it has a place and not all of its GPUs are
    measured. `memory_lent_mib` and what follows is as in a share, over all of its GPUs.
    """

    name: str
    kind: WorkloadKind
    state: str
    request_milli: int
    limit_milli: int
    pieces: list[Piece]
    age_s: float
    model: str = ""
    message: str = ""
    restarts: int = 0
    usage_milli: int = 0
    memory_used_mib: int = 0
    memory_mib: int = 0
    kept_percent: float | None = None
    windows: int = 0
    events: list[str] = []
    measured: bool = True
    memory_lent_mib: int = 0
    memory_called_mib: int = 0
    memory_parked_mib: int = 0
    notes: list[str] = []

    @property
    def failing(self) -> bool:
        """Whether it neither runs nor is about to, nor has ended well; what it holds is wasted."""
        initializing = self.state.startswith("Init:") and "/" in self.state
        return self.state not in _UNDER_WAY and not initializing

    @property
    def namespace(self) -> str:
        """The part before the first slash; empty for a run."""
        return split_key(self.name)[0]


def piece_of(gpu: Gpu, part: Slice | Share) -> Piece:
    """A slice of a GPU as in a plan."""
    return Piece(gpu.node, gpu.index, gpu.uuid, part.request_milli, part.limit_milli, part.memory_mib)


def placed(name: str, own: Sequence[tuple[Gpu, Share]], standing: Standing) -> Workload:
    """A workload with what it has and gets over all its GPUs; promises are kept where they are kept on the worst."""
    judged = [share for _, share in own if share.kept_percent is not None]
    worst = min(judged, key=lambda share: share.kept_percent or 0.0, default=None)
    sums: dict[str, Any] = {name: sum(getattr(share, name) for _, share in own) for name in _SUMS}
    return Workload(
        name=name,
        pieces=[piece_of(gpu, share) for gpu, share in own],
        model=own[0][0].model if own else "",
        kept_percent=worst.kept_percent if worst else None,
        windows=worst.windows if worst else 0,
        measured=all(gpu.measured for gpu, _ in own),
        notes=[note for _, share in own for note in share.notes],
        **msgspec.structs.asdict(standing),
        **sums,
    )


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
