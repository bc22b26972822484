"""Beside a stock plugin that has the node's GPUs: whole ones and parts at once, and GPUs that go back and forth."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.images import EXAMPLE
from cluster.kubelet_node import KubeletNode
from cluster.ours import HOLDERS
from cluster.parts import until
from cluster.whole import Whole, whole
from operating import SharePods, sharepod
from plugins import FOLDER, POD_RESOURCES, DevicePlugin, held_devices, stock_plugin
from scheduling import Pods

STOCK = "nvidia.com/gpu"


class Beside:
    """A node of four V100 that the stock plugin has, with all of Aliquot."""

    def __init__(self, cluster: Whole, stock: DevicePlugin) -> None:
        self.plane = cluster.plane
        self.gpus = cluster.gpus
        self.node = cluster.gpus.node
        self.stock = stock
        self.namespace = ""

    def whole_gpu(self, name: str) -> None:
        """Create a pod that asks the stock plugin for a GPU."""
        limits = {"resources": {"limits": {STOCK: "1"}}}
        self.plane.create_pod(self.namespace, name, EXAMPLE, container=limits)

    def shares(self) -> SharePods:
        """The SharePods of the test's namespace."""
        return SharePods(Pods(self.plane, self.namespace))

    def parts(self, **requests: str) -> None:
        """Create SharePods of these names."""
        template = {"containers": [{"name": "main", "image": EXAMPLE}]}
        self.shares().create(*(sharepod(n, r, template=template) for n, r in requests.items()))

    def said(self, name: str) -> dict[str, Any]:
        """What the program in a pod sees, once it has said it."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"

        def look_at_log() -> dict[str, Any] | None:
            try:
                states = self.plane.api.get(path)["status"].get("containerStatuses", [{"state": {"waiting": {}}}])
            except ApiError:  # the operator has not made it yet
                return None
            log = None if "waiting" in states[0]["state"] else self.plane.api.get(f"{path}/log")
            assert not isinstance(log, str) or not log, f"{name} says: {log}"
            return log

        return until(look_at_log, f"the program in {name}", 60)

    def sees(self, name: str) -> str:
        """The one GPU that the program in a pod sees."""
        (gpu,) = self.said(name)["gpus"]
        return str(gpu["uuid"])

    def held_by_stock(self) -> dict[str, str]:
        """Pod -> GPU, of the stock plugin, by kubelet; holder pods among them."""
        every = held_devices(self.node.path(POD_RESOURCES))
        return {pod: ids.copy().pop() for (_, pod, _, resource), ids in every.items() if resource == STOCK}

    def holders(self) -> dict[str, str]:
        """Holder pod -> the GPU that its annotation tells."""
        path = f"/api/v1/namespaces/{HOLDERS}/pods?labelSelector=aliquot.dev%2Fvgpu"
        items = self.plane.api.get(path)["items"]
        return {i["metadata"]["name"]: i["metadata"].get("annotations", {}).get("aliquot.dev/holds", "") for i in items}

    def offered(self) -> set[str]:
        """The GPUs that the node offers in parts."""
        return {device["uuid"] for device in self.gpus.devices()}

    def agree(self) -> bool:
        """Whether kubelet, the holders' annotations, the node's inventory and its resources say the same."""
        told = set(self.holders().values())
        kept = {gpu for pod, gpu in self.held_by_stock().items() if pod.startswith("aliquot-vgpu-")}
        mib = 16384 * len(kept)
        percent, memory = self.gpus.allocatable()
        return told == kept == self.offered() and (percent, _mib(memory)) == (str(100 * len(kept)), mib)


def _mib(quantity: str) -> int:
    """What a node offers in memory; a node that has not been told of any yet offers none."""
    if not quantity:
        return 0
    return int(quantity.removesuffix("Gi")) * 1024 if quantity.endswith("Gi") else int(quantity) >> 20


@pytest.fixture(scope="module")
def everything(kubelet_node: KubeletNode) -> Iterator[Beside]:
    """All of Aliquot beside the stock plugin."""
    flags = ("--gpus", "coexist")
    with whole(kubelet_node, "v100x4", scheduler_flags=(*flags, "--pool", "hybrid:2"), agent_flags=flags) as cluster:
        machine = Path(cluster.gpus.emulated)
        stock = stock_plugin(kubelet_node.path(FOLDER), cluster.gpus.gpus, machine)
        stock.start()
        try:
            yield Beside(cluster, stock)
        finally:
            stock.stop()


@pytest.fixture
def beside(everything: Beside, namespace: str) -> Beside:
    """The same with nothing held, for pods in a namespace of the test's own."""
    until(lambda: not everything.holders() and not everything.offered(), "the end of the holders")
    everything.namespace = namespace
    return everything


@pytest.mark.timeout(240)
def test_whole_gpus_and_parts_on_one_node(beside: Beside):
    """A whole-GPU pod, three parts on two GPUs, and another whole-GPU pod have all four, seen from inside each; what is
    killed or restarted meanwhile takes nothing away; a GPU that idles goes to the next whole-GPU pod, and at the end
    all four are the stock plugin's."""
    until(lambda: beside.plane.api.get(f"/api/v1/nodes/{beside.node.name}")["status"]["allocatable"].get(STOCK) == "4",
          "the stock plugin's GPUs")  # fmt: skip
    beside.whole_gpu("first")
    first = beside.sees("first")
    assert set() == beside.offered()

    beside.parts(a="0.5", b="0.4", c="0.95")
    seen = {name: beside.sees(name) for name in "abc"}
    assert seen["a"] == seen["b"] and 3 == len({first, *seen.values()})
    assert [8192, 6553] == [beside.said(name)["gpus"][0]["total_mib"] for name in "ab"]
    # Of several that wait at once one may take the GPU that was made for another; what that leaves idle goes back.
    until(lambda: beside.agree() and set(seen.values()) == beside.offered(), "one account of what is held")

    beside.whole_gpu("second")
    beside.whole_gpu("third")
    second = beside.sees("second")
    assert set(beside.gpus.gpus) == {first, second, *seen.values()}

    restarts(beside)
    beside.parts(d="0.1")
    assert beside.sees("d") == seen["a"]
    assert {"Pending"} == {beside.plane.pod(beside.namespace, "third")["status"]["phase"]}
    running(beside, "first", "second", *"abcd")

    beside.shares().remove("c")
    assert beside.sees("third") == seen["c"]
    until(beside.agree, "one account of what is held")
    assert {seen["a"]} == beside.offered()
    running(beside, "first", "second", *"abd")

    beside.shares().remove(*"abd")
    until(lambda: not beside.holders() and not beside.offered(), "the end of the holders")
    until(beside.agree, "one account of what is held")
    events = beside.plane.api.get(f"/api/v1/namespaces/{beside.namespace}/events")["items"]
    assert [] == [e["message"] for e in events if e["reason"] in ("GpuTakenAway", "GpuUnregisteredProcess")]


def restarts(beside: Beside) -> None:
    """The stock plugin, the agent and kubelet die and come back, one after the other and all at once."""
    before = (beside.held_by_stock(), beside.holders())
    beside.stock.stop()
    beside.stock.start()
    beside.gpus.agent.kill()
    beside.gpus.agent.start()
    until(beside.agree, "one account after the agent's restart")
    registered = beside.stock.registrations
    beside.plane["kubelet"].kill()
    beside.plane["kubelet"].start()
    until(lambda: beside.stock.registrations > registered, "the stock plugin's registration")
    until(beside.agree, "one account after kubelet's restart")
    assert before == (beside.held_by_stock(), beside.holders())


def running(beside: Beside, *names: str) -> None:
    """These pods run, and did from the beginning."""
    for name in names:
        status = beside.plane.pod(beside.namespace, name)["status"]
        assert "Running" == status["phase"]
        assert 0 == status["containerStatuses"][0]["restartCount"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_holder_that_somebody_deletes_is_told(beside: Beside):
    """Who deletes a holder pod gives its GPU back under those who are on it: the node offers it no more, and their pods
    are told."""
    beside.parts(a="0.5")
    gpu = beside.sees("a")
    (holder,) = beside.holders()

    beside.plane.api.call("DELETE", f"/api/v1/namespaces/{HOLDERS}/pods/{holder}", {"gracePeriodSeconds": 0})

    def told() -> list[str]:
        events = beside.plane.api.get(f"/api/v1/namespaces/{beside.namespace}/events")["items"]
        return [e["message"] for e in events if e["reason"] == "GpuTakenAway"]

    (message, *_) = until(told, "the event")
    assert f"container main: the holder pod of {gpu} is gone, so others may be given it" == message
    beside.shares().remove("a")


@pytest.mark.slow
def test_a_label_alone_gets_nobody_onto_a_gpu(beside: Beside):
    """A pod with a holder's label in its author's own namespace keeps its GPU for itself."""
    body = {
        "metadata": {"name": "mine", "labels": {"aliquot.dev/vgpu": "mine", "aliquot.dev/webhook": "ignore"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": EXAMPLE, "resources": {"limits": {STOCK: "1"}}}],
        },
    }
    beside.plane.api.create(f"/api/v1/namespaces/{beside.namespace}/pods", body)

    assert beside.sees("mine") in beside.gpus.gpus
    assert set() == beside.offered()
    notes = beside.plane.pod(beside.namespace, "mine")["metadata"].get("annotations", {})
    assert "aliquot.dev/holds" not in json.dumps(notes)
