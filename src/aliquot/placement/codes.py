"""The constraints that a request can fail on, by code and numbers; `sentences` has their words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aliquot.placement.asks import Ask


class Code(StrEnum):
    """Stable names of constraints; programs may rely on them."""

    POD_FAULTY = "pod-faulty"
    POD_TOGETHER = "pod-together"
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
class UnmetConstraint:
    """One constraint that fails on a node (`gpu` -1) or on the device of that index; numbers in the code's own unit.

    `node` is empty where many nodes have the same one. `wanted` is the request, for constraints of nodes. `lasting`
    means that it would fail on an empty node too.
    """

    code: Code
    node: str = ""
    gpu: int = -1
    asked: int = 0
    have: int = 0
    label: str = ""
    lasting: bool = False
    wanted: Ask | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands against an ask on one node: `reason` for the node, None when it fits; one entry for each device."""

    node: str
    reason: UnmetConstraint | None
    devices: tuple[UnmetConstraint | None, ...]

    @property
    def lasting(self) -> bool:
        """Whether the ask would not fit if the node were empty."""
        return self.reason is not None and self.reason.lasting
