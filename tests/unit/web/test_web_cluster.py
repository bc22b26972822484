"""Facts of a cluster's ledger: what its pages show, explain and record."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from asking import asking
from kit.browsing import browser
from work import counted

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, GpuRequest
from aliquot.placement import explain
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec
from aliquot.placement.decide import Decider
from aliquot.placement.policy import policy
from aliquot.placement.reasons import Infeasible
from aliquot.scheduler import cluster_source
from aliquot.scheduler.agents import NodeMeasure, measure_of
from aliquot.scheduler.cluster_source import COPY_S, ClusterSource, LedgerExplanations
from aliquot.status import Pool, QuotaLine, Vgpu, Workload
from aliquot.status.history import RANGES
from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.tenants import PromiseStatus, TenantStatus
from aliquot.topology import Topology
from aliquot.web.history.keeping import LongHistory

NOON = 1_800_000_000 // 900 * 900


class Scene:
    """A cluster with its decider and facts."""

    def __init__(self, nodes: int = 3, gpus: int = 4, recorder: LongHistory | None = None) -> None:
        links = [["X" if i == j else "SYS" for j in range(gpus)] for i in range(gpus)]
        specs = [
            NodeSpec(
                f"node-{n:03d}",
                tuple(Device(g, GpuUuid(f"GPU-{n}-{g}"), "Tesla V100-SXM2-16GB", 16384) for g in range(gpus)),
                cpu_milli=64_000,
                memory_mib=262_144,
                topology=Topology.of(links),
            )
            for n in range(nodes)
        ]
        self.cluster = Cluster(specs)
        self.decider = Decider(self.cluster, policy("binpack"))
        self.facts = ClusterSource(self.decider, title="test", recorder=recorder or LongHistory(None))

    def place(self, tenant: str, **ask: int) -> None:
        """Somebody comes."""
        wanted = asking(**ask)
        found = self.decider.decide(wanted)
        assert not isinstance(found, Infeasible)
        self.decider.commit(tenant, found, wanted)
        self.facts.refresh(time.monotonic())


@pytest.fixture
def scene() -> Scene:
    """Three nodes of four GPUs, one pod with 1.5 and one with 0.3."""
    scene = Scene()
    scene.place("x/big", whole=1, rest_milli=500)
    scene.place("y/small/main", rest_milli=300)
    return scene


class Explaining(Scene):
    """Two nodes of one GPU each, 0.4 left of both, and somebody who explains by their ledger."""

    def __init__(self) -> None:
        super().__init__(nodes=2, gpus=1)
        self.now_s = 0.0
        self.standing_still = False
        self.copies = 0
        self.explaining = LedgerExplanations(self.decider, self.calmly, lambda: self.now_s)
        self.place("x/a", rest_milli=600)
        self.place("x/b", rest_milli=600)

    def calmly(self, work: Callable[[], Any]) -> Any:
        """Run something while the ledger stands still."""
        before, self.standing_still = self.decider.cluster.copy, True
        self.decider.cluster.copy = self.copied  # type: ignore[method-assign]
        try:
            return work()
        finally:
            self.standing_still = False
            self.decider.cluster.copy = before  # type: ignore[method-assign]

    def copied(self) -> Cluster:
        """A copy, counted."""
        self.copies += 1
        return Cluster.copy(self.decider.cluster)


class Recorded(Scene):
    """One GPU with a pod of 0.3, read every ten seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.history = LongHistory(None, wall=lambda: NOON + self.now_s)
        super().__init__(nodes=1, gpus=1, recorder=self.history)
        ask = asking(rest_milli=300)
        self.decider.commit("lab/p/main", self.decider.decide(ask), ask)  # type: ignore[arg-type]
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
            gpu = NodeGpu(uuid="GPU-0-0", busy=0.2, uses=(Use(Owner("lab", "p", "main"), status),))
            report = NodeReport(gpus=(gpu,), window_ms=10_000)
            self.facts.measured = {"node-000": measure_of(report)}
        self.facts.refresh(self.now_s)

    def hours(self):
        """The GPU-hours of a day, after the minute has ended."""
        self.now_s += 60
        self.read(None)
        self.history.settle()
        return self.facts.past.hours(RANGES["24h"])


@pytest.fixture
def explaining() -> Explaining:
    return Explaining()


@pytest.fixture
def recorded() -> Recorded:
    """A cluster that nothing was read of yet."""
    return Recorded()


def test_a_silent_node_has_the_time_of_its_last_answer(scene: Scene):
    """A node says since when it is silent, as long as it is; the time of the whole reading is that of the last one."""
    began_s = time.time()
    scene.facts.silent, scene.facts.answered_at_s = {"node-001": "away"}, {"node-000": 5.0, "node-001": 7.0}
    scene.facts.measured = {"node-000": NodeMeasure({})}
    scene.facts.refresh(time.monotonic())
    told = {node.name: (node.silent, node.silent_since_s) for node in scene.facts.nodes()}

    assert ("", 0.0) == told["node-000"] and ("away", 7.0) == told["node-001"]
    assert "" != told["node-002"][0] and 0.0 == told["node-002"][1]
    assert began_s <= scene.facts.as_of_s <= time.time()


def test_workloads_have_their_pieces(scene: Scene):
    """A pod on several GPUs is one workload with a piece on each."""
    found = {workload.name: workload for workload in scene.facts.workloads()}

    assert {"x/big": 2, "y/small": 1} == {name: len(workload.pieces) for name, workload in found.items()}
    assert (1500, 300) == (found["x/big"].request_milli, found["y/small"].request_milli)


def test_measures_are_laid_over_the_ledger(scene: Scene):
    """What a node measured shows as usage; what was promised stays what the ledger says."""
    gpu = next(gpu for gpu in scene.facts.gpus() if any(s.tenant == "y/small/main" for s in gpu.shares))
    status = TenantStatus("?", 1, 1, 0.25, 0, 512, 1, 0, 0.0, 0.0, 0.0, 0, 1, False)
    now = NodeGpu(uuid=gpu.uuid, busy=0.25, uses=(Use(Owner("y", "small", "main"), status),))
    scene.facts.measured = {gpu.node: NodeMeasure({gpu.uuid: now}, kept={(gpu.uuid, "y/small/main"): (99.0, 7)})}
    scene.facts.refresh(time.monotonic())
    workload = next(workload for workload in scene.facts.workloads() if workload.name == "y/small")

    assert (250, 512, 300, 99.0) == (
        workload.usage_milli, workload.memory_used_mib, workload.request_milli, workload.kept_percent
    )  # fmt: skip


def test_nothing_new_is_no_new_revision(scene: Scene):
    """The revision grows with changes only."""
    before = scene.facts.revision
    scene.facts.refresh(time.monotonic())
    assert before == scene.facts.revision

    scene.place("z/more", rest_milli=100)
    assert before + 1 == scene.facts.revision


def test_quota_and_pool_are_news_too(scene: Scene):
    """A page of the pool is drawn again when a vGPU changes its phase, or a quota its bound, and nothing else did."""
    vgpu = Vgpu("fast", "node-000", "Creating", "", "V100", 0, 0, 0, [])
    for number, change in enumerate(({"vgpus": Pool("on-demand", [vgpu])}, {"quotas": [QuotaLine("x", "any", 0, 0)]})):
        before = scene.facts.revision
        for name, value in change.items():
            setattr(scene.facts, name, value)
        scene.facts.refresh(time.monotonic() + number)

        assert before + 1 == scene.facts.revision
    assert ("fast", "x") == (scene.facts.pool().vgpus[0].name, scene.facts.quota()[0].namespace)


def test_the_history_does_not_ask_the_wall_clock(scene: Scene):
    """Points go on coming when the wall's clock is put back, and are told by it as it is."""
    gpu = scene.facts.gpus()[0]
    scene.facts.measured = {gpu.node: NodeMeasure({gpu.uuid: NodeGpu(uuid=gpu.uuid, busy=0.1)})}
    began_s = time.monotonic() + 1000
    for second in (0.0, 5.0, 10.0):
        scene.facts.refresh(began_s + second)
    history = scene.facts.history(gpu.uuid, 3600)

    assert history is not None and history.at_s[-1] > time.time() + 940
    assert [5.0, 5.0] == [b - a for a, b in zip(history.at_s[-3:], history.at_s[-2:], strict=False)]


def test_what_is_the_programs_own_is_not_shown(scene: Scene):
    """A placeholder of the program keeps its room and is nobody's workload."""
    scene.place("~closed/GPU", rest_milli=200)

    assert "~closed" not in str(scene.facts.gpus()) + str(scene.facts.workloads())


def test_a_waiting_pod_is_explained_by_groups_of_nodes(scene: Scene):
    """Nodes with the same obstacle are one reason."""
    waiting = Workload("z/huge", "Pod", "Pending", 5000, 5000, [], 5.0)
    scene.facts.waiting = [(waiting, [asking(whole=5)])]
    scene.facts.refresh(time.monotonic())
    why = scene.facts.explain("z/huge")

    assert "z/huge" == scene.facts.workloads()[0].name
    assert why is not None and ["3 nodes"] == [reason.where for reason in why.reasons] and why.reasons[0].lasting


def test_a_trial_goes_where_the_decider_would_go(scene: Scene):
    """A dry run has the decider's placement and reserves nothing."""
    before = scene.cluster.free_total.tolist()
    trial = scene.facts.try_request(GpuRequest(400))
    found = scene.decider.decide(asking(rest_milli=400))

    assert not isinstance(found, Infeasible)
    assert [piece.gpu for piece in found.slices] == [piece.uuid for piece in trial.pieces]
    assert before == scene.cluster.free_total.tolist()
    assert 400 == trial.before[0].free_milli - trial.after[0].free_milli


def test_a_node_that_leaves_is_gone(scene: Scene):
    """Nodes come and go with the ledger, cordoned ones are told."""
    scene.cluster.set_cordoned("node-001")
    scene.cluster.remove_node("node-002")
    scene.facts.refresh(time.monotonic())

    assert [("node-000", False), ("node-001", True)] == [(n.name, n.cordoned) for n in scene.facts.nodes()]


def test_the_same_pages_serve_a_cluster(scene: Scene):
    """Every page and path answers from a cluster's ledger as from one machine's."""
    visitor = browser(scene.facts)
    for path in (
        "/",
        "/gpus",
        "/workloads",
        "/workloads/x/big",
        "/topology?node=node-001",
        "/pool",
        "/try?request=0.5",
    ):
        assert 200 == visitor.get(path).status_code, path
    assert len(scene.facts.gpus()) == msgspec.json.decode(visitor.get("/api/v1/gpus").content)["total"]


def test_five_hundred_nodes_are_read_quickly():
    """A look at 500 nodes of 8 GPUs after one change makes a few calls for each GPU."""
    scene = Scene(nodes=500, gpus=8)
    for number in range(300):
        wanted = asking(rest_milli=300)
        found = scene.decider.decide(wanted)
        assert not isinstance(found, Infeasible)
        scene.decider.commit(f"x/p-{number}", found, wanted)
    scene.facts.refresh(0.0)
    scene.place("x/last", rest_milli=100)
    with counted() as calls:
        scene.facts.refresh(1.0)

    assert calls.count < 30 * 4000


def test_what_takes_long_is_found_while_the_ledger_may_move(explaining: Explaining, monkeypatch: pytest.MonkeyPatch):
    """Why something waits is found in a copy, in the thread of who asks; the ledger stands still for the copy only."""
    seen = []

    def explained(decider: Decider, ask: Ask, trial: Cluster, *rest: Any) -> explain.PlacementExplanation:
        seen.append((explaining.standing_still, trial is decider.cluster))
        return explain.explain_waiting(decider, ask, trial, *rest)

    monkeypatch.setattr(cluster_source, "explain_waiting", explained)
    found = explaining.explaining.explain(asking(rest_milli=500))

    assert [(False, False)] == seen
    assert found.placement is None and ["2 nodes"] == [reason.where for reason in found.place_reasons]


def test_what_fits_is_found_in_the_ledger_itself(explaining: Explaining):
    """It is where the decider would put it now, and needs no copy."""
    found = explaining.explaining.explain(asking(rest_milli=300))

    assert found.placement == explaining.decider.decide(asking(rest_milli=300))
    assert found.why and 0 == explaining.copies


def test_many_who_ask_cost_one_copy(explaining: Explaining):
    """However many pages of waiting workloads are open, the ledger is copied once in a while."""
    for second in range(5):
        explaining.now_s = second * 0.9
        for milli in (500, 600, 700):
            explaining.explaining.explain(asking(rest_milli=milli))
    assert 1 == explaining.copies

    explaining.now_s = COPY_S
    explaining.explaining.explain(asking(rest_milli=500))
    assert 2 == explaining.copies


def test_an_answer_is_given_again_until_the_next_copy(explaining: Explaining, monkeypatch: pytest.MonkeyPatch):
    """A page that asks each second costs one explanation in five."""
    asked = []
    plain = explain.explain_waiting
    monkeypatch.setattr(cluster_source, "explain_waiting", lambda *given: asked.append(given) or plain(*given))
    for second in range(5):
        explaining.now_s = float(second)
        explaining.explaining.explain(asking(rest_milli=500))

    assert 1 == len(asked)


def test_an_old_answer_is_news(explaining: Explaining):
    """When an answer is too old to be given again the pages ask anew, also where nothing else has changed."""
    facts = ClusterSource(explaining.decider, title="test")
    facts.waiting = [(Workload("x/c", "Pod", "Pending", 500, 500, [], 0.0), [asking(rest_milli=500)])]
    facts.refresh(0.0)
    facts.explain("x/c")
    before = facts.revision
    facts.refresh(1.0)
    assert before == facts.revision

    facts._explanations._good_until_s = 0.0
    facts.refresh(6.0)
    assert before + 1 == facts.revision
    facts.refresh(7.0)
    assert before + 1 == facts.revision


def test_a_cluster_records_what_agents_measure(recorded: Recorded):
    """Use and waiting are the agent's sums, the promise is the ledger's, and the controller is the pod's."""
    for charged_ms in (100_000, 102_000, 103_000):
        recorded.read(charged_ms)
    hours = recorded.hours()

    assert [("lab", "Job/train", "Tesla V100-SXM2-16GB")] == [
        (line.namespace, line.owner, line.model) for line in hours.lines
    ]
    assert (6000, 3000, 1500) == tuple(round(3_600_000 * value) for value in (
        hours.total.promised, hours.total.used, hours.total.waited
    ))  # fmt: skip


def test_a_node_that_is_not_heard_of_is_a_gap(recorded: Recorded):
    """While an agent does not answer nothing is recorded of its GPUs, neither promise nor use."""
    for charged_ms in (1000, 2000, None, None, 9000, 9500):
        recorded.read(charged_ms)
    hours = recorded.hours()

    assert 20_000 == round(3_600_000 * hours.recorded)
    assert 1500 == round(3_600_000 * hours.total.used)
