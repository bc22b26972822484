"""Scenes for the tests of expected future fill: small clusters, and both forms of the inner loops."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from plain_kernels import PlainKernels

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement import kernels as loops
from aliquot.placement.asks import Ask, Shape
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.kernels import ANY_MODEL, VISIT, Kernels, Records

MakeCluster = Callable[..., Cluster]


def cluster_of(*nodes: tuple[str, int, int], memory_mib: int = 1 << 20, device_mib: int = 16000) -> Cluster:
    """Nodes of (model, GPUs, CPU in milli)."""
    return Cluster(
        [
            NodeSpec(
                f"n{i}",
                tuple(Device(g, GpuUuid(f"GPU-{i}-{g}"), model, device_mib) for g in range(gpus)),
                cpu_milli,
                memory_mib,
                rank=i,
            )
            for i, (model, gpus, cpu_milli) in enumerate(nodes)
        ]
    )


def visits(*sequences: Sequence[Shape]) -> Records:
    """Sequences of arrivals for a future; all models allowed."""
    rows = [[(s.cpu_milli, s.milli, s.rest_milli, s.whole, ANY_MODEL) for s in sequence] for sequence in sequences]
    return np.array(rows, dtype=VISIT)


class Feed:
    """Pods that arrive one by one at a decider, and stay."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.placed = 0

    def __call__(self, ask: Ask) -> Placement | None:
        found = self.decider.decide(ask)
        if not isinstance(found, Placement):
            return None
        self.placed += 1
        self.decider.cluster.reserve(f"pod-{self.placed}", found, ask)
        return found


@pytest.fixture(params=["native", "plain"])
def both(request: pytest.FixtureRequest) -> Kernels:
    """Each form of the inner loops in turn."""
    return loops.kernels() if request.param == "native" else PlainKernels()
