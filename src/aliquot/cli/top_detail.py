"""The box under the table of `aliquot top`: the chosen GPU, tenant or workload, with what was seen of it so far."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final

from aliquot.cli.tables import aligned
from aliquot.cli.top_cells import TENANTS, share_row, workload_lines
from aliquot.cli.top_overview import WAITS, WIDE_FROM, cut
from aliquot.cli.top_rows import Look, spark
from aliquot.model.quantities import format_milli
from aliquot.status import Gpu

KEPT: Final = 240
_EDGE: Final = 6
"""Cells for the padding, a scroll bar, and the gap behind the name."""


class UsageHistory:
    """The last `KEPT` measurements: by GPU its use, by GPU and tenant its use and wait."""

    def __init__(self) -> None:
        self.busy: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.usage: dict[tuple[str, str], deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=KEPT))

    def take(self, look: Look) -> None:
        """One more of each that was measured; tenants that are gone are forgotten."""
        for gpu in look.gpus:
            if not gpu.measured:
                continue
            self.busy[gpu.uuid].append(gpu.busy_milli)
            for share in gpu.shares:
                self.usage[gpu.uuid, share.tenant].append((share.usage_milli, share.wait_ms))
        seen = {(gpu.uuid, share.tenant) for gpu in look.gpus for share in gpu.shares}
        for key in self.usage.keys() - seen:
            del self.usage[key]


class DetailBox:
    """The lines of the box, for a terminal so wide; a `high` one has room for every tenant of a GPU."""

    def __init__(self, look: Look, past: UsageHistory, width: int, *, high: bool) -> None:
        self._look = look
        self._past = past
        self._width = width
        self._high = high
        self._cells = max(16, min(KEPT, width - 24))

    def overview(self, key: str) -> list[str]:
        """Of a row of the first view."""
        if key.startswith(WAITS):
            name = key.removeprefix(WAITS)
            return [f"{name} waits", *self.workload(name)] if self._look.workload(name) else []
        uuid, _, tenant = key.partition("|")
        if tenant:
            return self.share(uuid, tenant)
        gpu = self._look.gpu(uuid)
        if gpu is None:
            return []
        past = f"busy   {gpu.busy_milli / 1000:.2f}   {spark(self._past.busy[uuid], 1000, self._cells)}"
        lines = [*([past] if gpu.measured else []), *self._silence(gpu)]
        if self._high:
            lines += [line for share in gpu.shares for line in ("", share.tenant, *self.share(uuid, share.tenant))]
        return lines

    def gpu(self, uuid: str) -> list[str]:
        """The tenants of a GPU, one line each."""
        gpu = self._look.gpu(uuid)
        if gpu is None:
            return []
        if not gpu.shares:
            return [f"{gpu.node} GPU {gpu.index}: no tenants", *self._silence(gpu)]
        wide = self._width >= WIDE_FROM
        rows = [TENANTS if wide else TENANTS[:6], *(share_row(gpu, share, wide=wide) for share in gpu.shares)]
        numbers = [[str(cell) for cell in row[1:]] for row in rows]
        room = self._width - _EDGE - max(map(len, aligned(numbers)))
        letters = [" ", *(chr(ord("a") + number % 26) for number in range(len(gpu.shares)))]
        names = [str(cut(f"{letter} {row[0]}", room)) for letter, row in zip(letters, rows, strict=True)]
        drawn = aligned([[name, *rest] for name, rest in zip(names, numbers, strict=True)])
        return [*drawn, *self._silence(gpu)]

    def _silence(self, gpu: Gpu) -> list[str]:
        silent = self._look.silent.get(gpu.node, "")
        return [f"{gpu.node} does not tell what is used: {silent}"] if silent else []

    def share(self, uuid: str, tenant: str) -> list[str]:
        """A tenant on a GPU, with its history."""
        gpu = self._look.gpu(uuid)
        share = next((share for share in gpu.shares if share.tenant == tenant), None) if gpu else None
        if gpu is None or share is None:
            return []
        promised = f"request {format_milli(share.request_milli)}, limit {format_milli(share.limit_milli)}"
        if not gpu.measured:
            return [f"{promised}; what it uses is not known"]
        if share.hidden:
            return [f"{promised}; of another namespace, of which only size and use are shown"]
        past = self._past.usage[uuid, tenant]
        waits = [wait for _, wait in past]
        return [
            f"used   {share.usage_milli / 1000:.2f}   {spark((usage for usage, _ in past), 1000, self._cells)}",
            f"wait {share.wait_ms:>4.0f} ms  {spark(waits, max([*waits, 1.0]), self._cells)}",
            f"{promised}, quota {share.quota_ms:.0f} ms, debt {share.debt_ms:.0f} ms, {share.processes} processes",
            *(f"pid {process.pid:>8}  {process.command}" for process in self._look.processes.get(tenant, ())),
        ]

    def workload(self, name: str) -> list[str]:
        """A workload that runs or waits."""
        workload = self._look.workload(name)
        return workload_lines(workload) if workload else []
