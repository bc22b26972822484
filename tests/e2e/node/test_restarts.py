"""Parts die and come back in every order; what runs keeps running and keeps what it was given."""

from typing import Any

import pytest
from cluster.parts import until
from node_scene import LONG, Scene

from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.requests import Slice

CHECKPOINT = "/var/lib/aliquot/node-checkpoint.json"


def restarts(scene: Scene, name: str) -> int:
    """How often the pod's container was started anew."""
    return scene.plane.pod(scene.namespace, name)["status"]["containerStatuses"][0]["restartCount"]


def charged(scene: Scene, name: str) -> int:
    """Nanoseconds of GPU time that a pod's tenant was ever charged."""
    every = [tenant for gpu in scene.status().gpus for tenant in gpu.tenants]
    return sum(tenant.charged_ns for tenant in every if tenant.name == f"{scene.namespace}/{name}/main")


def computes(scene: Scene, name: str) -> bool:
    """Whether the pod's program uses the GPU now."""
    before = charged(scene, name)
    return bool(until(lambda: charged(scene, name) > before, f"{name} to compute"))


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(["agent"], marks=LONG),
        pytest.param(["kubelet"], marks=LONG),
        ["agent", "kubelet"],
        pytest.param(["kubelet", "agent"], marks=LONG),
    ],
    ids=lambda order: "-".join(order),
)
def test_killed_parts_come_back_to_what_was(scene: Scene, order: list[str]):
    """After a kill of agent, kubelet or both, in the order in which they are started again, the pod goes on with its
    tenant, and the next pod gets its share."""
    scene.create("old", {"main": scene.slice(0, 300, mib=2048)})
    scene.told("old")
    parts = {"agent": scene.agent, "kubelet": scene.plane["kubelet"]}
    before = scene.registrations()

    for name in order:
        parts[name].kill()
    for name in order:
        parts[name].start() if name == "kubelet" else parts[name].launch()
    # Before that, kubelet's word about the node is that of its earlier life, and a pod that comes then fails for good.
    until(lambda: scene.registrations() > before, "the plugin's registration")
    until(scene.fit, "a fit agent")
    scene.create("new", {"main": scene.slice(1, 300, mib=1024)})

    assert ([scene.gpus[1]], 1024) == (scene.told("new")["uuids"], scene.told("new")["total_mib"])
    assert computes(scene, "old")
    assert 0 == restarts(scene, "old")
    assert {f"{scene.namespace}/old/main", f"{scene.namespace}/new/main"} == scene.tenants()


@pytest.mark.parametrize("lost", ["kubelet's", pytest.param("both", marks=LONG)])
def test_what_runs_keeps_its_share_when_kubelet_lost_its_checkpoint(scene: Scene, lost: str):
    """An agent that starts beside a kubelet that has forgotten its devices, and perhaps without its own checkpoint,
    leaves tenants, files and the use of the GPU as they were."""
    scene.create("runs", {"main": scene.slice(0, 300)})
    scene.told("runs")
    specs, kubelet = scene.specs(), scene.plane["kubelet"]

    kubelet.kill()
    scene.node.path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint").unlink()
    kubelet.start()
    scene.agent.kill()
    if lost == "both":
        scene.node.path(CHECKPOINT).unlink()
    before = scene.registrations()
    scene.agent.start()

    assert {f"{scene.namespace}/runs/main"} == scene.tenants()
    assert lost == "both" or specs == scene.specs()
    assert computes(scene, "runs")
    assert [] == scene.events("GpuShareMissing")
    until(lambda: scene.registrations() > before, "the plugin's registration")
    until(scene.fit, "a fit agent")
    scene.create("next", {"main": scene.slice(1, 300)})
    assert [scene.gpus[1]] == scene.told("next")["uuids"]
    assert {f"{scene.namespace}/runs/main", f"{scene.namespace}/next/main"} == scene.tenants()


def test_a_full_disk_stops_new_shares_and_nothing_else(scene: Scene):
    """When the checkpoint cannot be written nothing new is given, both resources are withdrawn until it can be, and
    what runs goes on."""
    scene.create("runs", {"main": scene.slice(0, 300)})
    scene.told("runs")
    with scene.full_disk():
        scene.create("late", {"main": scene.slice(0, 300)})
        until(lambda: scene.phase("late") == "Failed", "kubelet's refusal")
        until(lambda: scene.allocatable()[0] == "0" and scene.allocatable()[1] in ("", "0"), "both withdrawn")
        assert computes(scene, "runs")
    until(scene.fit, "a fit agent")
    scene.create("next", {"main": scene.slice(0, 300)})
    assert [scene.gpus[0]] == scene.told("next")["uuids"]


def test_an_agent_that_starts_on_a_full_disk_goes_on(scene: Scene):
    """An agent killed and started on a full disk looks after what runs, says once why it gives nothing new, and gives
    again when there is room; `doctor --node` names the disk."""
    scene.create("runs", {"main": scene.slice(0, 300)})
    scene.told("runs")
    with scene.full_disk():
        scene.agent.kill()
        scene.agent.launch()
        until(lambda: " ready " in scene.agent.log.read_text().rpartition("part=driver")[2], "a ready agent")
        until(lambda: scene.allocatable()[0] == "0" and scene.allocatable()[1] in ("", "0"), "both withdrawn")
        assert computes(scene, "runs") and scene.agent.running
        said = scene.agent.log.read_text().rpartition("part=driver")[2]
        assert 1 == said.count("unfit") and "No space left on device" in said
        assert {f"{scene.namespace}/runs/main"} == scene.tenants()
    until(scene.fit, "a fit agent")
    scene.create("next", {"main": scene.slice(0, 300)})
    assert [scene.gpus[0]] == scene.told("next")["uuids"]
    assert computes(scene, "runs")


def test_pods_that_are_deleted_leave_nothing(scene: Scene):
    """Deleted before it is bound, while it waits, while it runs, by force, or after it ended: no trace is left."""
    whole = {"main": scene.slice(0, 1000, mib=8192)}
    scene.create("unbound", whole, bind=False)
    scene.create("ended", {"main": scene.slice(1, 100)}, "/bin/true")
    scene.create("runs", whole, "/bin/sleep", "1000")
    scene.plane.wait_running(scene.namespace, "runs")
    until(lambda: scene.phase("ended") == "Succeeded", "the end of `ended`")
    scene.create("waits", whole, "/bin/sleep", "1000")
    until(lambda: scene.events("GpuShareWaits"), "`waits` to wait")
    assert {f"{scene.namespace}/runs/main"} == scene.tenants()

    for name in ("unbound", "waits", "ended"):
        scene.delete(name)
    scene.create("forced", {"main": scene.slice(1, 500)}, "/bin/sleep", "1000")
    scene.plane.wait_running(scene.namespace, "forced")
    path = f"/api/v1/namespaces/{scene.namespace}/pods/forced"
    scene.plane.api.call("DELETE", path, {"gracePeriodSeconds": 0})
    scene.delete("runs")

    until(lambda: not scene.tenants() and not scene.specs() and not scene.held(), "no trace")


@LONG
def test_after_a_reboot_pods_of_a_controller_have_their_share_again(scene: Scene):
    """With everything stopped and started on the same disk, and what lies below /run gone. Kubelet asks for devices
    anew: if no plugin has registered yet it fails the pod for good, so it is replaced and nothing is left over of the
    first one; else its container starts again with the share it had."""
    plan = {"main": scene.slice(1, 300, mib=2048)}
    scene.create("stays", plan, replicas=1)
    first = bound(scene, plan, "")
    before = scene.registrations()

    scene.plane.reboot()
    scene.node.start_parts()
    scene.arbiter.start()
    scene.agent.start()
    until(lambda: scene.registrations() > before, "the plugin's registration", 60)
    second = until(lambda: replaced_or_restarted(scene, first), "a pod of the set after the reboot", 60)
    if second != first:
        assert second == bound(scene, plan, first)

    until(lambda: {f"{scene.namespace}/{second}/main"} == scene.tenants(), "its share, and no other")
    assert computes(scene, second)
    assert 1 == len(scene.specs()) == len(scene.held())


def replaced_or_restarted(scene: Scene, first: str) -> str:
    """The pod of the set that is not `first`, or `first` if its container was started again; empty before."""
    for pod in scene.pods_of("stays"):
        name, told = str(pod["metadata"]["name"]), pod["status"].get("containerStatuses", ())
        if name != first or any(c["restartCount"] and "running" in c["state"] for c in told):
            return name
    return ""


def bound(scene: Scene, plan: dict[str, Slice], but: str) -> str:
    """Binds the pod of the set that is not called `but`, and waits until its program runs; its name."""

    def look() -> dict[str, Any] | None:
        return next((p for p in scene.pods_of("stays") if p["metadata"]["name"] != but), None)

    pod = until(look, "a pod of the set", 60)
    name = pod["metadata"]["name"]
    given = {key: ContainerPlan((piece,)) for key, piece in plan.items()}
    scene.bind(name, pod["metadata"]["uid"], PodPlan(scene.node.name, given))
    assert [plan["main"].gpu] == scene.told(name)["uuids"]
    return str(name)


@LONG
def test_an_agent_killed_amid_a_start_starts_it_again(scene: Scene):
    """Killed after Allocate and before the container was ready to be made, the agent's next life gives the share."""
    scene.arbiter.pause()
    scene.create("amid", {"main": scene.slice(1, 300, mib=2048)})
    until(lambda: scene.held().get(("amid", "main")), "its ids")
    scene.agent.kill()
    scene.arbiter.resume()

    scene.agent.start()

    assert ([scene.gpus[1]], 2048) == (scene.told("amid")["uuids"], scene.told("amid")["total_mib"])
