"""Very many pods at once, on nodes of mixed models: each ends bound, or waits for a reason that is true."""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from cluster.ours import OurScheduler
from scheduling import Pods, Witness, asking, eventually, gpu_pod, percent, slices_of

NODES = (("v100", 8), ("a100", 8), ("h100", 8), ("t4", 4), ("h200", 4))
"""Profiles and GPUs of the nodes: 32 GPUs in five models, once for every 200 pods."""


@pytest.fixture(scope="module")
def ours(control_plane: ControlPlane) -> Iterator[OurScheduler]:
    """Our scheduler, asked by kube-scheduler."""
    with asking(OurScheduler(control_plane)) as made:
        yield made


def wish(chance: random.Random, name: str) -> dict[str, Any]:
    """A pod of any kind: parts of a GPU, with memory, of a model, apart or together, several containers, whole GPUs."""
    kind = chance.choice(
        ["part"] * 6 + ["memory", "memory", "model", "model", "two", "whole", "much", "apart", "exact"]
    )
    small = chance.choice([5, 10, 20, 30, 50])
    if kind == "memory":
        return gpu_pod(name, percent(small, chance.choice(["1Gi", "4Gi", "10Gi", "30Gi"])))
    if kind == "model":
        return gpu_pod(
            name, percent(small), annotations={"aliquot.dev/gpu-model": chance.choice(["V100", "A100|H100"])}
        )
    if kind == "two":
        return gpu_pod(name, percent(small), percent(chance.choice([10, 40])))
    if kind == "whole":
        return gpu_pod(name, percent(100))
    if kind == "much":
        return gpu_pod(name, percent(chance.choice([150, 200, 250])))
    if kind == "apart":
        return gpu_pod(name, percent(small), annotations={"aliquot.dev/anti-affinity": chance.choice("abc")})
    if kind == "exact":
        return gpu_pod(name, percent(33), annotations={"aliquot.dev/gpu-request": "0.333"})
    return gpu_pod(name, percent(small))


def told(pod: dict[str, Any]) -> str:
    """Why the pod waits, by kube-scheduler's word."""
    return " ".join(c.get("message", "") for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled")


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_a_crowd_ends_bound_or_explained(pods: Pods, ours: OurScheduler, count: int, record_property: Any):
    """All at once: each pod is bound with its plan or told why not, no GPU is ever over its capacity, and the ledger,
    the annotations and the API server agree; who waits has no node that could take it."""
    chance = random.Random(count)
    nodes = [
        name
        for profile, gpus in NODES
        for name in pods.plane.fake_nodes(count // 200, profile, gpus=gpus, prefix=f"scale-{profile}")
    ]
    crowd = [wish(chance, f"p{number}") for number in range(count)]
    eventually(lambda: len(ours.get("/inspect")["nodes"]) == len(nodes), "the scheduler does not know the nodes")

    def settled() -> bool:
        seen = pods.all()
        return len(seen) == count and all(pod["spec"].get("nodeName") or told(pod) for pod in seen)

    try:
        with Witness(pods) as witness:
            began = time.monotonic()
            pods.create(*crowd)
            created_s = time.monotonic() - began
            eventually(settled, "some pods were not looked at", 60 + count / 2)
            settled_s = time.monotonic() - began
            bound = pods.bound()
            pods.agree(ours)
        waiting = pods.waiting()
        record_property("figures", {"created_s": created_s, "settled_s": settled_s, "bound": len(bound)})
        print(f"{count} pods: created in {created_s:.1f} s, settled after {settled_s:.1f} s, {len(bound)} bound")

        assert ([], True) == (witness.faults, witness.changes >= count)
        assert all(slices_of(pod) for pod in bound)
        assert [] == [(pod["metadata"]["name"], told(pod)) for pod in waiting if not is_true(ours, pod, nodes)]
        assert waiting and len(bound) > count / 3
    finally:
        # One by one: all in one request may take longer than a request may.
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(pods.delete, [pod["metadata"]["name"] for pod in pods.all()]))
        pods.plane.remove_nodes(nodes)


def is_true(ours: OurScheduler, pod: dict[str, Any], nodes: list[str]) -> bool:
    """Whether indeed no node has room for a pod that waits."""
    _, answer = ours.post("/filter", json.dumps({"Pod": pod, "NodeNames": nodes}).encode())
    return not answer["NodeNames"]
