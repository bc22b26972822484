"""What a cluster's pages record: the ledger's promises, with what agents measure."""

from __future__ import annotations

import pytest
from asking import asking

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.cluster import Cluster, NodeSpec
from aliquot.placement.decide import Decider
from aliquot.placement.policy import policy
from aliquot.scheduler.agents import measure_of
from aliquot.scheduler.cluster_source import ClusterSource
from aliquot.status.history import RANGES
from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.tenants import PromiseStatus, TenantStatus
from aliquot.web.history.keeping import LongHistory

NOON = 1_800_000_000 // 900 * 900


class Scene:
    """One GPU with a pod of 0.3, read every ten seconds."""

    def __init__(self) -> None:
        device = Device(0, GpuUuid("GPU-0"), "V100", 16384)
        decider = Decider(
            Cluster([NodeSpec("node-0", (device,), cpu_milli=64_000, memory_mib=262_144)]), policy("binpack")
        )
        ask = asking(rest_milli=300)
        decider.commit("lab/p/main", decider.decide(ask), ask)
        self.now_s = 0.0
        self.history = LongHistory(None, wall=lambda: NOON + self.now_s)
        self.facts = ClusterSource(decider, title="test", recorder=self.history)
        self.facts.owner_of = lambda tenant: "Job/train"

    def read(self, charged_ms: int | None) -> None:
        """Ten seconds later the agent says what the pod was charged so far; None: nothing is heard of the node."""
        self.now_s += 10
        self.facts.measured = {}
        if charged_ms is not None:
            status = TenantStatus(
                "lab_p", 300, 1000, 0.2, charged_ms * 1_000_000, 512, 1024, 300, 5.0, 0.0, 100.0, 40, 1, True,
                waited_ns=charged_ms * 500_000, promise=PromiseStatus(windows=40, kept=39),
            )  # fmt: skip
            gpu = NodeGpu(uuid="GPU-0", busy=0.2, uses=(Use(Owner("lab", "p", "main"), status),))
            report = NodeReport(gpus=(gpu,), window_ms=10_000)
            self.facts.measured = {"node-0": measure_of(report)}
        self.facts.refresh(self.now_s)

    def hours(self):
        """The GPU-hours of a day, after the minute has ended."""
        self.now_s += 60
        self.read(None)
        self.history.settle()
        return self.facts.past.hours(RANGES["24h"])


@pytest.fixture
def scene() -> Scene:
    """A cluster that nothing was read of yet."""
    return Scene()


def test_a_cluster_records_what_agents_measure(scene: Scene):
    """Use and waiting are the agent's sums, the promise is the ledger's, and the controller is the pod's."""
    for charged_ms in (100_000, 102_000, 103_000):
        scene.read(charged_ms)
    hours = scene.hours()

    assert [("lab", "Job/train", "V100")] == [(line.namespace, line.owner, line.model) for line in hours.lines]
    assert (6000, 3000, 1500) == tuple(round(3_600_000 * value) for value in (
        hours.total.promised, hours.total.used, hours.total.waited
    ))  # fmt: skip


def test_a_node_that_is_not_heard_of_is_a_gap(scene: Scene):
    """While an agent does not answer nothing is recorded of its GPUs, neither promise nor use."""
    for charged_ms in (1000, 2000, None, None, 9000, 9500):
        scene.read(charged_ms)
    hours = scene.hours()

    assert 20_000 == round(3_600_000 * hours.recorded)
    assert 1500 == round(3_600_000 * hours.total.used)
