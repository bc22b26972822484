"""What placement finds about a request, by code and numbers: what it fails on, what would let it in, why it is placed
where it is. `sentences` has the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from aliquot.placement.asks import Ask

EXCLUSIVE: Final = "exclusive"
UNHEALTHY: Final = "unhealthy"
"""Labels of `Code.NODE_GPUS`: the room that there is, is on GPUs that are exclusive to others, or not well."""


class Code(StrEnum):
    """Stable names of constraints; programs may rely on them."""

    POD_FAULTY = "pod-faulty"
    POD_TOGETHER = "pod-together"
    POD_UNTRIED = "pod-untried"
    POD_GROUP = "pod-group"
    NODE_UNKNOWN = "node-unknown"
    NODE_FAULTY = "node-faulty"
    NODE_CORDONED = "node-cordoned"
    NODE_CPU = "node-cpu"
    NODE_MEMORY = "node-memory"
    NODE_NO_GPU = "node-no-gpu"
    NODE_FEW_GPUS = "node-few-gpus"
    NODE_GPU_SIZE = "node-gpu-size"
    NODE_GPUS = "node-gpus"
    NODE_ONE_MODEL = "node-one-model"
    GPU_UUID = "gpu-uuid"
    GPU_MODEL = "gpu-model"
    GPU_SIZE = "gpu-size"
    GPU_UNHEALTHY = "gpu-unhealthy"
    QUOTA = "quota"
    GPU_AFFINITY = "gpu-affinity"
    GPU_NAMED_ELSEWHERE = "gpu-named-elsewhere"
    GPU_NAME = "gpu-name"
    GPU_EXCLUSION = "gpu-exclusion"
    GPU_ANTI_AFFINITY = "gpu-anti-affinity"
    GPU_WAKE = "gpu-wake"
    GPU_TURNS = "gpu-turns"
    GPU_COMPUTE = "gpu-compute"
    GPU_MEMORY = "gpu-memory"


@dataclass(frozen=True, slots=True)
class QuotaExcess:
    """A namespace that would hold more GPUs of a model (of any where it is empty) than the quota called `quota` allows.

    It holds `held` of `allowed`, and `asked` more were asked. In milli-GPU, or in MiB where it is about their `memory`.
    """

    namespace: str
    model: str
    held: int
    allowed: int
    asked: int
    memory: bool = False
    quota: str = ""
    whole: bool = False
    """Whether GPUs count whole, since what asks for them keeps others off."""
    label: str = ""
    """The kind of label that the quota forbids, where it is that and no amount."""
    kind: str = "namespace"
    """What else has the name of `namespace`: a cohort of namespaces, or an account or a group of a machine."""


@dataclass(frozen=True, slots=True)
class UnmetConstraint:
    """One constraint that fails on a node (`gpu` -1) or on the device of that index; numbers in the code's own unit.

    `node` is empty where many nodes have the same one. `wanted` is the request, for constraints of nodes, `excess` is
    what a quota is exceeded by. `lasting` means that it would fail on an empty node too.
    """

    code: Code
    node: str = ""
    gpu: int = -1
    asked: int = 0
    have: int = 0
    label: str = ""
    lasting: bool = False
    wanted: Ask | None = None
    excess: QuotaExcess | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands against an ask on one node: `reason` for the node, None when it fits; one entry for each device.

    `indices` are the devices' own numbers.
    """

    node: str
    reason: UnmetConstraint | None
    devices: tuple[UnmetConstraint | None, ...]
    indices: tuple[int, ...] = ()

    @property
    def lasting(self) -> bool:
        """Whether the ask would not fit if the node were empty."""
        return self.reason is not None and self.reason.lasting


@dataclass(frozen=True, slots=True)
class EndingTenant:
    """A tenant that has to end, and what it holds of GPUs."""

    name: str
    milli: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to make a request fit: once `ends` have ended and `node` is open, `ask` fits on that node.

    It is asked for less than `asked`, or without one of its wishes, where the two differ. `gpu` is the index of the
    device, -1 where it may be any of the node; `size_milli` is how much is changed.
    """

    kind: Literal["less", "wait", "uncordon", "drop"]
    node: str
    asked: Ask
    ask: Ask
    gpu: int = -1
    ends: tuple[EndingTenant, ...] = ()
    size_milli: int = 0

    @property
    def less_gpu_mib(self) -> int:
        """GPU memory that is asked for no more; of several devices each has its own, so the two do not compare."""
        return self.asked.gpu_mib - self.ask.gpu_mib if self.ask.devices == 1 else 0


@dataclass(frozen=True, slots=True)
class Room:
    """What is unreserved on a device of the placement without the request, and what the request takes of it."""

    node: str
    gpu: int
    free_milli: int
    free_mib: int
    takes_milli: int
    takes_mib: int


@dataclass(frozen=True, slots=True)
class UnmeasuredKernels:
    """A tenant beside it whose kernels were not measured yet, so that waking in time is not certain."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Links:
    """The links between the devices of the placement: (link, how many pairs have it)."""

    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Preference:
    """What the policy looks for, in its own words."""

    policy: str
    takes: str


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Of how many nodes how many have room, and the next best of them; empty where there is no other."""

    nodes: int
    fitting: int
    next_best: str


PlacedBecause = Room | UnmeasuredKernels | Links | Preference | Alternatives
"""One part of the reason for a placement."""
