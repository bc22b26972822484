"""The vGPU pool over the real ledger, with an API server that keeps vGPUs and pods."""

import asyncio
import copy
import datetime
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from kit.objects import node

from aliquot.kube.custom import VGPU, VGPUS, SharePod
from aliquot.kube.dialects import read
from aliquot.kube.errors import AlreadyExists
from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT, HOLDS, PLAN, POOL
from aliquot.kube.names import VGPU as HOLDER
from aliquot.kube.objects import Node, Pod, Resource
from aliquot.kube.plan import write_plan
from aliquot.kube.reflector import Change
from aliquot.kube.requests import PodAsk
from aliquot.placement.policy import policy
from aliquot.scheduler.ledger import Ledger, NodeFull
from aliquot.scheduler.operator.owners import Coexist, Own
from aliquot.scheduler.operator.sharepods import SharePods
from aliquot.scheduler.operator.vgpus import VgpuPool, WriteThroughCache, name_for

NOW = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)


class Store:
    """An API server's objects by plural and name; every change of a vGPU is `told` at once."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, dict[str, Any]]] = {"vgpus": {}, "pods": {}, "sharepods": {}}
        self.version = 0
        self.told: Callable[[Change[VGPU]], None] = lambda change: None
        self.shown: dict[str, VGPU] = {}

    def put(self, plural: str, document: dict[str, Any]) -> dict[str, Any]:
        """Keep a new version."""
        self.version += 1
        document["metadata"] |= {"resourceVersion": str(self.version)}
        document["metadata"].setdefault("uid", f"uid-{self.version}")
        self.kept[plural][document["metadata"]["name"]] = document
        if plural == "vgpus":
            self.tell(document["metadata"]["name"])
        return document

    def tell(self, name: str) -> None:
        """The watch shows a vGPU as it is now."""
        document, old = self.kept["vgpus"].get(name), self.shown.pop(name, None)
        if document is not None:
            self.shown[name] = msgspec.convert(copy.deepcopy(document), VGPU)
            self.told(Change("modified" if old else "added", self.shown[name], old))
        elif old is not None:
            self.told(Change("deleted", old, old))

    def all(self, resource: Resource[Any]) -> list[Any]:
        """Every object of a kind."""
        return [msgspec.convert(copy.deepcopy(d), resource.type) for d in self.kept[resource.plural].values()]

    async def find(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Any:
        """One object or None."""
        found = self.kept[resource.plural].get(name)
        return msgspec.convert(copy.deepcopy(found), resource.type) if found else None

    get = find

    async def create(self, resource: Resource[Any], body: dict[str, Any], *, namespace: str = "") -> Any:
        """A new object."""
        if body["metadata"]["name"] in self.kept[resource.plural]:
            raise AlreadyExists("it is there")
        return msgspec.convert(self.put(resource.plural, copy.deepcopy(body)), resource.type)

    async def patch(
        self, resource: Resource[Any], name: str, body: dict[str, Any], *, sub: str, namespace: str = ""
    ) -> Any:
        """A merge patch of the status."""
        document = self.kept[resource.plural][name]
        status = document.get("status", {}) | body["status"]
        document["status"] = {key: value for key, value in status.items() if value is not None}
        return msgspec.convert(self.put(resource.plural, document), resource.type)

    async def delete(self, resource: Resource[Any], name: str, *, namespace: str = "", uid: str = "") -> bool:
        """Delete it if it is that very one."""
        assert not uid or self.kept[resource.plural][name]["metadata"]["uid"] == uid
        gone = self.kept[resource.plural].pop(name, None)
        self.tell(name)
        return gone is not None


class Watch:
    """What the watch has shown."""

    def __init__(self, store: Store) -> None:
        self.get = store.shown.get
        self._shown = store.shown
        self.looked_through = 0

    def __iter__(self) -> Iterator[VGPU]:
        self.looked_through += 1
        return iter(self._shown.values())


class Clock:
    """A clock that the test turns."""

    now = NOW

    def wall(self) -> datetime.datetime:
        return self.now


class Scene:
    """PlainLedger of one node with two GPUs, and a pool over them."""

    def __init__(self, text: str = "on-demand", *, coexist: bool = False) -> None:
        self.store, self.clock, self.waiting = Store(), Clock(), set[str]()
        self.ledger = Ledger(policy("binpack"))
        self.held = [] if coexist else ["GPU-0", "GPU-1"]
        self.tell_node()
        self.offers({})
        owner = (
            Coexist(self.ledger, self.store, lambda: [self.node], self.pods, namespace="sys")  # type: ignore[arg-type]
            if coexist
            else Own(self.ledger)
        )
        self.watch = Watch(self.store)
        self.pool = VgpuPool(
            self.store,  # type: ignore[arg-type]
            self.ledger,
            owner,
            text,
            WriteThroughCache(self.watch),
            lambda name: name == "n",
            lambda name: name in self.waiting,
            self.clock,  # type: ignore[arg-type]
        )
        self.store.told = self.pool.known.changed

    def offers(self, ours: dict[str, str]) -> None:
        """Kubelet offers two GPUs of the stock plugin, and of ours so much."""
        status = {"allocatable": {"nvidia.com/gpu": 2, **ours}, "conditions": [{"type": "Ready", "status": "True"}]}
        self.node = msgspec.convert({"metadata": {"name": "n"}, "status": status}, Node)

    def pods(self) -> list[Pod]:
        from aliquot.kube.objects import PODS

        return self.store.all(PODS)

    def tell_node(self) -> None:
        """The agent tells which devices are ours."""
        self.ledger.node_changed(Change("modified", node("n", len(self.held), uuids=self.held)))

    def ask(self, name: str, percent: int, **notes: str) -> PodAsk:
        annotations = {f"aliquot.dev/{key}": value for key, value in notes.items()}
        limits = {"limits": {"aliquot.dev/gpu-percent": percent}}
        metadata = {"name": name, "namespace": "team", "uid": name, "annotations": annotations}
        found = read(
            msgspec.convert({"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": limits}]}}, Pod)
        )
        assert found is not None
        return found

    def bind(self, name: str, percent: int, **notes: str) -> str:
        """A pod is bound; its device."""
        return self.ledger.allocate(self.ask(name, percent, **notes), "n", 0.0).plan.containers["c"].slices[0].gpu

    def end(self, name: str) -> None:
        for allocation in self.ledger.allocations[name]:
            self.ledger.forget(allocation)

    def reconcile(self, name: str) -> None:
        """Look at one vGPU, then at the pool."""
        asyncio.run(self.pool.reconcile(name))
        asyncio.run(self.pool.balance())

    def delete(self, name: str) -> None:
        """Somebody deletes a VGPU object, and the watch tells."""
        del self.store.kept["vgpus"][name]
        self.store.tell(name)

    def phases(self) -> dict[str, str | None]:
        """The phase of each vGPU."""
        return {vgpu.metadata.name: vgpu.status.phase for vgpu in self.store.all(VGPUS)}


def test_a_device_has_one_name_made_from_its_uuid():
    """Two who name it get the same; the vGPU is Active while somebody is on it and goes with the last one."""
    scene = Scene()
    uuid = scene.bind("a", 30)
    names = {asyncio.run(scene.pool.name_device(uuid, "n")) for _ in range(2)}
    assert {name_for(uuid)} == names and {name_for(uuid): "Active"} == scene.phases()

    scene.end("a")
    scene.reconcile(name_for(uuid))
    assert {} == scene.phases()


def test_a_name_that_somebody_gave_takes_the_place_of_the_made_one():
    """An automatic vGPU leaves a device that a SharePod names."""
    scene = Scene()
    uuid = scene.bind("a", 30)
    asyncio.run(scene.pool.name_device(uuid, "n"))
    assert uuid == scene.bind("b", 30, gpuid="team")

    assert "team" == asyncio.run(scene.pool.name_device(uuid, "n", "team"))
    scene.reconcile(name_for(uuid))
    assert {"team": "Active"} == scene.phases() and "team" == asyncio.run(scene.pool.name_device(uuid, "n"))


def test_one_vgpu_is_looked_at_without_looking_through_all():
    """With thousands of them, a look at each would be a look at each for each: neither name nor device needs that."""
    scene = Scene()
    uuid = scene.bind("a", 30)
    name = asyncio.run(scene.pool.name_device(uuid, "n"))
    asyncio.run(scene.pool.reconcile(name))
    asyncio.run(scene.pool.name_device(uuid, "n"))

    assert 0 == scene.watch.looked_through


def test_hybrid_keeps_an_idle_name_for_its_time():
    """Idle at once, Idle after 9 s, gone after 10 s; whoever comes in between makes it Active again."""
    scene = Scene("hybrid:10")
    uuid = scene.bind("a", 30)
    name = asyncio.run(scene.pool.name_device(uuid, "n"))
    scene.end("a")
    scene.reconcile(name)
    scene.clock.now = NOW + datetime.timedelta(seconds=9)
    scene.reconcile(name)
    assert {name: "Idle"} == scene.phases()
    scene.bind("b", 30)
    scene.reconcile(name)
    assert {name: "Active"} == scene.phases()
    scene.end("b")
    scene.reconcile(name)
    scene.clock.now = NOW + datetime.timedelta(seconds=18)
    scene.reconcile(name)
    assert {name: "Idle"} == scene.phases()
    scene.clock.now = NOW + datetime.timedelta(seconds=19)
    scene.reconcile(name)
    assert {} == scene.phases()


def test_reservation_has_so_many_ready():
    """Both GPUs are named ahead and stay idle; a third there is not, which is no error."""
    scene = Scene("reservation:3")
    asyncio.run(scene.pool.balance())

    assert {name_for("GPU-0"): "Idle", name_for("GPU-1"): "Idle"} == scene.phases()


def test_a_vgpu_of_a_person_is_never_deleted():
    """One without our label gets an idle device and stays, whatever the pool's policy says."""
    scene = Scene()
    scene.store.put("vgpus", {"metadata": {"name": "mine"}, "spec": {"nodeName": "n"}})
    scene.reconcile("mine")
    scene.reconcile("mine")

    assert {"mine": "Idle"} == scene.phases()


def held(scene: Scene) -> str:
    """Coexist: one vGPU is made, its holder gets a GPU and the agent tells it; the vGPU's name."""
    vgpu = asyncio.run(scene.pool.one_more())
    assert vgpu is not None
    name = vgpu.metadata.name
    asyncio.run(scene.pool.reconcile(name))
    (pod,) = scene.store.kept["pods"].values()
    assert {"nvidia.com/gpu": 1, "memory": "32Mi"} == pod["spec"]["containers"][0]["resources"]["limits"]
    pod["metadata"]["annotations"] = {HOLDS: "GPU-7"}
    pod["spec"]["nodeName"] = "n"
    scene.held = ["GPU-7"]
    scene.tell_node()
    asyncio.run(scene.pool.reconcile(name))
    return name


def test_a_holder_goes_before_its_name_and_its_device_is_closed_first():
    """Deleting: nobody can be bound to the device; its object stays until the agent has taken the device out."""
    scene = Scene(coexist=True)
    name = held(scene)
    assert {name: "Idle"} == scene.phases()
    scene.reconcile(name)

    assert {name: "Deleting"} == scene.phases() and {} == scene.store.kept["pods"]
    with pytest.raises(NodeFull):
        scene.bind("late", 10)
    scene.reconcile(name)
    assert {name: "Deleting"} == scene.phases()
    scene.held = []
    scene.tell_node()
    scene.reconcile(name)
    assert {} == scene.phases() and set() == scene.ledger.closed


def test_a_gpu_that_comes_back_is_open_again():
    """The holder of an orphan goes, later another holder is given the very same GPU: pods may be bound to it."""
    scene = Scene(coexist=True)
    scene.delete(held(scene))
    asyncio.run(scene.pool.reconcile("n-1"))
    assert {} == scene.store.kept["pods"]
    scene.held = []
    scene.tell_node()
    name = held(scene)
    asyncio.run(scene.pool.reconcile(name))

    assert "GPU-7" == scene.bind("a", 10)
    scene.reconcile(name)
    assert {name: "Active"} == scene.phases()


@pytest.mark.parametrize("deleted", [True, False])
def test_a_holder_stays_under_its_tenants_while_the_inventory_is_missing(deleted: bool):
    """The ledger has no GPU of a node whose agent says nothing; the plan of a pod that runs there names it."""
    scene = Scene(coexist=True)
    name = held(scene)
    holder = next(iter(scene.store.kept["pods"]))
    plan = write_plan(scene.ledger.allocate(scene.ask("a", 10), "n", 0.0).plan)
    scene.store.put("pods", {"metadata": {"name": "a", "annotations": {PLAN: plan}}, "spec": {"nodeName": "n"}})
    scene.ledger.node_changed(Change("modified", msgspec.convert({"metadata": {"name": "n"}}, Node)))

    if deleted:
        scene.delete(name)
    else:
        scene.store.kept["vgpus"][name]["status"]["phase"] = "Deleting"
        scene.store.tell(name)
    asyncio.run(scene.pool.reconcile(name))

    assert holder in scene.store.kept["pods"]


def test_the_pod_of_a_sharepod_is_made_when_the_node_offers_its_gpu():
    """A pod made before kubelet offers the share would wait out kube-scheduler's back-off; its vGPU stays meanwhile."""
    scene = Scene(coexist=True)
    name = held(scene)
    spec = {"gpu": {"request": "0.3", "memory": "1Gi"}, "template": {"spec": {"containers": [{"name": "main"}]}}}
    made = scene.store.put("sharepods", {"metadata": {"name": "s", "namespace": "team"}, "spec": spec})
    made["status"] = {"gpuID": name, "phase": "Pending"}

    def sharepod() -> SharePod:
        return msgspec.convert(scene.store.kept["sharepods"]["s"], SharePod)

    naming: Any = lambda vgpu: [sharepod()] if sharepod().status.gpu_id == vgpu else []  # noqa: E731
    scene.pool.waited_for = lambda vgpu: sharepod().status.gpu_id == vgpu
    looks = SharePods(scene.store, scene.ledger, scene.pool, lambda key: sharepod(), lambda key: None, naming)  # type: ignore[arg-type]

    for ours in ({}, {GPU_PERCENT: "100"}, {GPU_PERCENT: "29", GPU_MEMORY: "16Gi"}):
        scene.offers(ours)
        asyncio.run(looks.reconcile("team/s"))
        asyncio.run(scene.pool.balance())
        assert ("s" not in scene.store.kept["pods"], {name: "Idle"}) == (True, scene.phases())
    scene.offers({GPU_PERCENT: "30", GPU_MEMORY: "1Gi"})
    asyncio.run(looks.reconcile("team/s"))
    asyncio.run(scene.pool.balance())

    assert ("s" in scene.store.kept["pods"], {name: "Idle"}) == (True, scene.phases())


def test_who_was_bound_first_keeps_the_gpu():
    """A pod comes onto the idle device before the pool closes it: the vGPU is Active and its holder stays."""
    scene = Scene(coexist=True)
    name = held(scene)
    scene.bind("first", 10)
    asyncio.run(scene.pool.balance())

    assert 1 == len(scene.store.kept["pods"])
    scene.reconcile(name)
    assert {name: "Active"} == scene.phases()


def test_a_new_leader_closes_what_was_being_given_back():
    """The ledger is new and knows of no closed device; before it may bind, the device is closed again."""
    scene = Scene(coexist=True)
    name = held(scene)
    scene.store.kept["vgpus"][name]["status"]["phase"] = "Deleting"
    scene.store.put("vgpus", scene.store.kept["vgpus"][name])
    scene.pool.recover()

    with pytest.raises(NodeFull):
        scene.bind("late", 10)


def test_a_holder_without_a_name_keeps_the_gpu_of_those_on_it():
    """The VGPU object is deleted by somebody: with a pod on the device it is made again, else the holder goes too."""
    scene = Scene(coexist=True)
    name = held(scene)
    scene.bind("a", 10)
    scene.delete(name)
    asyncio.run(scene.pool.reconcile(name))
    assert {name: "Active"} == scene.phases() and 1 == len(scene.store.kept["pods"])

    scene.end("a")
    scene.delete(name)
    asyncio.run(scene.pool.reconcile(name))
    assert {} == scene.store.kept["pods"] and {} == scene.phases()


def test_there_are_no_more_holders_than_gpus():
    """Two GPUs of the stock plugin, one taken by a stranger: one vGPU is made, a second is not."""
    scene = Scene(coexist=True)
    stranger = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}], "nodeName": "n"}
    scene.store.put("pods", {"metadata": {"name": "theirs"}, "spec": stranger})
    made = [asyncio.run(scene.pool.one_more()) for _ in range(2)]

    assert made[0] is not None and "automatic" == made[0].metadata.labels[POOL]
    assert made[1] is None


def test_labels_of_others_make_nobody_a_holder():
    """A pod of a tenant with the label of holder pods changes nothing: no more vGPUs are made than GPUs are left."""
    scene = Scene(coexist=True)
    for number in (1, 2, 3):
        forged = {"name": f"f{number}", "namespace": "tenant", "labels": {HOLDER: f"n-{number}"}}
        scene.store.put("pods", {"metadata": forged, "spec": {"nodeName": "n"}})
    made = [asyncio.run(scene.pool.one_more()) for _ in range(3)]

    assert [True, True, False] == [vgpu is not None for vgpu in made]


def test_a_closed_device_stays_closed_when_its_node_changes():
    """The ledger writes a node in anew when its inventory changes; what was closed is closed again, until reopened."""
    scene = Scene()
    assert scene.ledger.close("GPU-0")
    scene.held = ["GPU-0"]
    scene.tell_node()
    with pytest.raises(NodeFull):
        scene.bind("a", 10)
    scene.ledger.reopen("GPU-0")

    assert "GPU-0" == scene.bind("a", 10)
    assert not scene.ledger.close("GPU-0")
