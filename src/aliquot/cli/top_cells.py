"""The tables of `aliquot top` on a terminal: their columns, and the cells of a tenant and of a workload."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from aliquot.cli.top_rows import UNKNOWN, kept, memory_text, state_of, usage_text
from aliquot.model.quantities import format_milli
from aliquot.status import Gpu, Share, Workload

Row = tuple[str | Text, ...]

SLIM: Final = ("NODE", "GPU", "STATE", "USED", "FREE", "MEMORY GiB")
WIDE: Final = (*SLIM, "TREND", "PROMISED TO", "TENANTS", "MODEL")
TENANTS: Final = ("TENANT", "REQUEST", "LIMIT", "USAGE", "MEMORY GiB", "STATE", "WAIT", "QUOTA", "DEBT")
WORKLOADS: Final = ("WORKLOAD", "STATE", "PROMISED", "GETS", "MEMORY GiB", "WHERE", "KIND")


def share_row(gpu: Gpu, share: Share, *, wide: bool) -> Row:
    """A tenant on a GPU, under TENANTS."""
    cells = 20 if wide else 10
    usage = Text(usage_text(share.usage_milli, cells, share.limit_milli, measured=gpu.measured), style="green")
    memory = Text(memory_text(share.memory_used_mib, share.memory_mib, measured=gpu.measured), style="blue")
    start: Row = (
        share.tenant, f"{format_milli(share.request_milli):>7}", f"{format_milli(share.limit_milli):>5}", usage, memory,
        state_of(gpu, share),
    )  # fmt: skip
    if not wide:
        return start
    times_ms = (share.wait_ms, share.quota_ms, share.debt_ms)
    known = gpu.measured and not share.hidden
    return (*start, *(f"{time_ms:>4.0f} ms" if known else UNKNOWN for time_ms in times_ms))


def workload_row(workload: Workload) -> Row:
    """A workload, under WORKLOADS."""
    where = ", ".join(f"{piece.node} GPU {piece.index}" for piece in workload.pieces) or workload.message
    promised = format_milli(workload.request_milli)
    if workload.limit_milli != workload.request_milli:
        promised += f"-{format_milli(workload.limit_milli)}"
    usage = Text(f"{workload.usage_milli / 1000:.2f}" if workload.measured else UNKNOWN, style="green")
    memory = Text(memory_text(workload.memory_used_mib, workload.memory_mib, measured=workload.measured), style="blue")
    return (workload.name, workload.state, promised, usage, memory, where[:60], workload.kind)


def workload_lines(workload: Workload) -> list[str]:
    """What the box under the table says of a workload."""
    lines = [workload.message] if workload.message else []
    if workload.windows:
        lines.append(f"promise kept in {kept(workload.kept_percent)} of {workload.windows} windows")
    return [*lines, *workload.events[-6:]] or [f"{workload.kind} {workload.name}"]
