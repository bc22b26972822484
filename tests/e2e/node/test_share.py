"""The thread through all parts: a pod with a plan gets exactly what was planned, seen from inside its container."""

import re
import time

import pytest
from cluster.parts import until
from node_scene import LONG, Scene

from aliquot.kube.plan import ContainerPlan


def test_a_container_gets_the_gpu_the_memory_and_the_share_of_its_plan(scene: Scene):
    """A CUDA program sees the planned GPU alone, with the planned memory, and computes by its share beside another."""
    scene.create("a", {"main": scene.slice(1, 400, 1000, 2048)})
    scene.create("b", {"main": scene.slice(1, 600, 1000, 4096)})

    for name, mib in (("a", 2048), ("b", 4096)):
        seen = scene.told(name)
        assert ([scene.gpus[1]], mib) == (seen["uuids"], seen["total_mib"])
        assert 0 < seen["largest_mib"] <= mib
    due = {"a": pytest.approx(0.4, abs=0.02), "b": pytest.approx(0.6, abs=0.02)}
    time.sleep(10)  # a window with both in it; a busy machine may spoil one, so there are more
    until(lambda: due == _usage(scene), "the shares of the plan over a whole window", 40)
    for name in ("a", "b"):
        scene.delete(name)
    until(lambda: not scene.tenants() and not scene.specs(), "no trace of the pods")


def test_every_container_of_a_pod_has_its_own_share(scene: Scene):
    """Init containers, sidecars and several containers get what the plan says for each; an init container may use a
    later one's."""
    plan = {
        "init": ContainerPlan((), uses="one"),
        "side": scene.slice(0, 200, mib=600),
        "one": scene.slice(0, 300, mib=2048),
        "two": scene.slice(1, 300, mib=3072),
    }
    scene.create("several", plan, init={"init": ["python3", "/probe/probe.py", "0"]}, sidecar="side")

    assert ([scene.gpus[0]], 2048) == _what(scene.told("several", "init"))
    assert ([scene.gpus[0]], 600) == _what(scene.told("several", "side"))
    assert ([scene.gpus[0]], 2048) == _what(scene.told("several", "one"))
    assert ([scene.gpus[1]], 3072) == _what(scene.told("several", "two"))


@LONG
def test_an_init_container_and_what_follows_it_are_not_added_up(scene: Scene):
    """Together they would be more than the GPU: the second starts because the first has ended, and is alone then."""
    plan = {"warm": ContainerPlan((scene.slice(0, 800, mib=12288),), init=1), "main": scene.slice(0, 500, mib=8192)}
    scene.create("phases", plan, init={"warm": ["python3", "/probe/probe.py", "0"]})

    assert ([scene.gpus[0]], 12288) == _what(scene.told("phases", "warm"))
    assert ([scene.gpus[0]], 8192) == _what(scene.told("phases", "main"))
    assert {f"{scene.namespace}/phases/main"} == scene.tenants()


def test_more_than_one_gpu(scene: Scene):
    """A container with one GPU and a half of another sees both, the whole one first."""
    scene.create("large", {"main": (scene.slice(1, 1000, mib=16384), scene.slice(0, 500, mib=4096))})

    seen = scene.told("large")

    assert ([scene.gpus[1], scene.gpus[0]], 16384) == _what(seen)


def test_a_container_that_starts_again_has_its_share_again(scene: Scene):
    """Kubelet allocates once, and the second life of a container finds the same GPU and the same memory."""
    ends = ["python3", "/probe/probe.py", "0"]
    scene.create("again", {"main": scene.slice(1, 300, mib=2048)}, *ends, restartPolicy="Always")

    def restarts() -> int:
        (status,) = scene.plane.pod(scene.namespace, "again")["status"].get("containerStatuses") or [{}]
        return status.get("restartCount", 0)

    until(lambda: restarts() >= 1, "a restart", 60)

    assert ([scene.gpus[1]], 2048) == _what(scene.told("again"))
    assert len(scene.specs()) == 1


def test_the_agent_starts_part_by_part(scene: Scene):
    """Each part of the start-up has a name and a line in the log, in the order in which they need each other."""
    parts = re.findall(r" started +part=(\S+) ", scene.agent.log.read_text())

    assert ["driver", "pods", "tenants", "recovery", "device-plugin", "node", "display"] == parts[-8:]
    labels = scene.plane.api.get(f"/api/v1/nodes/{scene.node.name}")["metadata"]["labels"]
    assert ("Tesla-V100-SXM2-16GB", "2") == (labels["aliquot.dev/gpu-model"], labels["aliquot.dev/gpu-count"])


def _usage(scene: Scene) -> dict[str, float]:
    (gpu,) = [gpu for gpu in scene.status().gpus if gpu.tenants]
    return {tenant.name.split("/")[1]: tenant.usage for tenant in gpu.tenants}


def _what(seen: dict) -> tuple[list[str], int]:
    return seen["uuids"], seen["total_mib"]
