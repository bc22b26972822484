"""What cannot be honoured is refused in words, and nothing runs without its share."""

from cluster.parts import until
from node_scene import Scene

from aliquot.kube.names import PLAN_STATUS


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
