"""What a node says of its GPUs is what a dashboard reads: one record on both sides of `/node.json`."""

import msgspec

from aliquot.node.display.server import node_body
from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.tenants import PromiseStatus, TenantStatus, Unregistered, WakeStatus

STATUS = TenantStatus(
    "lab/train/main", 300, 800, 0.25, 2_500_000_000, 1024, 4096, 100, 12.0, 3.0, 100.0, 7, 2, True,
    waited_ns=1_500_000_000, memory_refusals=4, promise=PromiseStatus(windows=40, kept=39), kernel_ms=1.5,
    wake=WakeStatus(5.0, 1.5, 4.0, 200, True, 3.25), first_grant_ns=9,
)  # fmt: skip
GPU = NodeGpu(
    index=1, uuid="GPU-1", model="V100", memory_mib=16384, busy=0.75, holder="lab/train/main", unhealthy="XID 79",
    uses=(Use(Owner("lab", "train", "main", "uid-t"), STATUS, 1),), unregistered=(Unregistered(7, 300),),
    bare=(Unregistered(8, 200),), bypassing=1, pci="00000000:01:00.0",
)  # fmt: skip


def read(body: object) -> NodeReport:
    """The report in an answer."""
    return msgspec.json.decode(msgspec.json.encode(body), type=NodeReport)


def test_a_gpu_is_read_as_its_node_wrote_it():
    """Every field of a GPU, of its tenants and of what is measured of them comes back from `/node.json` unchanged."""
    report = NodeReport(node="node-a", driver="570", gpus=(GPU,), window_ms=10_000, now_ns=5, turns="fixed")

    assert report == read(node_body(report))


def test_an_arbiter_that_does_not_answer_is_read_so():
    """A report without an arbiter's answer says so to its reader."""
    assert not read(node_body(NodeReport(gpus=(), answers=False))).answers


def test_an_older_agents_gpu_is_read():
    """An answer with no more than the UUID of a GPU is a report of one GPU of which nothing else is known."""
    assert NodeReport(gpus=(NodeGpu(uuid="GPU-1"),)) == read({"gpus": [{"uuid": "GPU-1"}]})


def test_figures_of_a_gpu_are_sums_over_its_tenants():
    """Free compute, used memory and the busy part in thousandths are computed from the tenants and the window."""
    other = msgspec.structs.replace(STATUS, request_milli=900, memory_used_mib=1)
    gpu = msgspec.structs.replace(GPU, uses=(*GPU.uses, Use(Owner("lab", "web", "app"), other)))

    assert (700, 1024, 750) == (GPU.free_milli, GPU.memory_used_mib, GPU.busy_milli)
    assert (0, 1025) == (gpu.free_milli, gpu.memory_used_mib)
    assert (other, None) == (gpu.of("lab/web/app"), gpu.of("lab/web"))
