"""The devices that a node publishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aliquot.driver.gpu import Gpu
from aliquot.kube.claims import DRIVER, ResourceClaim, uuid_of
from aliquot.kube.names import PLAN
from aliquot.kube.objects import Condition, Meta, PodStatus
from aliquot.kube.plan import Applied, ContainerPlan, PodPlan, write_applied, write_plan
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.node.machine import Machine
from aliquot.node.pods import NodePod
from aliquot.node.slices import devices_of, held_uncounted, nvlink_groups
from aliquot.topology import Topology

GPUS = tuple(
    Gpu(index=number, uuid=GpuUuid(f"GPU-{number}"), model="Tesla V100", memory_mib=16384, driver="570.124.06", numa=0,
        capability="7.0", cuda="12.8",
        links=["X" if number == other else "NV2" for other in range(2)])
    for number in range(2)
)  # fmt: skip
MACHINE = Machine(GPUS, Path("libcuda"), Path("libnvml"))


def devices(held: Any = {}, why_not: Any = {}, sizes: Any = {}) -> dict[str, dict[str, Any]]:  # noqa: B006
    return {device["name"]: device for device in devices_of(MACHINE, held, why_not, sizes)}


def test_a_gpu_is_whole_or_shared():
    """Each GPU is two devices that consume one counter; a claim without amounts gets a quarter of the shared one."""
    made = devices()

    assert ["gpu-0", "gpu-0-shared", "gpu-1", "gpu-1-shared"] == sorted(made)
    assert made["gpu-0"]["consumesCounters"] == made["gpu-0-shared"]["consumesCounters"]
    capacity, facts = made["gpu-0-shared"]["capacity"], made["gpu-0-shared"]["attributes"]
    assert ("25", "4Gi") == tuple(capacity[c]["requestPolicy"]["default"] for c in ("compute", "memory"))
    assert ({"version": "570.124.6"}, {"int": 0}, {"int": 0}) == (
        facts["driverVersion"],
        facts["numaNode"],
        facts["nvlinkGroup"],
    )
    assert ({"string": "Volta"}, {"version": "12.8.0"}) == (facts["architecture"], facts["cudaDriverVersion"])


def test_a_fixed_size_is_a_device_of_its_own_where_all_of_it_is_left():
    """Who can only count gets just that size; a GPU on which pods leave less is not offered for it."""
    made = devices({"GPU-1": (600, 1024)}, sizes={"half": (50, 8192)})

    assert ["gpu-0", "gpu-0-shared", "gpu-0-shared-half", "gpu-1-shared"] == sorted(made)
    half = made["gpu-0-shared-half"]
    assert {"string": "half"} == half["attributes"]["type"]
    assert ["50", "8Gi"] == [half["capacity"][c]["requestPolicy"]["default"] for c in ("compute", "memory")]
    assert made["gpu-0"]["consumesCounters"] == half["consumesCounters"] and "GPU-0" == uuid_of("gpu-0-shared-half")


def test_what_pods_hold_is_not_published():
    """A GPU of which a pod has a part is not there whole and has less to share; a full one is not there at all."""
    made = devices({"GPU-0": (700, 12288), "GPU-1": (1000, 16384)})

    assert ["gpu-0-shared"] == list(made)
    left = made["gpu-0-shared"]["capacity"]
    assert ("30", "25", "4Gi", "4Gi") == (
        left["compute"]["value"], left["compute"]["requestPolicy"]["default"],
        left["memory"]["value"], left["memory"]["requestPolicy"]["default"],
    )  # fmt: skip


def test_an_unhealthy_gpu_is_tainted():
    """It takes no new claims, and says why; the others do."""
    made = devices(why_not={"GPU-1": "XID 79"})

    (taint,) = made["gpu-1"]["taints"]
    assert ("NoSchedule", "XID-79") == (taint["effect"], taint["value"])
    assert "taints" not in made["gpu-0"]


def test_pods_hold_their_plans_from_the_bind_on():
    """Containers add up; what uses another's share, has ended, or only an init container had does not count."""
    piece = Slice(GpuUuid("GPU-0"), 300, 1000, 1024)
    plan = PodPlan("node-1", {
        "init": ContainerPlan((piece,), init=1), "a": ContainerPlan((piece,)), "b": ContainerPlan((piece,)),
        "c": ContainerPlan((piece,), uses="a"),
    })  # fmt: skip
    status = PodStatus(conditions=[Condition("Initialized", "True")])
    pod = NodePod(Meta(name="p", uid="u", annotations={PLAN: write_plan(plan)}), status=status)
    ended = msgspec.structs.replace(pod, status=PodStatus(phase="Succeeded"))

    assert [{"GPU-0": (600, 2048)}, {}] == [held_uncounted([one], {}) for one in (pod, ended)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 300), st.booleans()), max_size=6), st.integers(0, 30))
def test_published_capacity_is_what_allocations_and_sizes_leave(claims: list[tuple[int, int, bool]], pod: int):
    """What kube-scheduler has left to give, the capacity less what claims consume, is never more than is free, and less
    by under a hundredth; a smaller size counts once its node has applied it."""
    made, held = list[ResourceClaim](), 10 * pod
    while sum(max(10 * consumed, now) for consumed, now, _ in claims) + held > 1000:
        claims = claims[1:]
    for number, (consumed, now, applied) in enumerate(claims):
        amounts = {"compute": str(consumed), "memory": "1Gi"}
        share = {"device": "gpu-0-shared", "shareID": str(number), "consumedCapacity": amounts}
        base = Slice(GpuUuid("GPU-0"), 10 * consumed, 1000, 1024)
        after = msgspec.structs.replace(base, request_milli=now, memory_mib=512)
        plan = PodPlan("n", {"c": ContainerPlan((after,))}, 1, {"c": (base,)}, allocation=str(number))
        meta = {"name": "c", "namespace": "ns", "annotations": {PLAN: write_plan(plan)}}
        results = [{"request": "gpu", "driver": DRIVER, "pool": "n", **share}]
        status: dict[str, Any] = {"allocation": {"devices": {"results": results}}}
        if applied:
            status["devices"] = [{"driver": DRIVER, "data": {"applied": write_applied(Applied(1))}}]
        made.append(msgspec.convert({"metadata": meta, "status": status}, ResourceClaim))
        held += now if applied else max(now, 10 * consumed)
    slices = (Slice(GpuUuid("GPU-0"), 10 * pod, 1000, 1),) if pod else ()
    text = write_plan(PodPlan("n", {"main": ContainerPlan(slices)}))
    uncounted = held_uncounted([NodePod(Meta(uid="u", annotations={PLAN: text}))], {}, made)
    free = 1000 - uncounted.get("GPU-0", (0, 0))[0]

    left = 10 * (free // 10) - sum(10 * consumed for consumed, _, _ in claims)
    assert 1000 - held - 10 < left <= 1000 - held


def test_nvlink_groups_are_those_that_are_joined():
    """GPUs joined by NVLink, if only by way of another, are one group, called by its first; one without is in none."""
    links = [
        ["X", "NV1", "SYS", "SYS"],
        ["NV1", "X", "NV1", "SYS"],
        ["SYS", "NV1", "X", "SYS"],
        ["SYS", "SYS", "SYS", "X"],
    ]

    assert [0, 0, 0, None] == nvlink_groups(Topology.of(links))
