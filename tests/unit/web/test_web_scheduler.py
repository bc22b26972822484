"""The scheduler program's facts: its own ledger, its waiting pods, its quotas and vGPUs."""

import asyncio
import json
import math
import socket
import threading
import time
import urllib.request
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

pytest.importorskip("lightkube", reason="the parts for a cluster are not installed: no scheduler to look at")

from kit.objects import node

from aliquot.cli.scheduler_dashboard import dashboard_beside
from aliquot.http.listening import PortTaken
from aliquot.kube.claims import DRIVER, ResourceClaim
from aliquot.kube.custom import VGPU, GPUQuota
from aliquot.kube.dialects import foreign, read
from aliquot.kube.objects import Meta, OwnerReference, Pod
from aliquot.kube.reflector import Change
from aliquot.kube.requests import PodAsk
from aliquot.model.requests import GpuRequest
from aliquot.placement.cluster import Placement
from aliquot.placement.policy import policy
from aliquot.scheduler import cluster_source
from aliquot.scheduler import status_source as web
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.settings import SchedulerSettings
from aliquot.scheduler.status_source import SchedulerSource, waiting_pods
from aliquot.scheduler.status_source import owners as owners_of
from aliquot.status import Explanation, NamespacedView
from aliquot.status.source import totals
from aliquot.status.view import OTHERS
from aliquot.web.pages.overview import alerts

NOW_S = 1_800_000_000.0
MADE = "2027-01-15T07:59:00Z"  # a minute before


def pod(name: str, percent: str, *, message: str = "", **host: str) -> Pod:
    """A pod of namespace `web` that waits; `host` are its limits of CPU and memory."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    document = {
        "metadata": {
            "name": name,
            "namespace": "web",
            "uid": f"uid-{name}",
            "creationTimestamp": MADE,
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": {"aliquot.dev/gpu-percent": percent} | host}}]
        },
        "status": {"phase": "Pending", "conditions": conditions},
    }
    return msgspec.convert(document, Pod)


class Cache(list[Pod]):
    """Pods as the program keeps them."""

    def get(self, key: str) -> Pod | None:
        """By `namespace/name`."""
        return next((pod for pod in self if pod.metadata.key == key), None)


def program(**settings: Any) -> Any:
    """As much of a scheduler program as pages look at: two nodes with two GPUs, somebody on one, two that wait."""
    ledger = Ledger(policy("binpack"))
    nodes = [node(name) for name in ("node-a", "node-b")]
    for each in nodes:
        ledger.node_changed(Change("added", each))
    dialects = foreign()
    quota = {"metadata": {"name": "q", "namespace": "web"}, "spec": {"limits": [{"model": "V100", "gpus": "2.5"}]}}
    attached = {"tenant": "web/on/main", "request": "0.5"}
    vgpu = {
        "metadata": {"name": "fast"},
        "spec": {"nodeName": "node-a"},
        "status": {
            "phase": "Active",
            "uuid": "GPU-node-a-0",
            "attached": [attached],
        },
    }
    return SimpleNamespace(
        ledger=ledger,
        nodes=nodes,
        pods=Cache([pod("waits", "30", message="0/2 nodes are available"), pod("huge", "900")]),
        binder=SimpleNamespace(dialects=dialects),
        operator=SimpleNamespace(
            pool=SimpleNamespace(known=[msgspec.convert(vgpu, VGPU)]), quotas=[msgspec.convert(quota, GPUQuota)]
        ),
        settings=SchedulerSettings(**({"pool": "hybrid:60", "web": "127.0.0.1:0"} | settings)),
    )


def allocate(scheduler: Any, name: str, percent: str, node: str) -> None:
    """A pod gets its place."""
    from aliquot.kube.dialects import read

    asked = read(pod(name, percent), scheduler.binder.dialects)
    assert isinstance(asked, PodAsk)
    scheduler.ledger.allocate(asked, node, 0.0)


def looked(scheduler: Any):
    """Its facts after one look, made and used in a loop of its own."""

    async def main():
        facts = SchedulerSource(scheduler, "test")
        facts.read_program(NOW_S)()
        facts.refresh(NOW_S)
        return facts

    return asyncio.run(main())


def bound(name: str, phase: str, *containers: dict[str, Any]) -> Pod:
    """A pod on `node-a` whose containers kubelet reports so."""
    document = msgspec.to_builtins(pod(name, "50"))
    document["spec"]["nodeName"] = "node-a"
    document["status"] = {"phase": phase, "containerStatuses": list(containers)}
    document["metadata"]["ownerReferences"] = [{"kind": "SharePod", "name": name, "controller": True}]
    return msgspec.convert(document, Pod)


@pytest.mark.parametrize(
    ("state", "phase", "container"),
    [
        ("CrashLoopBackOff", "Running", {"restartCount": 7, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}),
        ("ImagePullBackOff", "Pending", {"state": {"waiting": {"reason": "ImagePullBackOff"}}}),
        ("Error", "Running", {"state": {"terminated": {"reason": "Error", "exitCode": 1}}}),
        ("Running", "Running", {"state": {"running": {}}}),
    ],
)
def test_a_pod_that_does_not_run_is_not_called_running(state: str, phase: str, container: dict[str, Any]):
    """A pod with a place is in the state that kubectl prints, in the list, in the sums and first on the overview."""
    scheduler = program()
    allocate(scheduler, "on", "50", "node-a")
    scheduler.pods.append(bound("on", phase, container))
    facts = looked(scheduler)

    (found,) = (w for w in facts.workloads() if w.pieces)
    runs = state == "Running"
    assert (state, "SharePod", container.get("restartCount", 0)) == (found.state, found.kind, found.restarts)
    assert (int(runs), int(not runs)) == (totals(facts).running, totals(facts).failing)
    first = next(alerts(facts.gpus(), facts.nodes(), facts.workloads()))
    assert runs or ("web/on", True) == (first.subject, first.text.startswith(f"holds 0.50 GPU, does not run: {state}"))


@pytest.mark.parametrize(
    ("expected", "waits", "policy"),
    [
        (4, {"waiting": {"reason": "CrashLoopBackOff"}}, ""),
        (0, {"terminated": {"reason": "Completed", "exitCode": 0}}, ""),
        (4, {"running": {}}, "Always"),
    ],
    ids=["it fails", "it has ended", "it is a sidecar"],
)
def test_restarts_are_counted_as_kubectl_counts_them(expected: int, waits: dict[str, Any], policy: str):
    """Those of an init container count while the pod initializes, and those of a sidecar always."""
    scheduler = program()
    allocate(scheduler, "on", "50", "node-a")
    document = msgspec.to_builtins(bound("on", "Pending", {"restartCount": 0, "state": {"waiting": {}}}))
    document["spec"]["initContainers"] = [{"name": "first", "restartPolicy": policy}]
    document["status"]["initContainerStatuses"] = [
        {"name": "first", "restartCount": 4, "state": waits, "started": policy == "Always"}
    ]
    scheduler.pods.append(msgspec.convert(document, Pod))

    assert [expected] == [w.restarts for w in looked(scheduler).workloads() if w.pieces]


def test_pods_without_a_node_wait():
    """A pod that asks for a GPU and has no node waits, with what kube-scheduler said of it."""
    waiting = {w.name: w for w in looked(program()).workloads() if w.state == "Pending"}

    assert {"web/waits": 300, "web/huge": 9000} == {name: w.request_milli for name, w in waiting.items()}
    assert "0/2 nodes are available" == waiting["web/waits"].message
    assert 60 == waiting["web/waits"].age_s


def test_cpu_and_memory_of_a_waiting_pod_are_not_explained():
    """CPU and memory are kube-scheduler's to count: a pod that requests them is explained by its GPUs alone."""
    scheduler = program()
    wants = pod("with-cpu", "30", cpu="2", memory="4Gi")
    ((_, (ask,)),) = waiting_pods([wants], scheduler.binder.dialects, scheduler.ledger.known, NOW_S)

    assert isinstance(scheduler.ledger.decider.decide(ask), Placement)


def test_a_device_that_leaves_the_pool_is_nobodys():
    """What the program closes has no room and no tenant on the page."""
    scheduler = program()
    scheduler.ledger.close("GPU-node-b-1")
    gpu = next(gpu for gpu in looked(scheduler).gpus() if gpu.uuid == "GPU-node-b-1")

    assert (0, []) == (gpu.free_milli, gpu.shares)


def test_quotas_have_what_is_used_of_them():
    """Each bound is a line with what the namespace holds."""
    scheduler = program()
    allocate(scheduler, "on", "50", "node-a")
    line = looked(scheduler).quota()[0]

    assert ("web", "V100", 500, 2500) == (line.namespace, line.model, line.used_milli, line.hard_milli)


def test_vgpus_are_told_with_their_phase():
    """The pool has each vGPU with its phase and those attached, and the policy's name."""
    pool = looked(program()).pool()
    vgpu = pool.vgpus[0]

    assert ("hybrid:60", "fast", "Active", 500, ["web/on/main"]) == (
        pool.policy, vgpu.name, vgpu.phase, vgpu.used_milli, vgpu.attached
    )  # fmt: skip


async def test_the_pages_run_beside_the_program():
    """In the program's loop the pages are served, look at the ledger by hopping there, and end with it."""
    async with dashboard_beside(program()) as url:
        await asyncio.sleep(0.1)
        paths = ["api/v1/gpus", "api/v1/try?request=0.5", "api/v1/workloads/web/huge/explain"]
        gpus, trial, why = [json.loads(await asyncio.to_thread(fetch, url + path)) for path in paths]

    assert 4 == gpus["total"]
    assert trial["fits"] and 1 == len(trial["pieces"])
    assert why["sentence"].startswith("web/huge waits")


async def test_waiting_pods_are_read_outside_the_programs_loop(monkeypatch: pytest.MonkeyPatch):
    """A backlog of thousands of pods costs the program's loop no more than a look at which of them wait."""
    threads = []
    monkeypatch.setattr(web, "read", lambda *given: threads.append(threading.current_thread()) or read(*given))

    async with dashboard_beside(program()):
        await asyncio.sleep(0.3)

    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("asked_s", "rested_s", "max_s", "looks"),
    [(0.0, 0.0, 5.0, 1), (-math.inf, 0.0, 5.0, 5), (0.0, 3.0, 0.0, 3)],
    ids=["in one second while a page is open", "in five while none is", "in three after a look that took long"],
)
async def test_the_ledger_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, asked_s: float, rested_s: float, max_s: float, looks: int
):
    """A large cluster's pages are renewed less often rather than taking the process."""
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(web, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(web, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    await SchedulerSource._pause(SimpleNamespace(asked_s=asked_s), rested_s, max_s)
    assert [web.READ_S] * looks == waits


async def test_a_hop_that_comes_too_late_is_not_made(monkeypatch: pytest.MonkeyPatch):
    """While the program's loop is busy elsewhere, what nobody waits for any more does not pile up in front of it."""
    monkeypatch.setattr(web, "HOP_S", 0.05)
    made = []
    monkeypatch.setattr(cluster_source, "explain_fitting", lambda *given: made.append(given))

    facts = SchedulerSource(program(), "test")
    asking = asyncio.get_running_loop().run_in_executor(None, facts.explain, "nobody/there")
    asked = asyncio.get_running_loop().run_in_executor(None, facts.try_request, GpuRequest(500))
    time.sleep(0.5)  # busy
    await asyncio.gather(asking, asked, return_exceptions=True)

    assert [] == made


async def test_a_taken_address_is_told_by_its_option():
    """The sentence names --web as it was given."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"^--web 127.0.0.1:{port}: address already in use"):
            async with dashboard_beside(program(web=f"127.0.0.1:{port}")):
                raise AssertionError


async def test_an_administrator_can_leave_names_out():
    """With namespaces set, names of all others are shown to nobody."""
    scheduler = program(web_namespace=("other",))
    allocate(scheduler, "on", "50", "node-a")
    async with dashboard_beside(scheduler) as url:
        await asyncio.sleep(0.1)
        for path in ("api/v1/gpus", "workloads"):
            assert "web/" not in await asyncio.to_thread(fetch, url + path)


def fetch(url: str) -> str:
    """An answer as text."""
    began_s = time.monotonic()
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert time.monotonic() - began_s < 10
        return answer.read().decode()


@pytest.mark.parametrize(
    ("kind", "name", "labels", "expected"),
    [
        ("ReplicaSet", "web-5d4f8c", {"pod-template-hash": "5d4f8c"}, "Deployment/web"),
        ("ReplicaSet", "own", {}, "ReplicaSet/own"),
        ("Job", "train", {}, "Job/train"),
        ("", "", {}, "Pod/p"),
    ],
)
def test_a_pods_hours_are_of_its_controller(kind: str, name: str, labels: dict[str, str], expected: str):
    """A pod counts for what has made it: for the Deployment of its ReplicaSet, and for itself where it has none."""
    owners = [OwnerReference(kind=kind, name=name, controller=True)] if kind else []
    pod = Pod(metadata=Meta(name="p", namespace="lab", labels=labels, owner_references=owners))

    assert expected == owners_of({"lab/p": pod})("lab/p/main")


def test_a_pod_that_is_gone_is_its_own_controller():
    """A tenant whose pod is not known any more is named by its pod."""
    assert "Pod/p" == owners_of({})("lab/p/main")


def claimed(name: str, *held: str) -> ResourceClaim:
    """A claim of 0.60 that the pod of its name uses; allocated on `held` devices of node-a, where it is prepared."""
    exactly = {"deviceClassName": "gpu-share.aliquot.dev", "capacity": {"requests": {"compute": "60"}}}
    capacity = {"compute": "60", "memory": "4Gi"}
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": "node-a", "device": device, "consumedCapacity": capacity}
        for device in held
    ]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": name}, {"resource": "pods", "name": "second"}],
        "devices": [{"driver": DRIVER, "data": {"tenant": "web/first/gpu"}}],
    }
    body = {
        "metadata": {"name": name, "namespace": "web", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    return msgspec.convert(body | ({"status": status} if held else {}), ResourceClaim)


def test_claims_are_workloads_with_the_use_that_their_node_reports():
    """An allocated claim is on its GPU with its pods and their state, measured by the name in its status; one that
    is not allocated waits with what kube-scheduler says of its pod."""
    scheduler = program()
    for claim in (claimed("held", "gpu-node-a-0-shared"), claimed("late")):
        scheduler.ledger.claim_changed(Change("added", claim))
    for name, where in (("held", {"nodeName": "node-a"}), ("late", {})):
        uses = {"spec": {"resourceClaims": [{"name": "c", "resourceClaimName": name}], **where}}
        status = {"phase": "Running", "conditions": [{"type": "PodScheduled", "message": "cannot allocate"}]}
        scheduler.pods.append(
            msgspec.convert({"metadata": {"name": name, "namespace": "web"}, "status": status} | uses, Pod)
        )
    facts = looked(scheduler)
    (share,) = (share for gpu in facts.gpus() for share in gpu.shares)
    late, held = (w for w in facts.workloads() if w.kind == "ResourceClaim")

    assert ("web/claim:held/held", 600, 4096, ["held", "second"]) == (
        share.tenant, share.request_milli, share.memory_mib, share.pods,
    )  # fmt: skip
    assert ("Running", "Pending", 600, "cannot allocate") == (held.state, late.state, late.request_milli, late.message)
    assert "web/first/gpu" == facts.reported_as(share.tenant)
    assert "Pod/held" == facts.owner_of(share.tenant)
    (gpu,) = (gpu for gpu in facts.gpus() if gpu.shares)
    assert facts.names_on(gpu.uuid) == {"web/first/gpu": share.tenant}


def test_a_claim_of_another_namespace_is_not_named():
    """Neither its name nor its pods are shown to who may not list its namespace."""
    scheduler = program()
    scheduler.ledger.claim_changed(Change("added", claimed("held", "gpu-node-a-0-shared")))
    shown = NamespacedView(looked(scheduler), frozenset({"lab"}))
    (share,) = (share for gpu in shown.gpus() for share in gpu.shares)

    assert (True, []) == (share.hidden, share.pods) and "held" not in share.tenant
    told = shown._nameless(Explanation("x", "waits", why=["has web/claim:held/held"])).why
    assert ["has others"] == [text.replace(OTHERS, "others") for text in told]
