"""One situation reads the same in both commands, on the pages and in kube-scheduler's events."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from asking import asking
from kit import objects

from aliquot.cli.kubectl.explain import explained, lines_of
from aliquot.cli.kubectl.scene import ClusterScene
from aliquot.kube.custom import GPUQuota
from aliquot.kube.dialects import FOREIGN, read
from aliquot.kube.names import GPUS, PLAN
from aliquot.kube.objects import Node, Pod, PodStatus
from aliquot.kube.plan import ContainerPlan, PodPlan, label_texts, write_plan
from aliquot.kube.requests import BadPod
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, Labels, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec
from aliquot.placement.codes import Code
from aliquot.placement.decide import Decider
from aliquot.placement.explain import explain_with
from aliquot.placement.policy import policy
from aliquot.placement.read_model import shown
from aliquot.scheduler.cluster_source import ClusterSource
from aliquot.scheduler.groups import only as only_node
from aliquot.scheduler.status_source import waiting_pods
from aliquot.scheduler.verdicts import FITS, closed_nodes, indices_of, judge, verdicts
from aliquot.standalone.explaining import explained_on

V100, T4 = "Tesla V100-SXM2-16GB", "Tesla T4"
NONE = Labels()
QUOTA = {"metadata": {"name": "q", "namespace": "lab"}, "spec": {"limits": [{"model": "V100", "gpus": "100m"}]}}


def node(name: str, *models: str, unhealthy: bool = False, **spec: Any) -> Node:
    """A node with GPUs of these models, 16 GiB each."""
    why = {f"GPU-{name}-{i}": "XID 79" for i in range(len(models))} if unhealthy else {}
    return objects.node(name, models, unhealthy=why, spec=spec)


def pod(name: str, *percents: int, memory: str = "", notes: Mapping[str, str] | None = None, on: str = "") -> Pod:
    """A pod of namespace `lab` with a container for each number of hundredths of a GPU."""
    size = {"aliquot.dev/gpu-memory": memory} if memory else {}
    limits = [{"aliquot.dev/gpu-percent": str(percent)} | size for percent in percents]
    containers = [{"name": f"c{i}", "resources": {"limits": each | {"cpu": "2"}}} for i, each in enumerate(limits)]
    annotations = {key if "/" in key else f"aliquot.dev/{key}": value for key, value in (notes or {}).items()}
    meta = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "annotations": annotations}
    return msgspec.convert({"metadata": meta, "spec": {"containers": containers, "nodeName": on}}, Pod)


def holder(gpu: str, milli: int = 800, mib: int = 1024, labels: Labels = NONE, gpu_id: str = "") -> Pod:
    """A pod that has a part of a GPU, `NODE-INDEX`."""
    on = gpu.rpartition("-")[0]
    given = ContainerPlan(
        (Slice(GpuUuid(f"GPU-{gpu}"), milli, 1000, mib),), label_texts=label_texts(labels), gpu_id=gpu_id
    )
    return pod(f"on-{gpu}", milli // 10, notes={PLAN: write_plan(PodPlan(on, {"c0": given}))}, on=on)


@dataclass(frozen=True)
class Situation:
    """Nodes and pods, the pod that waits, and what is said of each node, or of the first GPU of each."""

    code: Code
    says: str
    waits: Pod
    nodes: tuple[Node, ...] = (node("a", V100), node("b", V100))
    holders: tuple[Pod, ...] = ()
    quota: bool = False
    turns: str = ""
    kernel_us: int = 0

    def scene(self) -> ClusterScene:
        """The cluster as the plugin and the scheduler read it."""
        quotas = [msgspec.convert(QUOTA, GPUQuota)] if self.quota else []
        made = ClusterScene(list(self.nodes), [*self.holders, self.waits], [], [], quotas, "lab")
        for each in self.nodes:
            if self.turns:
                made.ledger.cluster.measured.turns[each.metadata.name] = self.turns
        for each in self.holders:
            name = each.spec.node_name
            made.ledger.cluster.measured.kernels[f"GPU-{name}-0"] = {f"{each.metadata.key}/c0": self.kernel_us}
        return made


def full(**fields: Any) -> tuple[Pod, Pod]:
    """A tenant on the GPU of each of two nodes."""
    return holder("a-0", **fields), holder("b-0", **fields)


NODES = [
    Situation(Code.NODE_CORDONED, "takes no pods (cordoned)", pod("w", 30),
              (node("a", V100, unschedulable=True), node("b", V100, unschedulable=True))),
    Situation(Code.NODE_NO_GPU, "has no GPU", pod("w", 30), (node("a"), node("b"))),
    Situation(Code.NODE_FEW_GPUS, "has no GPU of model H900", pod("w", 30, notes={"gpu-model": "H900"})),
    Situation(Code.NODE_FEW_GPUS, "has no GPU with 40.0 GiB", pod("w", 30, memory="40Gi")),
    Situation(Code.NODE_FEW_GPUS, "has 1 GPU, 3 were asked", pod("w", 300)),
    Situation(Code.NODE_GPU_SIZE, "has no GPU with 40.0 GiB of memory, its largest has 16.0 GiB",
              pod("w", 150, memory="40Gi"), (node("a", V100, V100), node("b", V100, V100))),
    Situation(Code.NODE_GPUS, "does not have a GPU with 0.30 and 4.0 GiB free", pod("w", 30, memory="4Gi"),
              holders=full()),
    Situation(Code.NODE_GPUS, "does not have 1 free GPU and a GPU with 0.50 free", pod("w", 150),
              (node("a", V100, V100), node("b", V100, V100)), full()),
    Situation(Code.NODE_GPUS, "does not have a GPU with 0.30 free that its labels allow",
              pod("w", 30, notes={"anti-affinity": "x"}), holders=full(milli=100, labels=Labels(anti_affinity="x"))),
    Situation(Code.NODE_ONE_MODEL, "does not have 2 free GPUs of one model", pod("w", 200),
              (node("a", V100, V100, T4), node("b", V100, V100, T4)), full()),
    Situation(Code.NODE_GPUS, "does not have a GPU with 0.10 free that is not exclusive to others",
              pod("w", 10), holders=full(milli=100, labels=Labels(exclusion="x"))),
    Situation(Code.NODE_GPUS, "does not have a GPU with 0.10 free that is well", pod("w", 10),
              (node("a", V100, unhealthy=True), node("b", V100, unhealthy=True))),
    Situation(Code.QUOTA,
              'namespace "lab" holds 0.00 of V100 GPUs of 0.10 it may have by the quota "q", 0.30 more were asked',
              pod("w", 30), quota=True),
]  # fmt: skip
DEVICES = [
    Situation(Code.GPU_UUID, "is not the one that was named", pod("w", 30, notes={"gpu-uuid": "GPU-c"})),
    Situation(Code.GPU_MODEL, f'is "{V100}", another model was asked', pod("w", 30, notes={"gpu-model": "H900"})),
    Situation(Code.GPU_SIZE, "has 16.0 GiB in all, 40.0 GiB were asked", pod("w", 30, memory="40Gi")),
    Situation(Code.GPU_UNHEALTHY, "is not well", pod("w", 30),
              (node("a", V100, unhealthy=True), node("b", V100, unhealthy=True))),
    Situation(Code.GPU_AFFINITY, 'is not where affinity "x" is', pod("w", 30, notes={"affinity": "x"}),
              (node("a", V100, V100), node("b", V100, V100)), (holder("a-1", labels=Labels(affinity="x")),)),
    Situation(Code.GPU_NAMED_ELSEWHERE, 'is not the one that is called "x"', pod("w", 30, notes={"gpuid": "x"}),
              (node("a", V100, V100), node("b", V100, V100)), (holder("a-1", gpu_id="x"),)),
    Situation(Code.GPU_NAME, "is called by another name", pod("w", 30, notes={"gpuid": "x"}), (node("a", V100),),
              (holder("a-0", milli=100, gpu_id="y"),)),
    Situation(Code.GPU_EXCLUSION, "is exclusive to others", pod("w", 30),
              holders=full(milli=100, labels=Labels(exclusion="x"))),
    Situation(Code.GPU_ANTI_AFFINITY, 'has a resident with anti-affinity "x" too',
              pod("w", 30, notes={"anti-affinity": "x"}), holders=full(milli=100, labels=Labels(anti_affinity="x"))),
    Situation(Code.GPU_WAKE, "with kernels of 900 ms, wake allows", pod("w", 30, notes={"wake": "5ms"}),
              holders=full(milli=100), kernel_us=900_000),
    Situation(Code.GPU_TURNS, "takes turns by kubeshare, wake is kept by fluid alone",
              pod("w", 30, notes={"wake": "5ms"}), turns="kubeshare"),
    Situation(Code.GPU_COMPUTE, "has 0.20 free, 0.30 were asked", pod("w", 30), holders=full()),
    Situation(Code.GPU_MEMORY, "has 2.0 GiB free, 4.0 GiB were asked", pod("w", 30, memory="4Gi"),
              holders=full(milli=100, mib=14 * 1024)),
]  # fmt: skip
HOST = [
    (Code.NODE_CPU, "has 1 CPU free, 2 were asked", asking(rest_milli=300, cpu_milli=2000)),
    (Code.NODE_MEMORY, "has 1.0 GiB of memory free, 2.0 GiB were asked", asking(rest_milli=300, memory_mib=2048)),
]
ELSEWHERE = {Code.POD_FAULTY, Code.POD_TOGETHER, Code.POD_UNTRIED, Code.POD_GROUP, Code.NODE_UNKNOWN, Code.NODE_FAULTY}
"""Codes of which placement alone knows nothing: the scheduler and the plugin have them."""


def command_line(scene: ClusterScene, waits: Pod) -> str:
    """`aliquot explain` on this ledger."""
    asked = read(waits)
    assert asked is not None
    return "\n".join(explained_on(scene.ledger.decider, "w", asked.containers[0].request).lines)


def plugin(scene: ClusterScene, waits: Pod) -> str:
    """`kubectl aliquot explain`."""
    return "\n".join(lines_of(explained(scene, waits)))


def page(scene: ClusterScene, waits: Pod) -> str:
    """The dashboard's page of the waiting pod."""
    waiting = list(waiting_pods([waits], FOREIGN, scene.ledger.known, 0.0))
    asked = read(waits)
    assert asked is not None
    barred = closed_nodes(scene.ledger, asked, waits, scene.nodes, scene.pods)()
    source = ClusterSource(scene.ledger.decider, title="test")
    source.waiting, source.barred = waiting, lambda _: barred
    found = source.explain("lab/w")
    assert found is not None
    return "\n".join(
        [found.sentence, *found.why, *found.ways, *(f"{reason.where} {reason.text}" for reason in found.reasons)]
    )


def events(scene: ClusterScene, waits: Pod, names: list[str]) -> list[str]:
    """What the filter answers for these nodes."""
    asked = read(waits)
    assert asked is not None
    found = verdicts(scene.ledger, asked, names)
    return [{**found.failed, **found.unresolvable}[name] for name in names]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("situation", NODES, ids=lambda s: s.says)
def test_a_node_has_one_reason_in_four_places(situation: Situation, count: int):
    """What kube-scheduler is told of a node is in the answers of both commands and on the page, word for word."""
    made = replace(situation, nodes=situation.nodes[:count], holders=situation.holders[:count])
    names = [each.metadata.name for each in made.nodes]

    assert [made.says] * count == events(made.scene(), made.waits, names)
    assert made.says in plugin(made.scene(), made.waits)
    assert made.says in page(made.scene(), made.waits)
    if not made.quota:  # one machine and saved ledgers have no quotas
        assert made.says in command_line(made.scene(), made.waits)


@pytest.mark.parametrize("situation", DEVICES, ids=lambda s: s.code.value)
def test_a_gpu_has_one_reason_in_three_places(situation: Situation):
    """What stands against a request on a GPU is worded alike by both commands and by the page."""
    for front in (command_line, plugin, page):
        assert situation.says in front(situation.scene(), situation.waits), front.__name__


@pytest.mark.parametrize(("code", "says", "ask"), HOST, ids=[code.value for code, _, _ in HOST])
def test_cpu_and_memory_read_the_same(code: Code, says: str, ask: Ask):
    """Where a ledger has CPU and memory, as in the simulator, the command and the page word their lack alike."""
    spec = NodeSpec("a", (Device(0, GpuUuid("GPU-a-0"), V100, 16384),), cpu_milli=1000, memory_mib=1024)
    found = explain_with(Decider(Cluster([spec]), policy("binpack")), ask)

    assert [code] == [verdict.reason.code for verdict in found.verdicts if verdict.reason]
    assert says in found.lines("w")[0]
    assert says in shown("w", found).sentence


BARS = {
    "taint": ({"taints": [{"key": "kwok", "effect": "NoSchedule"}]}, {}, "has a taint that the pod does not tolerate"),
    "selector": ({}, {"nodeSelector": {"kind": "big"}}, "does not have the label kind=big of the pod's nodeSelector"),
    "affinity": (
        {},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}]}}}},
        "does not meet the pod's required node affinity",
    ),
}  # fmt: skip


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize("percent", [30, 200], ids=["fits", "waits"])
def test_nodes_that_kubernetes_does_not_allow_count_nowhere(bar: str, percent: int):
    """The page and the plugin say the same of a pod that a node with room is closed to, whatever closes it."""
    on_node, on_pod, says = BARS[bar]
    nodes = (node("a", V100), node("b", V100, V100, **on_node))
    waits = msgspec.to_builtins(pod("w", percent))
    waits["spec"] |= on_pod
    if bar == "selector":
        nodes[0].metadata.labels["kind"] = "big"
    told = Situation(Code.NODE_GPUS, "", msgspec.convert(waits, Pod), nodes)
    lines = [front(told.scene(), told.waits).splitlines() for front in (plugin, page)]

    shown = {" ".join(line.split()) for line in lines[0]}
    assert shown >= {*lines[1]}
    assert f"not counted: b: {says}" in "\n".join(lines[1])
    assert not any(f"fits on {where}" in line for line in lines[1] for where in ("b", "GPU 0 of b", "GPU 1 of b"))


def test_no_explanation_has_a_score():
    """Scores of placement are numbers for programs: people read which node is the next best."""
    made = Situation(Code.NODE_GPUS, "", pod("w", 30)).scene()
    told = plugin(made, made.pods[0])

    assert "2 of 2 nodes have room; the next best is b" in told and "score" not in told


def test_a_quota_is_named_once_with_the_smallest_change():
    """A pod over its quota hears of the quota in one sentence and of how much less would fit."""
    quota = {"metadata": {"name": "team", "namespace": "lab"}, "spec": {"limits": [{"gpus": "500m"}]}}
    waits = pod("w", 60)
    scene = ClusterScene([node("a", *[V100] * 4)], [waits], [], [], [msgspec.convert(quota, GPUQuota)], "lab")
    for told in (plugin(scene, waits), page(scene, waits)):
        assert 1 == told.count('by the quota "team"')
        assert "Nearest: ask 0.10 GPU less, and it fits on GPU 0 of a." in told


def test_containers_that_fit_alone_are_told_alike():
    """Where the containers of a pod fit one by one only, the event and the plugin have one sentence."""
    situation = Situation(Code.POD_TOGETHER, "has room for each container alone, not for all", pod("w", 60, 60))
    made = situation.scene()

    assert [situation.says] * 2 == events(made, situation.waits, ["a", "b"])
    assert f"2 nodes: {situation.says}" in plugin(made, situation.waits)


def test_a_pod_that_others_hold_back_is_told_alike():
    """Where GPUs are free and kube-scheduler refuses for other reasons, the page and the plugin repeat what it says."""
    said = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu."}
    waits = msgspec.structs.replace(pod("w", 30), status=msgspec.convert({"conditions": [said]}, PodStatus))
    made = Situation(Code.POD_GROUP, "", waits).scene()

    for front in (plugin, page):
        assert "lab/w waits, though GPUs for it are free now: asks 0.30 GPU." in front(made, waits)
        assert "kube-scheduler reports: 0/2 nodes are available: 2 Insufficient cpu." in front(made, waits)


def test_a_node_with_a_broken_inventory_is_told_alike():
    """A node whose inventory cannot be read has one sentence in the event and in the plugin; an unknown one another."""
    broken = msgspec.convert({"metadata": {"name": "bad", "annotations": {GPUS: "{"}}}, Node)
    situation = Situation(Code.NODE_FAULTY, "takes no pods: ", pod("w", 30), (node("a", V100), broken), full()[:1])
    made = situation.scene()
    (of_broken, of_unknown) = events(made, situation.waits, ["bad", "other"])

    assert of_broken.startswith(situation.says)
    assert f"node bad {of_broken}" in plugin(made, situation.waits)
    assert "has no GPUs that Aliquot knows of" == of_unknown


def test_a_pod_that_contradicts_itself_is_told_alike():
    """The filter and the plugin have the sentence of the fault."""
    wrong = pod("w", 30, notes={"gpu-limit": "0.2"})
    with pytest.raises(BadPod) as fault:
        read(wrong)

    assert str(fault.value) in plugin(Situation(Code.POD_FAULTY, "", wrong).scene(), wrong)


def test_a_group_leaves_out_other_nodes_in_words():
    """A node that a pod of a group is not answered says that its share is elsewhere."""
    made = Situation(Code.POD_GROUP, "", pod("w", 30))
    ledger, asked = made.scene().ledger, read(made.waits)
    assert asked is not None
    judged = judge(ledger, asked, indices_of(ledger, ["a", "b"]), ["a", "b"].__getitem__)
    only = only_node(judged, judged.codes == FITS, 0)

    assert [FITS] == only.codes[:1].tolist()
    assert "is left out: the pod's group has a share for it on another node" == only.sentence(int(only.codes[1]))


def test_every_code_has_a_situation():
    """No code is left out of these tests, and each situation has the code that it stands for."""
    assert {*Code} == {s.code for s in NODES + DEVICES} | {code for code, _, _ in HOST} | ELSEWHERE
    for situation in NODES + DEVICES:
        scene, asked = situation.scene(), read(situation.waits)
        assert asked is not None
        ask = asked.units(scene.ledger.known)[0].ask
        verdict = explain_with(scene.ledger.decider, ask, "lab").verdicts[0]
        codes = {reason.code for reason in (verdict.reason, *verdict.devices) if reason is not None}
        assert situation.code in codes, situation
