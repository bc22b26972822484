"""The port between programs and what shows their state: what may be queried, and what the answers guarantee.

Each program that places tenants has one source: `aliquot.standalone.status_source` for a machine,
`aliquot.scheduler.status_source` for a cluster. The dashboard and `kubectl aliquot top` read them. All methods but
`turns`, `explain` and `try_request` return what was gathered last, without waiting for anything, and may be called from
any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from aliquot.model.requests import GpuRequest
from aliquot.status.gpus import Gpu, Node, Pool, QuotaLine, Totals
from aliquot.status.history import Past, Recorder, Turns
from aliquot.status.workloads import PENDING, RUNNING, Event, Explanation, History, TopologyFacts, Trial, Workload


class StatusSource(Protocol):
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

    def turns(self, gpu: str) -> Turns | None:
        """The last minute of a GPU, turn by turn; None where they are not known. May take a second."""

    def explain(self, name: str) -> Explanation | None:
        """Why a workload waits or is placed where it is; None for an unknown name. May take a second."""

    def try_request(self, request: GpuRequest) -> Trial:
        """Where a request would be placed now, by the production placement; nothing is reserved. May take a second.

        Raises:
            UserError: the request makes no sense; the text says why.
        """


class Snapshot(NamedTuple):
    """Everything that is shown of one reading."""

    gpus: Sequence[Gpu]
    workloads: Sequence[Workload]
    nodes: Sequence[Node]
    quota: Sequence[QuotaLine]
    pool: Pool


@dataclass(eq=False)
class SnapshotSource:
    """The part of `StatusSource` that is answered from the last snapshot and from what `recorder` has of earlier ones.

    `asked_s` is the time of the last request by `clock`, which only goes forward. A source without a recorder has no
    past; those of terminals are.
    """

    title: str
    program: str
    window_s: float
    asked_s: float
    clock: Callable[[], float]
    recorder: Recorder | None
    as_of_s: float = 0.0
    _snapshot: Snapshot = field(init=False, default_factory=lambda: Snapshot([], [], [], [], Pool("on-demand", [])))
    _revision: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._past: Past | None = self.recorder

    def read_past_from(self, past: Past) -> None:
        """From now on read timelines and hours from here instead of what this program records."""
        self._past = past

    def _note_request(self) -> None:
        """Remember when the last request was."""
        self.asked_s = self.clock()

    def _publish(self, snapshot: Snapshot, *, changed: bool = False) -> None:
        """Show another snapshot; `changed` counts it as a change also where it is equal."""
        if changed or snapshot != self._snapshot:
            self._snapshot = snapshot
            self._revision += 1

    def _workload(self, name: str) -> Workload | None:
        return next((workload for workload in self._snapshot.workloads if workload.name == name), None)

    @property
    def revision(self) -> int:
        """Grows with every reading that found changes."""
        self._note_request()
        return self._revision

    @property
    def past(self) -> Past:
        """See `StatusSource`."""
        self._note_request()
        assert self._past is not None, "a source without a recorder has no past"
        return self._past

    def gpus(self) -> Sequence[Gpu]:
        """See `StatusSource`."""
        self._note_request()
        return self._snapshot.gpus

    def workloads(self) -> Sequence[Workload]:
        """See `StatusSource`."""
        self._note_request()
        return self._snapshot.workloads

    def nodes(self) -> Sequence[Node]:
        """See `StatusSource`."""
        return self._snapshot.nodes

    def pool(self) -> Pool:
        """See `StatusSource`."""
        return self._snapshot.pool

    def quota(self) -> Sequence[QuotaLine]:
        """See `StatusSource`."""
        return self._snapshot.quota

    def history(self, gpu: str, seconds: float) -> History | None:
        """See `StatusSource`."""
        if self.recorder is None or all(gpu != shown.uuid for shown in self._snapshot.gpus):
            return None
        return self.recorder.last_hour(gpu, seconds)


def totals(source: StatusSource) -> Totals:
    """Sums over everything that the viewer sees."""
    gpus, workloads = source.gpus(), source.workloads()
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
