"""The first view of `aliquot top`: what waits, then each GPU with its tenants under it, as wide as the terminal."""

from __future__ import annotations

from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from aliquot.cli.top_cells import Row
from aliquot.cli.top_rows import UNKNOWN, Look, found, memory_text, ordered, state_of, usage_text, wait_text
from aliquot.model.quantities import format_milli
from aliquot.status import Gpu, Share, Workload

NAME, STATE, USE, PROMISED, MEMORY, WAIT, PID, WHAT = (
    "GPU / TENANT", "STATE", "BUSY / USED", "PROMISED", "MEMORY GiB", "WAIT", "PID", "WHAT",
)  # fmt: skip
SLIM: Final = (NAME, STATE, USE, PROMISED, MEMORY)
WIDE: Final = (*SLIM, WAIT, PID, WHAT)
WIDE_FROM: Final = 120
WAITS: Final = "waits|"
_PADDING: Final = 2
"""Cells that the table adds to each column."""
_EDGE: Final = 3
"""Cells for a scroll bar and the edge."""


def tenant_key(gpu: Gpu, share: Share) -> str:
    """The row of a tenant on a GPU."""
    return f"{gpu.uuid}|{share.tenant}"


def overview(look: Look, width: int, *, sort: str, text: str) -> tuple[tuple[str, ...], dict[str, Row]]:
    """Columns and rows for a terminal that wide: no row is wider than the terminal."""
    wide = width >= WIDE_FROM
    rows: dict[str, Row] = {}
    for each in look.workloads:
        if each.state == "Pending" and text.lower() in f"{each.name} {each.message}".lower():
            rows[f"{WAITS}{each.name}"] = _waiting_row(each)
    several = len({gpu.node for gpu in look.gpus}) > 1
    for gpu in ordered(found(look.gpus, text), sort):
        rows[gpu.uuid] = _gpu_row(look, gpu, several=several, wide=wide)
        for share in gpu.shares:
            rows[tenant_key(gpu, share)] = _tenant_row(look, gpu, share, wide=wide)
    columns = WIDE if wide else SLIM
    return columns, _fitted(columns, rows, width)


def _waiting_row(workload: Workload) -> Row:
    memory = f"{'':>5} / {workload.memory_mib / 1024:.1f}" if workload.memory_mib else UNKNOWN
    promised = f"{format_milli(workload.request_milli):>5} asked"
    return (workload.name, "waits", "", promised, memory, "", "", workload.message)


def _gpu_row(look: Look, gpu: Gpu, *, several: bool, wide: bool) -> Row:
    name = f"{gpu.node} GPU {gpu.index}" if several else f"GPU {gpu.index}"
    busy = Text(usage_text(gpu.busy_milli, 16 if wide else 6, measured=gpu.measured), style="bold green")
    memory = Text(memory_text(gpu.memory_used_mib, gpu.memory_mib, measured=gpu.measured), style="blue")
    what = "   ".join(filter(None, [gpu.model, look.sensors.get(gpu.uuid, "")]))
    promised = f"{format_milli(1000 - gpu.free_milli):>5} of 1"
    title = Text(name if wide else f"{name} {gpu.model}", style="bold")
    return (title, gpu.state, busy, promised, memory, "", "", Text(what, style="bold"))


def _tenant_row(look: Look, gpu: Gpu, share: Share, *, wide: bool) -> Row:
    cells = 16 if wide else 6
    usage = Text(usage_text(share.usage_milli, cells, share.limit_milli, measured=gpu.measured), style="green")
    memory = Text(memory_text(share.memory_used_mib, share.memory_mib, measured=gpu.measured), style="blue")
    promised = f"{format_milli(share.request_milli):>5}-{format_milli(share.limit_milli)}"
    wait = wait_text(gpu, share)
    processes = look.processes.get(share.tenant, ())
    pid = f"{processes[0].pid}{f' +{len(processes) - 1}' if len(processes) > 1 else ''}" if processes else ""
    what = processes[0].command if processes else ""
    return (f"  {share.tenant}", state_of(gpu, share), usage, promised, memory, wait, pid, what)


def _fitted(columns: tuple[str, ...], rows: dict[str, Row], width: int) -> dict[str, Row]:
    """The rows with names and what runs cut so that a row fits; only the last column of a wide terminal grows."""
    rows = {key: row[: len(columns)] for key, row in rows.items()}
    own = [max([cell_len(title), *(cell_len(str(row[n])) for row in rows.values())]) for n, title in enumerate(columns)]
    room = width - _EDGE - _PADDING * len(columns)
    if columns == SLIM:
        return {key: (cut(row[0], room - sum(own[1:])), *row[1:]) for key, row in rows.items()}
    name = min(own[0], 40)
    last = room - name - sum(own[1:-1])
    return {key: (cut(row[0], name), *row[1:-1], cut(row[-1], last)) for key, row in rows.items()}


def cut(cell: str | Text, cells: int) -> str | Text:
    """A cell of at most that width, with a sign where something was left out."""
    if cell_len(str(cell)) <= cells:
        return cell
    text = set_cell_size(str(cell), max(1, cells - 1)).rstrip() + "…"
    return Text(text, style=cell.style) if isinstance(cell, Text) else text
