"""A node with two GPUs and three containers, one of which has both GPUs."""

from pathlib import Path

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.driver.gpu import Gpu
from aliquot.node.display.facts import Sources, read_report
from aliquot.node.machine import Machine
from aliquot.status.nodes import NodeReport, Owner
from aliquot.status.tenants import TenantStatus

UUIDS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-00000000-0000-0000-0000-000000000001")
TRAIN, WEB = "team/train-0/main", "team/web-1/app"


def tenant(name: str, request_milli: int, *, usage: float = 0.0, used_mib: int = 0, refused: int = 0) -> TenantStatus:
    """A tenant that waited 1.5 s and was charged 2.5 s, with 4 GiB to use."""
    return TenantStatus(
        name=name, request_milli=request_milli, limit_milli=800, usage=usage, charged_ns=2_500_000_000,
        memory_used_mib=used_mib, memory_limit_mib=4096, memory_context_mib=100, wait_ms_p50=12.0, debt_ms=3.0,
        quota_ms=100.0, handovers=7, processes=2, waiting=False, waited_ns=1_500_000_000, memory_refusals=refused,
    )  # fmt: skip


def machine() -> Machine:
    """Two V100 that are linked."""
    gpus = [
        Gpu(
            index,
            uuid,
            "Tesla V100",
            16384,
            "570.124.06",
            [],
            ["X", "NV2"] if index == 0 else ["NV2", "X"],
            pci=f"00000000:0{index}:00.0",
        )
        for index, uuid in enumerate(UUIDS)
    ]
    return Machine(tuple(gpus), Path("/libcuda.so.1"), Path("/libnvidia-ml.so.1"))


def status() -> Status:
    """`train-0` on both GPUs, `web-1` on the first."""
    first = [tenant(TRAIN, 300, usage=0.25, used_mib=1024, refused=4), tenant(WEB, 400, usage=0.5, used_mib=512)]
    gpus = [
        GpuStatus(UUIDS[0], TRAIN, 0.75, first),
        GpuStatus(UUIDS[1], None, 0.0, [tenant(TRAIN, 1000, usage=0.125, used_mib=2048)]),
    ]
    return Status(0, 1, 1, 10_000, "fixed", 100, "early", "pace", 3, gpus)


def sources(**changes: object) -> Sources:
    """The node with everything well and the arbiter answering, but for `changes`."""
    given: dict[str, object] = {
        "node": "node-a",
        "machine": machine(),
        "status": status,
        "owners": lambda: {
            TRAIN: Owner("team", "train-0", "main", "uid-t"),
            WEB: Owner("team", "web-1", "app", "uid-w"),
        },
    }
    return Sources(**(given | changes))  # type: ignore[arg-type]


def facts(**changes: object) -> NodeReport:
    """The picture of `sources`."""
    return read_report(sources(**changes))
