"""The records of `/api/v1` and of the pages: one set of plain records for one machine and for a cluster.

Fractions are milli-GPU (1000 = one GPU), memory is MiB, moments are seconds since 1970, durations carry their unit in
the name. A field that is not known is its default. Readers ignore fields they do not know: later versions add some.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from aliquot.model.ids import split_key
from aliquot.model.requests import Enforce
from aliquot.status.sensors import Sensors

GpuState = Literal["whole", "shared", "idle"]
"""Whole: one tenant has all of it; shared: tenants have parts; idle: it has no tenant."""
WorkloadKind = Literal["SharePod", "Pod", "Run"]


class Share(msgspec.Struct, frozen=True):
    """One tenant's part of one GPU: its promise and its use.

    `usage_milli` is charged time over the token window. `kept_percent` is the part of the windows of the last hour in
    which the tenant wanted the GPU and got its request for that time; None while there was no such window. `enforce` is
    what is held of the promise; on whole GPUs it may be less than all, and then usage is what NVML measures.
    """

    tenant: str
    request_milli: int
    limit_milli: int
    usage_milli: int
    memory_mib: int
    memory_used_mib: int
    workload: str = ""
    wait_ms: float = 0.0
    debt_ms: float = 0.0
    quota_ms: float = 0.0
    processes: int = 0
    waiting: bool = False
    kept_percent: float | None = None
    windows: int = 0
    enforce: Enforce = "all"


class Gpu(msgspec.Struct, frozen=True):
    """One GPU with its tenants; `holder` has the token now.

    Where `measured` is false its use is not known, and every measured number here is 0.
    `bypassing` counts programs on it without a share. `sensors` has temperature, power and clocks where they are read.
    """

    uuid: str
    index: int
    node: str
    model: str
    memory_mib: int
    state: GpuState
    free_milli: int
    free_mib: int
    busy_milli: int
    memory_used_mib: int
    shares: list[Share]
    holder: str = ""
    vgpu: str = ""
    emulated: bool = False
    healthy: bool = True
    measured: bool = True
    bypassing: int = 0
    sensors: Sensors | None = None


class Piece(msgspec.Struct, frozen=True):
    """A part of one GPU in a plan."""

    node: str
    index: int
    uuid: str
    request_milli: int
    limit_milli: int
    memory_mib: int


class Workload(msgspec.Struct, frozen=True):
    """A SharePod, a pod with a share or a single run: state, place and promise; `message` says why it waits.

    `measured` is false where it has a place and not all of its GPUs are measured.
    """

    name: str
    kind: WorkloadKind
    phase: str
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

    @property
    def namespace(self) -> str:
        """The part before the first stroke; empty for a run."""
        return split_key(self.name)[0]


class Node(msgspec.Struct, frozen=True):
    """A machine with GPUs, in sums over them; `silent` says why nothing on it is measured, if so.

    `silent_since_s` is the moment of a silent node's last answer, 0 where it has not answered yet.
    """

    name: str
    models: list[str]
    gpus: int
    whole: int
    shared: int
    idle: int
    free_milli: int
    busy_milli: int
    memory_mib: int
    free_mib: int
    ready: bool = True
    cordoned: bool = False
    has_topology: bool = False
    silent: str = ""
    silent_since_s: float = 0.0


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


class Vgpu(msgspec.Struct, frozen=True):
    """A named GPU of the pool."""

    name: str
    node: str
    phase: Literal["Creating", "Active", "Idle", "Deleting"]
    uuid: str
    model: str
    used_milli: int
    memory_mib: int
    memory_used_mib: int
    attached: list[str]


class Pool(msgspec.Struct, frozen=True):
    """The vGPUs, and by which rule GPUs come to the pool and leave it."""

    policy: str
    vgpus: list[Vgpu]


class QuotaLine(msgspec.Struct, frozen=True):
    """A namespace's quota and use of a model; a hard limit of None is no limit."""

    namespace: str
    model: str
    used_milli: int
    used_mib: int
    hard_milli: int | None = None
    hard_mib: int | None = None


class Event(msgspec.Struct, frozen=True):
    """Something that happened; `id` grows."""

    id: int
    at_s: float
    kind: str
    subject: str
    text: str


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
    """Why a workload waits or stands where it does: the answer first, then place by place.

    `why` are sentences for one that has a place, `reasons` and `nearest` (the smallest change that would help) for one
    that has none.
    """

    name: str
    sentence: str
    why: list[str] = []
    reasons: list[Reason] = []
    nearest: str = ""


class AskFor(msgspec.Struct, frozen=True):
    """A request as a person writes it; texts as in a SharePod."""

    request: str = "0.5"
    limit: str = ""
    memory: str = ""
    model: str = ""
    gpu: str = ""
    gpu_id: str = ""
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""


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


class Totals(msgspec.Struct, frozen=True):
    """Totals; of `unmeasured` GPUs the use is not known. `lent_milli` is the use above the users' own requests."""

    gpus: int
    whole: int
    shared: int
    idle: int
    promised_milli: int
    busy_milli: int
    memory_mib: int
    memory_promised_mib: int
    memory_used_mib: int
    running: int
    waiting: int
    kept_percent: float | None
    windows: int
    unmeasured: int = 0
    lent_milli: int = 0
