"""The ledger as the read model has it: GPUs with their tenants, of which nothing is measured."""

from asking import asking

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, Slice
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.read_model import ledger_facts, ledger_gpus
from aliquot.status.gpus import Share


def cluster() -> Cluster:
    """Two GPUs; `x/a` has 0.3 of the first, as the vGPU `fast`, and `~own` has the second."""
    made = Cluster([NodeSpec("node-0", tuple(Device(n, GpuUuid(f"GPU-{n}"), "V100", 16384) for n in range(2)))])
    part, whole = Slice(GpuUuid("GPU-0"), 300, 600, 4096), Slice(GpuUuid("GPU-1"), 1000, 1000, 16384)
    made.reserve(
        "x/a", Placement("node-0", (part,)), asking(rest_milli=300, limit_milli=600, gpu_mib=4096, gpu_id="fast")
    )
    made.reserve("~own", Placement("node-0", (whole,)), asking(whole=1))
    return made


def test_a_gpu_has_its_tenants_and_what_is_left():
    """Each device stands there with the shares of its tenants and what is free; nothing counts as measured."""
    first, second = ledger_gpus(cluster(), "node-0")

    assert ("shared", 700, 12288, "fast", False) == (
        first.state, first.free_milli, first.free_mib, first.vgpu, first.measured
    )  # fmt: skip
    assert [Share("x/a", 300, 600, 0, 4096, 0, "x/a")] == first.shares
    assert ("whole", 0, 0) == (second.state, second.free_milli, second.free_mib)


def test_a_hidden_tenant_keeps_its_room():
    """A GPU whose only tenant is hidden has no shares, and is no freer for that."""
    _, second = ledger_gpus(cluster(), "node-0", lambda tenant: tenant.startswith("~"))

    assert ([], "idle", 0) == (second.shares, second.state, second.free_milli)


def test_a_gpu_in_json_has_its_residents():
    """As plain values a GPU has its sizes, what is free, and the part of each tenant."""
    first, _ = ledger_gpus(cluster(), "node-0")

    assert {
        "index": 0, "uuid": "GPU-0", "model": "V100", "memory_mib": 16384, "free_milli": 700, "free_mib": 12288,
        "residents": [{"tenant": "x/a", "request_milli": 300, "limit_milli": 600, "memory_mib": 4096}],
    } == ledger_facts(first)  # fmt: skip
