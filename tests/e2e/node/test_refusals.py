"""What cannot be honoured is refused in words, and nothing runs without its share."""

import msgspec
from cluster.parts import until
from node_scene import Scene

from aliquot.kube.names import PLAN_STATUS
from aliquot.kube.objects import Pod
from aliquot.kube.plan import PodPlan
from aliquot.status.workloads import SHARE_MISSING


def test_a_pod_without_a_plan_does_not_start(scene: Scene):
    """A pod that another scheduler bound waits with a sentence that says so."""
    scene.create("unplanned", {"main": scene.slice(0, 300)}, bind=False)
    path = f"/api/v1/namespaces/{scene.namespace}/pods/unplanned"
    target = {"metadata": {"name": "unplanned"}, "target": {"kind": "Node", "name": scene.node.name}}
    scene.plane.api.create(f"{path}/binding", target)

    (message, *_) = until(lambda: scene.events("GpuShareRefused"), "the refusal")

    assert "it was not scheduled by Aliquot" in message
    status = until(lambda: scene.plane.api.get(path)["metadata"].get("annotations", {}).get(PLAN_STATUS), "the status")
    assert status.startswith("main: refused")
    assert "Pending" == scene.phase("unplanned")


def test_a_plan_that_does_not_fit_waits_until_it_does(scene: Scene):
    """The node's ledger is the last line of defence: beside the tenants there must be room, else the start waits."""
    scene.create("first", {"main": scene.slice(0, 700)}, "/bin/sleep", "1000")
    scene.plane.wait_running(scene.namespace, "first")

    scene.create("second", {"main": scene.slice(0, 600)})
    (message, *_) = until(lambda: scene.events("GpuShareWaits"), "why it waits")

    assert "does not fit" in message
    scene.delete("first")
    assert [scene.gpus[0]] == scene.told("second")["uuids"]


def test_an_unhealthy_gpu_is_withdrawn_and_comes_back(scene: Scene):
    """After a critical XID a GPU's ids and memory are withdrawn, an application's XID changes nothing."""
    faults = scene.node.path("/run/aliquot/emulated/faults")
    faults.write_text("xid 0 13\nxid 1 79\n")

    until(lambda: scene.allocatable()[0] == "100", "one GPU less")
    # The driver's wish for a reset is seen by polling and may come before the XID, which says why.
    until(lambda: scene.gpus[1] in [d["uuid"] for d in scene.devices() if d.get("unhealthy") == "XID 79"], "the XID")
    until(lambda: scene.allocatable()[1] in ("16Gi", str(16 << 30)), "its memory less")
    faults.unlink()
    until(lambda: scene.allocatable()[0] == "200", "both GPUs")


def test_both_resources_are_withdrawn_without_an_arbiter(scene: Scene):
    """While nobody keeps the promise nothing is given, and what runs keeps running."""
    scene.create("runs", {"main": scene.slice(0, 300)})
    scene.told("runs")

    scene.arbiter.stop()
    until(lambda: scene.allocatable()[0] == "0" and scene.allocatable()[1] in ("", "0"), "both withdrawn")
    scene.arbiter.start()
    until(scene.fit, "both back")

    assert "Running" == scene.phase("runs")
    assert {f"{scene.namespace}/runs/main"} == scene.tenants()


def test_a_container_that_slipped_through_is_found(scene: Scene):
    """A pod that kubelet started without any device, its plugin gone and its checkpoint lost, is told."""
    scene.agent.kill()
    kubelet = scene.plane["kubelet"]
    kubelet.stop()
    (scene.node.path("/var/lib/kubelet/device-plugins") / "kubelet_internal_checkpoint").unlink()
    status = f"/api/v1/nodes/{scene.node.name}/status"
    scene.plane.api.merge(status, {"status": {"capacity": {"aliquot.dev/gpu-percent": "200"}}})
    kubelet.start()
    scene.create("slips", {"main": scene.slice(0, 300)}, "/bin/sleep", "1000")
    scene.plane.wait_running(scene.namespace, "slips")

    scene.agent.start()

    (message, *_) = until(lambda: scene.events("GpuShareMissing"), "the finding")
    assert "container main is without its share: kubelet gave it no device" == message

    def state() -> str:
        return msgspec.convert(scene.plane.pod(scene.namespace, "slips"), Pod).state

    until(lambda: state() == SHARE_MISSING, "the state")


def test_a_controllers_pod_that_can_not_be_served_is_replaced(scene: Scene):
    """A pod whose plan cannot be honoured is deleted where a controller makes another, a bare one is only told."""
    wrong = PodPlan("another-node", {})
    scene.create("set", {"main": scene.slice(0, 300)}, replicas=1)
    scene.create("bare", {"main": scene.slice(0, 300)}, bind=False)
    (first,) = until(lambda: scene.pods_of("set"), "the pod of the set")
    for pod in (first, scene.plane.pod(scene.namespace, "bare")):
        scene.bind(pod["metadata"]["name"], pod["metadata"]["uid"], wrong)

    until(lambda: scene.events("GpuShareReplaced"), "the replacement")
    until(lambda: [p for p in scene.pods_of("set") if p != first and _other(p, first)], "another pod")

    assert "is for node another-node" in scene.events("GpuShareReplaced")[0]
    until(lambda: scene.events("GpuShareFailed"), "the report")
    assert "Pending" == scene.phase("bare")


def _other(pod: dict, than: dict) -> bool:
    return pod["metadata"]["uid"] != than["metadata"]["uid"]
