"""Pods and a SharePod that grow and shrink while they run, or have memory lent to them, on a real kubelet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.emulated import with_packages
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.ours import agent_pod, surroundings
from cluster.parts import until
from cluster.whole import Whole, whole
from operating import SharePods, reason, sharepod
from scheduling import PROFILE, Pods

import aliquot.memory
from aliquot.kube.names import GPU_MEMORY, GPU_MEMORY_LIMIT, GPU_PERCENT, GPU_REQUEST

READS = """
import time
from cuda.bindings import driver
driver.cuInit(0)
_, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])
driver.cuCtxSetCurrent(context)
while True:
    print(driver.cuMemGetInfo()[2] >> 20, flush=True)
    time.sleep(0.2)
"""
"""Prints the memory of its GPU in MiB, five times a second."""
BORROWS = """
from cuda.bindings import driver
driver.cuInit(0)
_, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])
driver.cuCtxSetCurrent(context)
held, most = [], int(sys.argv[1])

def give_back(size_bytes, _seconds):
    driver.cuCtxSetCurrent(context)
    while size_bytes > 0 and held:
        driver.cuMemFree(held.pop())
        size_bytes -= 1 << 30

if "gives" in sys.argv:
    assert on_call_back(give_back)
while True:
    if len(held) < most:
        error, address = driver.cuMemAlloc(1 << 30)
        held += [address] if not int(error) else []
        most = 0 if len(held) == most else most
    print(len(held), flush=True)
    time.sleep(0.2)
"""
"""Allocates so many GiB, gives them back when it is asked if it `gives`, and prints what it has."""


@pytest.fixture(scope="module")
def cluster(kubelet_node: KubeletNode) -> Iterator[Whole]:
    """All of Aliquot on a node with one emulated V100."""
    with whole(kubelet_node, "v100", agent_flags=("--display-address", "0.0.0.0")) as made:
        yield made


def container(*program: str, **limits: str) -> dict[str, Any]:
    """A container that reads its memory or runs another program, and the volumes that it needs."""
    command = ["python3", "-c", *(program or (READS,))]
    main = {"name": "main", "image": PYTHON, "imagePullPolicy": "Never", "command": command}
    return with_packages(main | {"resources": {"limits": limits}})


def plain_pod(name: str, percent: int, memory: str, *program: str, **notes: str) -> dict[str, Any]:
    """A pod with a part of a GPU."""
    made = container(*program, **{GPU_PERCENT: str(percent), GPU_MEMORY: memory})
    spec = {"schedulerName": PROFILE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    spec |= {"containers": [made["container"]], "volumes": made["volumes"]}
    return {"metadata": {"name": name, "annotations": notes}, "spec": spec}


def says(cluster: Whole, namespace: str, *words: str) -> tuple[int, str]:
    """The exit status of a command of `kubectl aliquot` and what it prints."""
    where = ["-n", namespace, "--kubeconfig", str(cluster.plane.kubeconfig)]
    command = [sys.executable, "-m", "aliquot.cli.kubectl", *words, *where]
    environment = surroundings(HOME=str(cluster.plane.rooms.state))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=90)
    assert done.stdout, done.stderr
    return done.returncode, done.stdout


def resize(cluster: Whole, namespace: str, name: str, *flags: str) -> tuple[int, dict[str, Any]]:
    """The exit status of `kubectl aliquot resize` and its facts."""
    status, text = says(cluster, namespace, "resize", name, *flags, "-o", "json", "--timeout", "30")
    return status, json.loads(text)


def sees(cluster: Whole, namespace: str, name: str) -> int:
    """The last MiB that the program in a pod printed."""
    lines = cluster.plane.kubectl("logs", "-n", namespace, name, "--tail=1", check=False).split()
    return int(lines[-1]) if lines and lines[-1].isdigit() else 0


def shares(cluster: Whole) -> dict[str, tuple[int, int, int]]:
    """Request, limit and memory of the arbiter's tenants, by name."""
    tenants = [tenant for gpu in cluster.gpus.status().gpus for tenant in gpu.tenants]
    return {t.name: (t.request_milli, t.limit_milli, t.memory_limit_mib) for t in tenants}


def offers(cluster: Whole) -> tuple[int, int]:
    """Device ids and MiB that the node offers to kube-scheduler."""
    ids, memory = cluster.gpus.allocatable()
    return int(ids or 0), int(memory or 0) >> 20


def restarts(cluster: Whole, namespace: str, name: str) -> int:
    """How often the pod's container was started anew."""
    return sum(s["restartCount"] for s in cluster.plane.pod(namespace, name)["status"]["containerStatuses"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["pod", "sharepod"])
def test_a_running_pod_grows_and_shrinks_without_a_restart(cluster: Whole, namespace: str, kind: str):
    """From 0.3 to 0.6 and back, with agent and scheduler killed on the way: the program goes on, sees its memory, and
    the node's offer makes up for what kube-scheduler counts."""
    tenant, pods = f"{namespace}/a/main", Pods(cluster.plane, namespace)
    if kind == "pod":
        pods.create(plain_pod("a", 30, "4Gi"))
    else:
        made = container()
        template = {"containers": [made["container"]], "volumes": made["volumes"], "terminationGracePeriodSeconds": 1}
        SharePods(pods).create(sharepod("a", memory="4Gi", template=template))
    until(lambda: sees(cluster, namespace, "a") == 4096, "the program", 90)
    whole_ids, whole_mib = until(lambda: offers(cluster)[0] == 100 and offers(cluster), "the whole offer", 60)
    counted_mib = 4096

    cluster.gpus.agent.kill()
    cluster.plane.kubectl(*grown(kind, namespace, "0.6", "6Gi"))
    until(lambda: "PodResizeInProgress" in note(cluster, namespace, "resize"), "the plan", 30)
    cluster.scheduler.part.kill()
    assert (300, 1000, 4096) == shares(cluster)[tenant]
    cluster.scheduler.part.start()
    cluster.gpus.agent.start()

    until(lambda: shares(cluster).get(tenant) == (600, 1000, 6144), "the larger share", 30)
    until(lambda: sees(cluster, namespace, "a") == 6144, "the larger memory", 30)
    until(lambda: not note(cluster, namespace, "resize"), "the confirmation", 30)
    until(lambda: offers(cluster) == (whole_ids - 30, whole_mib - 6144 + counted_mib), "a smaller offer", 60)

    code, facts = resize(cluster, namespace, f"{kind}/a", "--gpu-request", ".95", "--gpu-mem", "20Gi")
    assert (1, "PodResizePending: Infeasible") == (code, facts["state"][:28]), facts
    code, facts = resize(cluster, namespace, f"{kind}/a", "--gpu-request", ".3", "--gpu-mem", "4Gi")
    assert (0, "resized") == (code, facts["state"]), facts
    code, facts = resize(cluster, namespace, f"{kind}/a", "--gpu-mem-limit", "8Gi")
    assert (0, "resized", "8192Mi") == (code, facts["state"], facts["after"]["memory_limit"]), facts
    code, facts = resize(cluster, namespace, f"{kind}/a", "--gpu-request", ".3")
    assert (0, "unchanged") == (code, facts["state"]), facts
    until(lambda: shares(cluster).get(tenant) == (300, 1000, 4096), "the share from before", 30)
    until(lambda: sees(cluster, namespace, "a") == 4096, "the memory from before", 30)
    until(lambda: offers(cluster) == (whole_ids, whole_mib), "the whole offer again", 60)

    if kind == "sharepod":
        status = until(lambda: settled(cluster, namespace), "the SharePod's status", 30)
        assert {"request": "0.30", "limit": "1.00", "memory": "4.0 GiB"} == status["actual"]
        with pytest.raises(ApiError, match="but for request, limit and memory"):
            cluster.plane.api.merge(f"/apis/aliquot.dev/v1alpha1/namespaces/{namespace}/sharepods/a",
                                    {"spec": {"gpu": {"model": "A100"}}})  # fmt: skip
    assert 0 == restarts(cluster, namespace, "a")


@pytest.mark.timeout(300)
def test_what_does_not_fit_waits_with_the_smallest_change_that_would_help(cluster: Whole, namespace: str):
    """A pod beside another is told what is missing and keeps its share; when the other shrinks it grows by itself, and
    the room that is left is another pod's."""
    pods = Pods(cluster.plane, namespace)
    for name, percent in (("a", 60), ("b", 40)):
        pods.create(plain_pod(name, percent, "2Gi"))
    until(lambda: {sees(cluster, namespace, name) for name in "ab"} == {2048}, "the programs", 90)

    code, facts = resize(cluster, namespace, "b", "--gpu-request", ".5")
    assert 1 == code and facts["state"].startswith("PodResizePending: Deferred: "), facts
    assert "Nearest: ask 0.10 GPU less" in facts["state"]
    until(lambda: "PodResizePending" in [e["reason"] for e in events(cluster, namespace)], "the event", 30)

    assert 0 == resize(cluster, namespace, "a", "--gpu-request", ".2")[0]
    until(lambda: shares(cluster).get(f"{namespace}/b/main", (0,))[0] == 500, "b grows", 30)
    until(lambda: offers(cluster)[0] == 130, "30 ids more than a GPU has", 60)
    pods.create(plain_pod("c", 30, "2Gi"))
    until(lambda: sees(cluster, namespace, "c") == 2048, "the third program", 90)
    assert [200, 500, 300] == [shares(cluster)[f"{namespace}/{name}/main"][0] for name in "abc"]


@pytest.mark.timeout(300)
def test_memory_is_lent_and_called_back_for_the_guarantee_of_a_pod_that_comes_later(cluster: Whole, namespace: str):
    """A pod borrows what is free and gives it back when another uses its guarantee; one that could not give it back
    borrows nothing and is told why. Neither loses its guarantee, and none is started anew."""
    pods, program = Pods(cluster.plane, namespace), Path(aliquot.memory.__file__).read_text() + BORROWS
    with pytest.raises(ApiError, match=rf"{GPU_MEMORY_LIMIT}.* 1.0 GiB is below the memory 2.0 GiB"):
        pods.create(plain_pod("a", 30, "2Gi", program, "1", **{GPU_MEMORY_LIMIT: "1Gi"}))
    agent_pod(cluster.plane, namespace, cluster.gpus.node.name)
    pods.create(plain_pod("a", 30, "2Gi", program, "12", "gives", **{GPU_MEMORY_LIMIT: "14Gi"}))
    pods.create(plain_pod("c", 30, "1536Mi", program, "3", **{GPU_MEMORY_LIMIT: "75%"}))
    until(lambda: sees(cluster, namespace, "a") == 12, "what is lent", 90)
    until(lambda: sees(cluster, namespace, "c") == 1, "what is guaranteed", 90)
    lent, shown = says(cluster, namespace, "explain", "pod", "a")[1], says(cluster, namespace, "top", "--once")[1]
    refused = says(cluster, namespace, "explain", "pod", "c")[1]

    assert "2.0 GiB, lent up to 14.0 GiB" in lent and f"{namespace}/a/main has 10." in lent
    assert f"  {namespace}/a/main has 10." in shown and "GiB lent" in shown
    assert "borrows no memory, for it runs where nothing is parked, and no program of it answers" in refused

    pods.create(plain_pod("b", 40, "8Gi", program, "7"))
    until(lambda: sees(cluster, namespace, "b") == 7, "the guarantee of the one that came later", 90)
    assert 1 <= sees(cluster, namespace, "a") < 12
    code, facts = resize(cluster, namespace, "pod/a", "--gpu-mem-limit", "2Gi")
    assert (0, "resized", "2048Mi") == (code, facts["state"], facts["after"]["memory_limit"])
    assert [0, 0, 0] == [restarts(cluster, namespace, name) for name in "abc"]


def grown(kind: str, namespace: str, request: str, memory: str) -> list[str]:
    """kubectl's words for another size."""
    if kind == "pod":
        return ["annotate", "-n", namespace, "pod", "a", f"{GPU_REQUEST}={request}", f"{GPU_MEMORY}={memory}"]
    patch = json.dumps({"spec": {"gpu": {"request": request, "memory": memory}}})
    return ["patch", "-n", namespace, "sharepod", "a", "--type=merge", "-p", patch]


def note(cluster: Whole, namespace: str, name: str) -> str:
    """An annotation of pod `a`, `aliquot.dev/` being left out."""
    return str(cluster.plane.pod(namespace, "a")["metadata"].get("annotations", {}).get(f"aliquot.dev/{name}", ""))


def settled(cluster: Whole, namespace: str) -> dict[str, Any]:
    """The status of SharePod `a`, once it is about its last generation and says nothing of a resize."""
    now = SharePods(Pods(cluster.plane, namespace))["a"]
    status: dict[str, Any] = now["status"]
    here = status.get("observedGeneration") == now["metadata"]["generation"]
    said = [reason(now, kind)[0] for kind in ("PodResizePending", "PodResizeInProgress")]
    return status if here and not any(said) else {}


def events(cluster: Whole, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return found
