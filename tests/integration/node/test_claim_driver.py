"""What the agent prepares for claims, beside pods with extended resources, without a cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from kubelet_stand_in import StartError
from node_room import NODE, Room

from aliquot.kube.claims import DRIVER, RESOURCE_CLAIMS, ResourceClaim, device_name, holder_of
from aliquot.kube.errors import NotFound
from aliquot.kube.names import PLAN
from aliquot.kube.objects import OwnerReference, Pod, Resource
from aliquot.kube.plan import read_plan, write_plan
from aliquot.model.errors import AliquotError
from aliquot.node import claims as module
from aliquot.node.allocation.outcomes import WAITS_S
from aliquot.node.claims import ClaimDriver
from aliquot.node.kubelet_api import dra_pb2
from aliquot.node.machine import NodeOffer
from aliquot.node.provisioner import TenantProvisioner

CONTROLLER = OwnerReference("apps/v1", "ReplicaSet", "r", "uid-r", controller=True)


class Crash(BaseException):
    """The agent is killed here."""


class ClaimRoom(Room):
    """A node whose agent serves claims; `stored` are those of the API server, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Any] = {}
        self.written: list[dict[str, Any]] = []
        self.driver = self.do(self._serve())

    async def _serve(self) -> ClaimDriver:
        self.allocations.resizes._api = cast("Any", self)
        background = lambda _, work: self._background.append(asyncio.get_running_loop().create_task(work))  # noqa: E731
        return ClaimDriver(self.settings, cast("Any", self), self.allocations, background)

    async def find(self, resource: Resource[Any], name: str, *, namespace: str) -> Any:
        """As an Api; a pod is stored beside the claims."""
        return self.stored.get(name if resource is RESOURCE_CLAIMS else f"pod {name}")

    async def get(self, resource: Resource[Any], name: str, *, namespace: str) -> ResourceClaim:
        if (found := await self.find(resource, name, namespace=namespace)) is None:
            raise NotFound(f"{name} is not there")
        return cast("ResourceClaim", found)

    async def apply(self, resource: Resource[Any], body: dict[str, Any], *, manager: str, sub: str) -> None:
        """As an Api: a patch of a claim's status."""
        assert (RESOURCE_CLAIMS, "aliquot-node", "status") == (resource, manager, sub)
        self.written.append(msgspec.json.decode(msgspec.json.encode(body)))

    def claim(self, name: str, *gpus: int, milli: int = 0, parameters: Any = None) -> None:
        """An allocated claim of the pod of its name: whole GPUs, or a share of one."""
        consumed = {"compute": str(milli // 10), "memory": "1Gi"}
        share = {"shareID": f"share-{name}", "consumedCapacity": consumed} if milli else {}
        devices = [device_name(self.machine.gpus[gpu].uuid, shared=milli > 0) for gpu in gpus]
        results = [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": device, **share} for device in devices]
        config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}] if parameters else []
        body = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"claim-{name}"},
            "status": {"allocation": {"devices": {"results": results, "config": config}},
                       "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]},
        }  # fmt: skip
        self.stored[name] = msgspec.json.decode(msgspec.json.encode(body), type=ResourceClaim)

    def prepare(self, name: str, *others: str) -> Any:
        """Kubelet's call for the claims of a pod; its answer for the first."""
        asked = [dra_pb2.Claim(namespace="ns", name=each, uid=f"claim-{each}") for each in (name, *others)]
        request = dra_pb2.NodePrepareResourcesRequest(claims=asked)
        return self.do(self.driver.NodePrepareResources(request, None)).claims[f"claim-{name}"]

    def unprepare(self, name: str) -> str:
        """Kubelet's call for one claim; the error in its answer."""
        asked = dra_pb2.Claim(namespace="ns", name=name, uid=f"claim-{name}")
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[asked])
        return str(self.do(self.driver.NodeUnprepareResources(request, None)).claims[asked.uid].error)

    def restart(self) -> None:
        """A new agent on what the last one left."""
        old = self.provisioner
        self.provisioner = TenantProvisioner(
            NODE, NodeOffer(self.machine), self.settings.tenants, self.folder, old.driver
        )
        self.do(self.allocations.resources.close())

        async def start() -> None:
            self.allocations = self.agent_allocations(self.settings, self.provisioner)
            await self.allocations.recover()
            self.provisioner.offer.withheld = ""
            self.driver = await self._serve()

        self.do(start())

    def specs(self) -> list[str]:
        """The CDI files."""
        return [path.name for path in (self.folder / "cdi").glob("*.json")]

    def milli(self) -> dict[str, int]:
        """What is reserved of each GPU, at the node's ledger."""
        found: dict[str, int] = dict.fromkeys((gpu.uuid for gpu in self.machine.gpus), 0)
        for tenant in self.provisioner.tenants.values():
            for piece in tenant.plan.slices:
                found[piece.gpu] += piece.request_milli
        return found


@pytest.fixture
def room() -> Iterator[ClaimRoom]:
    """A node with two emulated V100."""
    with ClaimRoom.opened() as made:
        yield made


def test_a_claim_gives_what_was_allocated(room: ClaimRoom):
    """Each device of the answer names the one CDI device of the share, also when kubelet asks again; the claim's status
    says what became of it; Unprepare leaves nothing, also the second time."""
    room.claim("a", 1, milli=300, parameters={"limit": "0.5", "memoryLimit": "75%"})
    room.claim("b", 0, 1)

    first, again = room.prepare("a"), room.prepare("a")
    (device,) = first.devices
    assert (first, "share-a", "gpu", "") == (again, device.share_id, device.request_names[0], first.error)
    assert {"ns/a/a": (room.machine.gpus[1].uuid, 1024)} == room.tenants()
    assert [12288] == [t.record.gpus[0].max_memory_mib for t in room.provisioner.tenants.values()]
    assert "ALIQUOT_TENANT=ns/a/a" in room.edits(device.cdi_device_ids[0])["env"]
    assert {"request": "0.30", "limit": "0.50"}.items() <= room.written[0]["status"]["devices"][0]["data"].items()
    assert ["", ""] == [room.unprepare("a"), room.unprepare("a")]
    whole = room.prepare("b")
    assert [room.machine.gpus[0].uuid.lower(), room.machine.gpus[1].uuid.lower()] == [
        d.device_name for d in whole.devices
    ]
    assert 1 == len({d.cdi_device_ids[0] for d in whole.devices})
    assert "" == room.unprepare("b")
    assert ({}, [], 0) == (room.tenants(), room.specs(), len(list(room.allocations.records)))


def test_a_claim_is_resized_while_it_is_used(room: ClaimRoom):
    """A later plan on the claim changes the share as it runs, and the claim's status says that it is in force; it stays
    with another pod of the claim and after a restart, and a new allocation begins with its own size."""
    room.claim("a", 0, milli=300)
    first = room.prepare("a")

    def resize(milli: int, generation: int, allocation: str = "share-a") -> list[int]:
        """What the tenant has, after a plan of this size."""
        holder = holder_of(room.stored["a"])
        assert holder is not None
        plan = read_plan(holder.metadata.annotations)
        assert plan is not None
        after = plan.resized({"a": tuple(msgspec.structs.replace(s, request_milli=milli) for s in plan.slices)})
        before = {"a": plan.containers["a"].slices}
        later = msgspec.structs.replace(after, generation=generation, before=before, allocation=allocation)
        room.stored["a"].metadata.annotations[PLAN] = write_plan(later)
        room.allocations.resizes.claims = cast("Any", [room.stored["a"]])
        room.do(room.allocations.resizes.check())
        return sorted(set(room.milli().values()) - {0})

    assert [600] == resize(600, 1)
    assert {"request": "0.60", "applied": '{"g":1}'}.items() <= room.written[-1]["status"]["devices"][0]["data"].items()
    assert first == room.prepare("a")
    room.restart()
    assert [600] == sorted(set(room.milli().values()) - {0})
    assert [600] == resize(900, 2, allocation="another")
    assert [200] == resize(200, 2)
    room.unprepare("a")
    room.stored["a"].metadata.annotations.clear()
    assert "" == room.prepare("a").error
    assert [300] == sorted(set(room.milli().values()) - {0})


def test_a_container_uses_one_claim_of_a_pod(room: ClaimRoom):
    """Two containers may have one each; one that has both is refused with the way out, and nothing is made of it."""
    claims = [{"name": "x", "resourceClaimName": "a"}, {"name": "y", "resourceClaimName": "b"}]
    room.claim("a", 0, milli=300)
    room.claim("b", 0, milli=300)

    def stored(*uses: tuple[str, ...]) -> None:
        containers = [
            {"name": f"c{n}", "resources": {"claims": [{"name": name} for name in names]}}
            for n, names in enumerate(uses)
        ]
        body = {"spec": {"resourceClaims": claims, "containers": containers}}
        room.stored["pod a"] = msgspec.json.decode(msgspec.json.encode(body), type=Pod)

    stored(("x",), ("y", "x"))
    assert "container c1 uses the claims x and y, and has the share of one" in room.prepare("a", "b").error
    assert {} == room.tenants()
    stored(("x",), ("y",))
    assert "" == room.prepare("a", "b").error
    assert 2 == len(room.tenants())


def test_the_nodes_ledger_judges_claims_and_pods_alike(room: ClaimRoom):
    """A claim that nobody upstream checked waits until what a pod holds is free, and so does a pod for a claim."""
    room.started("p", 0, 700, 1024)
    room.claim("a", 0, milli=600)

    refused = room.prepare("a")
    assert "does not fit on" in refused.error and not refused.devices
    room.kubelet.end_pod("ns", "p")
    room.do(room.allocations.unprepare(room.pods.known.pop("uid-p").key))
    assert "" == room.prepare("a").error
    room.pod("q", 0, 700, 1024)
    room.admit("q", 70)
    with pytest.raises(StartError):
        room.start("q")
    room.unprepare("a")
    room.start("q")
    assert ["ns/q/main"] == list(room.tenants())


def test_a_predecessor_that_is_not_unprepared_is_waited_for(room: ClaimRoom):
    """A share that kube-scheduler gave again before kubelet unprepared it is had as soon as it is."""
    room.claim("a", 0, milli=600)
    room.claim("b", 0, milli=600)
    room.prepare("a")

    async def both() -> Any:
        asked = asyncio.create_task(room.driver.prepare("ns", "b", "claim-b"))
        await asyncio.sleep(0.3)
        assert not asked.done()
        await room.driver.unprepare("claim-a")
        return await asked

    assert room.do(both())
    assert ["ns/b/b"] == list(room.tenants())


@pytest.mark.parametrize("controlled", [True, False])
def test_a_pod_does_not_wait_for_ever_for_what_two_schedulers_gave(room: ClaimRoom, controlled: bool):
    """Kubelet asks again and again for a claim on a GPU that others hold; after two minutes the pod is deleted where a
    controller makes another, which is placed anew, and else its event says what to do. One that got it stays."""
    room.driver._settings = msgspec.structs.replace(room.settings, pre_start_wait_s=0.01)
    for name in ("a", "b", "c"):
        room.claim(name, 0 if name < "c" else 1, milli=600)
        room.pod(name, 0, 100, 1)
        pod = room.pods.known[f"pod-{name}"] = room.pods.known.pop(f"uid-{name}")
        pod.metadata.uid, pod.metadata.owner_references = f"pod-{name}", [CONTROLLER] if controlled else []
        pod.spec.containers, pod.metadata.annotations = [], {}
    room.started("p", 1, 700, 1024)

    errors = [room.prepare(name).error for name in ("a", "b", "c")]
    assert [True, False, False] == [error == "" for error in errors]
    room.do(room.allocations.outcomes.replace())
    assert [] == room.answers.deleted + room.answers.messages
    room.kubelet.end_pod("ns", "p")
    room.do(room.allocations.unprepare(room.pods.known.pop("uid-p").key))
    assert "" == room.prepare("c").error
    room.clock.now_s += WAITS_S
    assert "does not fit on" in room.prepare("b").error
    room.do(room.allocations.outcomes.replace())

    (message,) = room.answers.messages
    assert ["ns/b pod-b"] * controlled == room.answers.deleted
    assert ("its controller makes another" if controlled else "delete the pod and create it again") in message


@pytest.mark.parametrize("step", ["provision", "write_spec", "settle", "answer"])
def test_a_crash_between_any_two_steps_is_mended(room: ClaimRoom, monkeypatch: pytest.MonkeyPatch, step: str):
    """Wherever the agent is killed while it prepares, the next one gives the same, and then nothing is left."""
    room.claim("a", 0, milli=600)
    expected = room.prepare("a")
    room.unprepare("a")

    def killed(*given: Any, **_: Any) -> Any:
        for work in filter(asyncio.iscoroutine, given):
            work.close()
        raise Crash

    with monkeypatch.context() as patch:
        if step == "write_spec":
            patch.setattr(module, "write_spec", killed)
        elif step == "answer":
            patch.setattr(room.driver, "_once", killed)
        else:
            patch.setattr(room.provisioner if step == "provision" else room.allocations.records, step, killed)
        with pytest.raises(Crash):
            room.do(room.driver.prepare("ns", "a", "claim-a"))
    room.restart()

    assert {"answer": 1}.get(step, 0) == len(room.specs())
    assert expected == room.prepare("a")
    assert {"ns/a/a"} == room.tenants().keys()
    room.unprepare("a")
    room.restart()
    assert ({}, []) == (room.tenants(), room.specs())


def test_what_kubelet_forgot_is_released(room: ClaimRoom):
    """A claim that is gone, of a pod that is gone, is released by the second check; one of a pod that lives stays."""
    for name in ("a", "b"):
        room.claim(name, 0, milli=300)
        room.prepare(name)
    room.pod("b", 0, 100, 1)
    room.pods.known["pod-b"] = room.pods.known.pop("uid-b")
    room.stored.clear()

    for left in ({"ns/a/a", "ns/b/b"}, {"ns/b/b"}):
        room.do(room.driver.reconcile())
        assert left == room.tenants().keys()


def test_one_gpu_is_never_given_twice(room: ClaimRoom):
    """Claims and pods that come and go at random, of sizes nobody checked, never hold more than a GPU together."""
    chance = random.Random(7)
    held: dict[str, str] = {}
    room.driver._settings = msgspec.structs.replace(room.settings, pre_start_wait_s=0.01)
    refused, kinds = 0, set()
    for number in range(60):
        name, gpu, milli = f"n{number}", chance.randrange(2), chance.choice((200, 300, 600, 1000))
        if held and chance.random() < 0.4:
            gone = chance.choice(sorted(held))
            if held.pop(gone) == "claim":
                room.unprepare(gone)
            else:
                room.provisioner.remove_pod(f"uid-{gone}")
            continue
        kind = chance.choice(("claim", "pod"))
        try:
            if kind == "claim":
                room.claim(name, gpu, milli=milli if milli < 1000 else 0)
                refused += bool(error := room.prepare(name).error)
                if error:
                    continue
            else:
                plan = room.pod(name, gpu, milli, 64)
                room.provisioner.provision(room.pods.known[f"uid-{name}"].key, "main", plan)
            held[name] = kind
            kinds.add(kind)
        except AliquotError:
            refused += 1
        assert max(room.milli().values()) <= 1000
    assert refused > 5 and {"claim", "pod"} == kinds


def test_capacity_that_cannot_be_published_is_logged_once(room: ClaimRoom, capfd: pytest.CaptureFixture[str]):
    """Before all claims are listed it might be what they were grown by; the log has the API server's reason."""
    room.allocations.resizes.claims.counts.last_failure = "claims are forbidden"
    for _ in range(2):
        room.do(room.driver._publish())

    assert 1 == capfd.readouterr().err.count("claims are forbidden")
