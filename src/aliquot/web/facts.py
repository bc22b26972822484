"""The port between pages and programs: what a page may query, and what the answers guarantee.

The standalone engine answers through `aliquot.web.standalone`; a cluster's scheduler program answers for itself. All
methods but the last two return what was gathered last, without waiting for anything, and may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aliquot.model.requests import GpuRequest
from aliquot.status.workloads import PENDING, RUNNING
from aliquot.web.api import (
    Event,
    Explanation,
    Gpu,
    History,
    Node,
    Pool,
    QuotaLine,
    TopologyFacts,
    Totals,
    Trial,
    Workload,
)  # fmt: skip
from aliquot.web.history.keeping import Past


class Facts(Protocol):
    """What one viewer may see. Everything is read; there is no method that changes anything."""

    @property
    def title(self) -> str:
        """The name of the host or cluster."""

    @property
    def window_s(self) -> float:
        """The length of the windows in which promises are kept."""

    @property
    def program(self) -> str:
        """The command that answers the same on a terminal: `aliquot` or `kubectl aliquot`."""

    @property
    def as_of_s(self) -> float:
        """The wall clock's time of the last reading."""

    @property
    def revision(self) -> int:
        """Grows whenever an answer of the methods below may have changed."""

    @property
    def past(self) -> Past:
        """What was recorded over the last weeks. Its methods may take a second."""

    def gpus(self) -> Sequence[Gpu]:
        """Every GPU, by node name and index."""

    def workloads(self) -> Sequence[Workload]:
        """Everything that holds or wants a share, waiting ones first, then by name."""

    def nodes(self) -> Sequence[Node]:
        """Every node with a GPU, by name."""

    def topology(self, node: str) -> TopologyFacts | None:
        """The links of a node; None if unknown."""

    def pool(self) -> Pool:
        """The vGPUs."""

    def quota(self) -> Sequence[QuotaLine]:
        """Quota and use by namespace and model."""

    def events(self, since: int) -> Sequence[Event]:
        """The kept events with an id above `since`, oldest first."""

    def history(self, gpu: str, seconds: float) -> History | None:
        """The last `seconds` of a GPU, one hour at most; None for an unknown GPU."""

    def explain(self, name: str) -> Explanation | None:
        """Why a workload waits or is placed where it is; None for an unknown name. May take a second."""

    def try_request(self, request: GpuRequest) -> Trial:
        """Where a request would be placed now, by the production placement; nothing is reserved. May take a second.

        Raises:
            UserError: the request makes no sense; the text says why.
        """


Door = Callable[[Mapping[str, str]], Facts]
"""The facts that the viewer who sent these headers may see."""


def totals(facts: Facts) -> Totals:
    """Totals."""
    gpus, workloads = facts.gpus(), facts.workloads()
    states = [gpu.state for gpu in gpus]
    shares = [share for gpu in gpus for share in gpu.shares]
    windows = sum(share.windows for share in shares)
    kept = sum(share.windows * (share.kept_percent or 0.0) for share in shares)
    return Totals(
        gpus=len(gpus),
        whole=states.count("whole"),
        shared=states.count("shared"),
        idle=states.count("idle"),
        promised_milli=sum(1000 - gpu.free_milli for gpu in gpus),
        busy_milli=sum(gpu.busy_milli for gpu in gpus),
        memory_mib=sum(gpu.memory_mib for gpu in gpus),
        memory_promised_mib=sum(gpu.memory_mib - gpu.free_mib for gpu in gpus),
        memory_used_mib=sum(gpu.memory_used_mib for gpu in gpus),
        running=sum(workload.state == RUNNING for workload in workloads),
        failing=sum(workload.failing and bool(workload.pieces) for workload in workloads),
        waiting=sum(workload.state == PENDING for workload in workloads),
        kept_percent=kept / windows if windows else None,
        windows=windows,
        unmeasured=sum(not gpu.measured for gpu in gpus),
        lent_milli=sum(max(0, share.usage_milli - share.request_milli) for share in shares),
    )
