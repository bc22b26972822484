"""The facts of one reading, shown until the next; common to a machine and a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from aliquot.web.api import Gpu, History, Node, Pool, QuotaLine, Workload
from aliquot.web.history.ring import HistoryRing


class Picture(NamedTuple):
    """Everything that pages show of one reading."""

    gpus: Sequence[Gpu]
    workloads: Sequence[Workload]
    nodes: Sequence[Node]
    quota: Sequence[QuotaLine]
    pool: Pool


class PictureFacts:
    """The part of `Facts` that is answered from the last picture, and the last hour of its GPUs.

    `asked_s` is the time of the last request, by a clock that only goes forward.
    """

    def __init__(self, *, title: str, program: str, window_s: float, asked_s: float) -> None:
        self.title = title
        self.program = program
        self.window_s = window_s
        self.as_of_s = 0.0
        self.asked_s = asked_s
        self._picture = Picture([], [], [], [], Pool("on-demand", []))
        self._revision = 0
        self._hour = HistoryRing()

    def _asked(self) -> None:
        """Remember when the last request was."""
        self.asked_s = time.monotonic()

    def _show(self, picture: Picture, *, anew: bool = False) -> None:
        """Show another picture; `anew` counts it as a change also where it is equal."""
        if anew or picture != self._picture:
            self._picture = picture
            self._revision += 1

    def _workload(self, name: str) -> Workload | None:
        return next((workload for workload in self._picture.workloads if workload.name == name), None)

    @property
    def revision(self) -> int:
        """Grows with every reading that found changes."""
        self._asked()
        return self._revision

    def gpus(self) -> Sequence[Gpu]:
        """See `Facts`."""
        self._asked()
        return self._picture.gpus

    def workloads(self) -> Sequence[Workload]:
        """See `Facts`."""
        self._asked()
        return self._picture.workloads

    def nodes(self) -> Sequence[Node]:
        """See `Facts`."""
        return self._picture.nodes

    def pool(self) -> Pool:
        """See `Facts`."""
        return self._picture.pool

    def quota(self) -> Sequence[QuotaLine]:
        """See `Facts`."""
        return self._picture.quota

    def history(self, gpu: str, seconds: float) -> History | None:
        """See `Facts`."""
        if all(gpu != known.uuid for known in self._picture.gpus):
            return None
        return self._hour.read(gpu, seconds, time.time() - time.monotonic())
