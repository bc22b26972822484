"""From what engine and arbiter say to the records of the API."""

from typing import Any, NamedTuple

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, GpuRequest, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Placement
from aliquot.placement.machine import MachineLedger
from aliquot.placement.read_model import ledger_gpus
from aliquot.standalone.measured import measured_gpus, workloads_of
from aliquot.standalone.wire import PodFacts
from aliquot.status import Gpu
from aliquot.status.gpus import node_sums, pool_of, quota_of
from aliquot.status.tenants import TenantStatus

DEVICES = [Device(index, GpuUuid(f"GPU-{index}"), "V100", 16384) for index in range(3)]


def piece(gpu: int, milli: int, mib: int = 1024, limit: int = 1000) -> Slice:
    """A slice of a GPU by its index."""
    return Slice(GpuUuid(f"GPU-{gpu}"), milli, limit, mib)


def tenant(name: str, usage: float, **more: Any) -> TenantStatus:
    """What the arbiter says of a tenant."""
    return TenantStatus(name, 0, 0, usage, 0, 700, 0, 0, 12.34, 0.0, 100.0, 3, 1, True, **more)


def status(*gpus: GpuStatus) -> Status:
    """What the arbiter says."""
    return Status(0, 1, 1, 10_000, "dynamic", 100, "auto", "pace", 0, list(gpus))


class Tenant(NamedTuple):
    """A tenant with its slices; `gpu_id` is the vGPU it named."""

    name: str
    slices: tuple[Slice, ...]
    gpu_id: str = ""


def gathered(*tenants: Tenant, now: Status | None = None) -> list[Gpu]:
    """The GPUs of a machine with three."""
    ledger = MachineLedger(DEVICES, node="here")
    for each in tenants:
        request = GpuRequest(sum(piece.request_milli for piece in each.slices), gpu_id=each.gpu_id)
        ledger.decider.commit(each.name, Placement("here", each.slices), Ask(request))
    return measured_gpus(ledger_gpus(ledger.cluster, "here"), now, lambda gpu, name: (99.5, 10))


def test_whole_shared_and_idle_are_told_apart():
    """A GPU is whole when one tenant has all of it, shared when somebody has a part, else idle."""
    gpus = gathered(Tenant("w", (piece(0, 1000),)), Tenant("a", (piece(1, 300),)))

    assert ["whole", "shared", "idle"] == [gpu.state for gpu in gpus]


def test_usage_comes_from_the_arbiter_and_promises_from_the_ledger():
    """A share has its request and memory from the plan, usage and waits from the arbiter."""
    now = status(GpuStatus("GPU-0", "a", 0.41, [tenant("a", 0.4)]))
    gpu = gathered(Tenant("a", (piece(0, 300, 4096, 600),)), now=now)[0]
    share = gpu.shares[0]

    assert ("a", 410, 700) == (gpu.holder, gpu.busy_milli, gpu.memory_used_mib)
    assert (300, 600, 400, 4096, 700) == (
        share.request_milli, share.limit_milli, share.usage_milli, share.memory_mib, share.memory_used_mib
    )  # fmt: skip
    assert (12.3, 99.5, 10) == (share.wait_ms, share.kept_percent, share.windows)


def test_lent_memory_adds_up_by_gpu_and_workload():
    """What is lent and what of it is called back is in the sums of the GPU and of each workload, and in its words."""
    lent = [tenant("a", 0.1, memory_lent_mib=300, memory_called_mib=100), tenant("b", 0.1, memory_lent_mib=200)]
    gpus = gathered(
        Tenant("a", (piece(0, 300),)), Tenant("b", (piece(0, 300),)), now=status(GpuStatus("GPU-0", "a", 0.2, lent))
    )
    first, second = workloads_of(gpus, [], {})

    assert (500, 100) == (gpus[0].memory_lent_mib, gpus[0].memory_called_mib)
    assert (300, 100, 200, 0) == (
        first.memory_lent_mib, first.memory_called_mib, second.memory_lent_mib, second.memory_called_mib
    )  # fmt: skip
    assert ["a has 300 MiB lent, 100 MiB of it called back", "b has 200 MiB lent"] == [*first.notes, *second.notes]


def test_a_workload_whose_programs_were_ended_for_lent_memory_says_so():
    """As long as no other program has taken their place."""
    now = status(GpuStatus("GPU-0", "", 0.0, [tenant("a", 0.0, lost=(300, "")), tenant("b", 0.0)]))
    gpus = gathered(*(Tenant(name, (piece(0, 300),)) for name in "ab"), now=now)
    first, second = workloads_of(gpus, [], {})

    assert first.notes[0].startswith("the programs of a were ended: it held 300 MiB beyond its guarantee")
    assert [] == second.notes


def test_parked_memory_is_none_of_the_gpus():
    """What is parked counts as the workload's and not as the GPU's, and a workload that is parked is not in trouble."""
    now = status(GpuStatus("GPU-0", "", 0.0, [tenant(name, 0.0, parked=True) for name in ("default/a", "run")]))
    gpus = gathered(Tenant("default/a", (piece(0, 300, 0),)), Tenant("run", (piece(0, 300, 0),)), now=now)
    found = workloads_of(
        gpus, [PodFacts("default/a", "Running", [0], ["GPU-0"], 300, 1000, 0, 0, 5.0, parked=True)], {}
    )

    assert 0 == gpus[0].memory_used_mib
    assert [("Parked", False, 0, 700)] * 2 == [
        (each.state, each.failing, each.memory_used_mib, each.memory_parked_mib) for each in found
    ]


def test_without_an_arbiter_places_are_still_known():
    """Between two arbiters the GPUs show who has which part, with no usage."""
    gpu = gathered(Tenant("a", (piece(0, 300),)), now=None)[0]

    assert [("a", 300, 0)] == [(share.tenant, share.request_milli, share.usage_milli) for share in gpu.shares]


def test_waiting_workloads_come_first():
    """SharePods and runs by name, those that wait before all others, each with its pieces."""
    tenants = [
        Tenant("default/b", (piece(0, 300), piece(1, 1000))),
        Tenant("run-1", (piece(2, 100),)),
    ]
    pods = [
        PodFacts("default/b", "Running", 0, "GPU-0", 1300, 2000, 2048, 1, 5.0),
        PodFacts("default/z", "Pending", -1, "", 500, 1000, 0, 0, 1.0, message="no room"),
    ]
    found = workloads_of(gathered(*tenants), pods, {"run-1": 4.0})

    assert ["default/z", "default/b", "run-1"] == [workload.name for workload in found]
    assert [0, 2, 1] == [len(workload.pieces) for workload in found]
    assert ["SharePod", "SharePod", "Run"] == [workload.kind for workload in found]


def test_a_named_gpu_is_in_the_pool():
    """A GPU that a SharePod called by name is a vGPU with those attached who are on it."""
    gpus = gathered(Tenant("a", (piece(1, 300),), gpu_id="fast"), Tenant("b", (piece(1, 200),)))
    vgpu = pool_of(gpus).vgpus[0]

    assert ("fast", "GPU-1", 500, ["a", "b"]) == (vgpu.name, vgpu.uuid, vgpu.used_milli, vgpu.attached)


def test_quota_counts_by_namespace_and_model():
    """What the tenants of a namespace hold of a model adds up; runs have no namespace."""
    tenants = [
        Tenant("x/a", (piece(0, 300),)),
        Tenant("x/b", (piece(1, 500),)),
        Tenant("run-1", (piece(2, 100),)),
    ]
    lines = quota_of(gathered(*tenants))

    assert [("", 100), ("x", 800)] == [(line.namespace, line.used_milli) for line in lines]


def test_nodes_are_sums_of_their_gpus():
    """A node counts its GPUs by state and adds up what is free."""
    node = node_sums(gathered(Tenant("a", (piece(1, 300),))))[0]

    assert ("here", 3, 0, 1, 2, 2700) == (node.name, node.gpus, node.whole, node.shared, node.idle, node.free_milli)
