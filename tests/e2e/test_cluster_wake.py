"""A pod that is to wake in time, from its annotation to the arbiter's measurement, on a real kubelet."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.emulated import with_packages
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.ours import serve_pages, surroundings
from cluster.parts import until
from cluster.whole import Whole, whole
from scheduling import PROFILE

from aliquot.kube.inventory import read_kernels
from aliquot.kube.names import GPU_PERCENT, WAKE
from aliquot.kube.plan import read_plan
from aliquot.status.tenants import WakeStatus

PORT = 8770
LAUNCHES = """
import ctypes, sys, time
from cuda.bindings import driver
def check(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[-1]
PTX = b".version 6.0\\n.target sm_60\\n.address_size 64\\n"
PTX += b".visible .entry spin_ns(.param .u64 ns)\\n{\\n    ret;\\n}\\n\\0"
kernel_ns, rest_s = int(float(sys.argv[1]) * 1e6), float(sys.argv[2]) / 1e3
check(driver.cuInit(0))
context = check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(0))))
check(driver.cuCtxSetCurrent(context))
spin = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(PTX)), b"spin_ns"))
while True:
    check(driver.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, 0, ((kernel_ns,), (ctypes.c_uint64,)), 0))
    check(driver.cuCtxSynchronize())
    time.sleep(rest_s)
"""
"""Launches kernels of so many milliseconds, with so many milliseconds between them."""


@pytest.fixture(scope="module")
def cluster(kubelet_node: KubeletNode) -> Iterator[Whole]:
    """All of Aliquot on a node with one emulated V100."""
    with whole(kubelet_node, "v100", scheduler_flags=("--bind", f"0.0.0.0:{PORT}")) as made:
        serve_pages(made.plane, made.gpus.node.name, PORT)
        yield made


def pod(name: str, percent: int, kernel_ms: float, rest_ms: float, **annotations: str) -> dict[str, Any]:
    """A pod with a part of a GPU whose program launches kernels of one length."""
    command = ["python3", "-c", LAUNCHES, str(kernel_ms), str(rest_ms)]
    limits = {GPU_PERCENT: str(percent)}
    main = {"name": "main", "image": PYTHON, "imagePullPolicy": "Never", "command": command}
    spec = with_packages(main | {"resources": {"limits": limits}})
    return {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "schedulerName": PROFILE, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [spec["container"]], "volumes": spec["volumes"],
        },
    }  # fmt: skip


def create(cluster: Whole, namespace: str, body: dict[str, Any]) -> None:
    cluster.plane.api.create(f"/api/v1/namespaces/{namespace}/pods", body)


def explained(cluster: Whole, namespace: str, name: str) -> str:
    """What `kubectl aliquot explain pod` prints."""
    where = ["--kubeconfig", str(cluster.plane.kubeconfig)]
    command = [sys.executable, "-m", "aliquot.cli.kubectl", "explain", "pod", name, "-n", namespace, *where]
    environment = surroundings(HOME=str(cluster.plane.rooms.state))
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def wake_of(cluster: Whole, tenant: str) -> WakeStatus | None:
    """What the node's arbiter says of a tenant's wakes."""
    (found,) = [t.wake for gpu in cluster.gpus.status().gpus for t in gpu.tenants if t.name == tenant] or [None]
    return found


def kernel_of(cluster: Whole, tenant: str) -> float:
    """The longest recent kernel of a tenant in milliseconds, as the node publishes it; 0 before it was measured."""
    node = cluster.plane.api.get(f"/api/v1/nodes/{cluster.gpus.node.name}")
    said = read_kernels(node["metadata"]["annotations"])
    return max((kernels.get(tenant, 0) / 1000 for kernels in said.gpus.values()), default=0.0)


@pytest.mark.parametrize("time", ["100us", "11s", "soon"])
def test_a_time_that_cannot_be_promised_is_refused_at_admission(cluster: Whole, namespace: str, time: str):
    """The API server refuses the pod with the annotation's name, its value and what is allowed."""
    with pytest.raises(ApiError, match=f'{WAKE}.*"{time}"') as refused:
        create(cluster, namespace, pod("server", 30, 1, 100, **{WAKE: time}))

    assert "1ms to 10s" in str(refused.value) or "is not a duration" in str(refused.value)


@pytest.mark.timeout(180)
def test_a_pod_with_a_promise_waits_for_a_gpu_that_can_keep_it_and_wakes_in_time(cluster: Whole, namespace: str):
    """Beside kernels of 20 ms it stays pending, and `explain` names them; beside short ones it wakes in time."""
    create(cluster, namespace, pod("training", 50, 20, 0))
    until(lambda: kernel_of(cluster, f"{namespace}/training/main") >= 20, "the length of the kernels", 60)
    create(cluster, namespace, pod("server", 30, 1, 100, **{WAKE: "5ms"}))
    in_the_way = f'has "{namespace}/training/main" with kernels of 2'

    until(lambda: in_the_way in explained(cluster, namespace, "server"), "the reason", 60)

    told = explained(cluster, namespace, "server")
    assert "to wake in 5ms" in told and "wake allows 3.2 ms" in told
    assert not cluster.plane.pod(namespace, "server")["spec"].get("nodeName")

    cluster.plane.kubectl("delete", "pod", "training", "-n", namespace)
    create(cluster, namespace, pod("brief", 50, 1, 0))
    cluster.plane.wait_running(namespace, "server")
    plan = read_plan(cluster.plane.pod(namespace, "server")["metadata"]["annotations"])
    assert plan is not None and 5000 == plan.containers["main"].wake_us
    tenant = f"{namespace}/server/main"
    seen = until(lambda: (wake := wake_of(cluster, tenant)) and wake.count >= 50 and wake, "fifty wakes", 90)
    assert 5 == seen.promised_ms
    assert f"{namespace}/server is on {cluster.gpus.node.name}" in explained(cluster, namespace, "server")
