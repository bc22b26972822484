"""What `aliquot top` shows on a terminal: rows, and the lines of the box under them. No screen and no clock.

The first view has what waits, then each GPU with its tenants under it, as wide as the terminal; others have the GPUs,
the tenants of one, or the workloads. The box has the chosen row with what was seen of it so far.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from aliquot.cli.tables import aligned
from aliquot.model.quantities import format_milli
from aliquot.standalone.wire import RunProcess
from aliquot.status import Gpu, Share, Workload
from aliquot.status.sensors import Sensors

Row = tuple[str | Text, ...]

OVERVIEW: Final = ("GPU / TENANT", "STATE", "BUSY / USED", "PROMISED", "MEMORY GiB")
OVERVIEW_WIDE: Final = (*OVERVIEW, "WAIT", "PID", "WHAT")
GPUS: Final = ("NODE", "GPU", "STATE", "USED", "FREE", "MEMORY GiB")
GPUS_WIDE: Final = (*GPUS, "TREND", "PROMISED TO", "TENANTS", "MODEL")
TENANTS: Final = ("TENANT", "REQUEST", "LIMIT", "USAGE", "MEMORY GiB", "STATE", "WAIT", "QUOTA", "DEBT")
WORKLOADS: Final = ("WORKLOAD", "STATE", "PROMISED", "GETS", "MEMORY GiB", "WHERE", "KIND")
WIDE_FROM: Final = 120
WAITS: Final = "waits|"
UNKNOWN: Final = "-"
SORTS: Final = ("name", "busy", "free", "memory")
MAX_POINTS: Final = 240
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_PADDING: Final = 2
"""Cells that the table adds to each column."""
_EDGE: Final = 3
"""Cells for a scroll bar and the edge."""
_BOX_EDGE: Final = 6
"""Cells for the padding, a scroll bar, and the gap behind the name."""


class Look(NamedTuple):
    """Everything at one moment."""

    title: str
    window_s: float
    gpus: Sequence[Gpu]
    workloads: Sequence[Workload]
    silent: Mapping[str, str] = MappingProxyType({})
    """Why a node tells nothing of what is used there, by its name."""
    processes: Mapping[str, Sequence[RunProcess]] = MappingProxyType({})
    """The processes of each tenant, where they are known."""
    sensors: Mapping[str, str] = MappingProxyType({})
    """Temperature and power of GPUs by UUID, as text, where NVML answers."""

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of a UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def workload(self, name: str) -> Workload | None:
        """The workload of a name."""
        return next((workload for workload in self.workloads if workload.name == name), None)


def in_words(sensors: Mapping[str, Sensors]) -> dict[str, str]:
    """`43 °C  120 W` of each GPU, without what its NVML does not answer."""
    texts = {}
    for uuid, reading in sensors.items():
        celsius = "" if reading.celsius is None else f"{reading.celsius} °C"
        watts = "" if reading.watts is None else f"{reading.watts:.0f} W"
        texts[uuid] = "  ".join(filter(None, (celsius, watts)))
    return texts


def bar(milli: int, cells: int, limit_milli: int = 1000) -> str:
    """Thousandths as a bar that is always so many cells wide, with a stroke at a limit below the whole."""
    eighths = max(0, min(milli, 1000)) * cells * 8 // 1000
    full, rest = divmod(eighths, 8)
    drawn = list("█" * full + (_BLOCKS[rest] if rest else ""))
    drawn += ["░"] * (cells - len(drawn))
    if limit_milli < 1000:
        drawn[min(cells - 1, limit_milli * cells // 1000)] = "│"
    return "".join(drawn)


def spark(values: Iterable[float], most: float, cells: int) -> str:
    """The last values as columns of up to eight heights, right-aligned in so many cells."""
    last = list(values)[-cells:]
    scale = most or 1.0
    drawn = "".join(_SPARKS[max(0, min(7, int(value * 8 / scale)))] for value in last)
    return drawn.rjust(cells)


def shares_bar(gpu: Gpu, cells: int) -> str:
    """Who holds what of a GPU: one letter a tenant for its request, dots for what is free."""
    drawn, promised = "", 0
    for number, share in enumerate(gpu.shares):
        promised += share.request_milli
        end = round(promised * cells / 1000)
        drawn += chr(ord("a") + number % 26) * (max(len(drawn), end) - len(drawn))
    return drawn[:cells].ljust(cells, "·")


def kept(percent: float | None) -> str:
    """`99.95` -> `99.9 %`, never rounded up."""
    if percent is None:
        return "-"
    return "100 %" if percent >= 100 else f"{int(percent * 10) / 10:.1f} %"


def head(look: Look) -> str:
    """The whole in one line."""
    gpus = look.gpus
    measured = sum(gpu.measured for gpu in gpus)
    used, free = f"{sum(gpu.busy_milli for gpu in gpus) / 1000:.2f}", sum(gpu.free_milli for gpu in gpus)
    memory_used = f"{sum(gpu.memory_used_mib for gpu in gpus) / 1024:.1f}"
    if measured < len(gpus):
        used = f"{used} on {measured}" if measured else UNKNOWN
        memory_used = memory_used if measured else UNKNOWN
    memory = f"{memory_used} / {sum(gpu.memory_mib for gpu in gpus) / 1024:.1f} GiB"
    waiting = sum(workload.state == "Pending" for workload in look.workloads)
    waits = f"{waiting} waiting   " if waiting else ""
    return f"{waits}{len(gpus)} GPUs   busy {used}   promised {len(gpus) - free / 1000:.2f}   memory {memory}"


def matching(gpus: Iterable[Gpu], text: str) -> list[Gpu]:
    """GPUs whose node, model, UUID, state or a tenant contains the text."""
    wanted = text.lower()
    return [
        gpu
        for gpu in gpus
        if wanted in f"{gpu.node} gpu {gpu.index} {gpu.model} {gpu.uuid} {gpu.state} {gpu.vgpu}".lower()
        or any(wanted in share.tenant.lower() for share in gpu.shares)
    ]


def ordered(gpus: Iterable[Gpu], sort: str) -> list[Gpu]:
    """By node and index, or the most used, the most free compute, the most free memory first."""
    keys: dict[str, Callable[[Gpu], int]] = {
        "busy": lambda gpu: -gpu.busy_milli,
        "free": lambda gpu: -gpu.free_milli,
        "memory": lambda gpu: -gpu.free_mib,
    }
    rank: Callable[[Gpu], int] = keys.get(sort, lambda gpu: 0)
    return sorted(gpus, key=lambda gpu: (rank(gpu), gpu.node, gpu.index))


def cut(cell: str | Text, cells: int) -> str | Text:
    """A cell of at most that width, with a sign where something was left out."""
    if cell_len(str(cell)) <= cells:
        return cell
    text = set_cell_size(str(cell), max(1, cells - 1)).rstrip() + "…"
    return Text(text, style=cell.style) if isinstance(cell, Text) else text


# Cells


def usage_cell(milli: int, cells: int, limit_milli: int = 1000, *, measured: bool, style: str = "green") -> Text:
    """A bar and its number, as wide where nothing is known."""
    text = f"{bar(milli, cells, limit_milli)} {milli / 1000:.2f}" if measured else UNKNOWN.ljust(cells + 5)
    return Text(text, style=style)


def memory_cell(used_mib: int, max_mib: int, *, measured: bool) -> Text:
    """Used and whole, in GiB."""
    used = f"{used_mib / 1024:.1f}" if measured else UNKNOWN
    return Text(f"{used:>5} / {max_mib / 1024:.1f}", style="blue")


def state_of(gpu: Gpu, share: Share) -> str:
    """What a tenant does on a GPU now."""
    if share.hidden or not gpu.measured:
        return UNKNOWN
    if share.enforce != "all":
        return "bare driver" if share.enforce == "never" else "memory only"
    if share.memory_parked_mib:
        return "parked"
    if gpu.holder == share.tenant:
        return "runs"
    if share.waiting:
        return "waits"
    return "idle" if share.processes else "no process"


# Rows


def tenant_key(gpu: Gpu, share: Share) -> str:
    """The row of a tenant on a GPU."""
    return f"{gpu.uuid}|{share.tenant}"


def overview(look: Look, width: int, *, sort: str, text: str) -> tuple[tuple[str, ...], dict[str, Row]]:
    """Columns and rows for a terminal that wide: no row is wider than the terminal.

    Names and what runs are cut so that a row fits; only the last column of a wide terminal grows.
    """
    wide = width >= WIDE_FROM
    columns, cells = (OVERVIEW_WIDE, 16) if wide else (OVERVIEW, 6)
    rows: dict[str, Row] = {}
    for workload in look.workloads:
        if workload.state == "Pending" and text.lower() in f"{workload.name} {workload.message}".lower():
            memory = f"{'':>5} / {workload.memory_mib / 1024:.1f}" if workload.memory_mib else UNKNOWN
            asked = f"{format_milli(workload.request_milli):>5} asked"
            rows[f"{WAITS}{workload.name}"] = (
                workload.name, "waits", "", asked, memory, "", "", workload.message,
            )  # fmt: skip
    several = len({gpu.node for gpu in look.gpus}) > 1
    for gpu in ordered(matching(look.gpus, text), sort):
        name = f"{gpu.node} GPU {gpu.index}" if several else f"GPU {gpu.index}"
        what = "   ".join(filter(None, [gpu.model, look.sensors.get(gpu.uuid, "")]))
        rows[gpu.uuid] = (
            Text(name if wide else f"{name} {gpu.model}", style="bold"), gpu.state,
            usage_cell(gpu.busy_milli, cells, measured=gpu.measured, style="bold green"),
            f"{format_milli(1000 - gpu.free_milli):>5} of 1",
            memory_cell(gpu.memory_used_mib, gpu.memory_mib, measured=gpu.measured), "", "", Text(what, style="bold"),
        )  # fmt: skip
        for share in gpu.shares:
            processes = look.processes.get(share.tenant, ())
            more = f" +{len(processes) - 1}" if len(processes) > 1 else ""
            rows[tenant_key(gpu, share)] = (
                f"  {share.tenant}", state_of(gpu, share),
                usage_cell(share.usage_milli, cells, share.limit_milli, measured=gpu.measured),
                f"{format_milli(share.request_milli):>5}-{format_milli(share.limit_milli)}",
                memory_cell(share.memory_used_mib, share.memory_mib, measured=gpu.measured),
                f"{share.wait_ms:.0f} ms" if gpu.measured and not share.hidden else UNKNOWN,
                f"{processes[0].pid}{more}" if processes else "", processes[0].text if processes else "",
            )  # fmt: skip
    rows = {key: row[: len(columns)] for key, row in rows.items()}
    own = [max([cell_len(title), *(cell_len(str(row[n])) for row in rows.values())]) for n, title in enumerate(columns)]
    room = width - _EDGE - _PADDING * len(columns)
    if not wide:
        return columns, {key: (cut(row[0], room - sum(own[1:])), *row[1:]) for key, row in rows.items()}
    first = min(own[0], 40)
    last = room - first - sum(own[1:-1])
    return columns, {key: (cut(row[0], first), *row[1:-1], cut(row[-1], last)) for key, row in rows.items()}


def gpu_row(gpu: Gpu, busy: Iterable[float], *, wide: bool) -> Row:
    """A GPU, under GPUS; `busy` is its use so far."""
    used = usage_cell(gpu.busy_milli, 10, measured=gpu.measured)
    memory = memory_cell(gpu.memory_used_mib, gpu.memory_mib, measured=gpu.measured)
    start: Row = (gpu.node, f"GPU {gpu.index}", gpu.state, used, f"{format_milli(gpu.free_milli):>5}", memory)
    if not wide:
        return start
    trend = Text(spark(busy, 1000, 16), style="green")
    return (*start, trend, shares_bar(gpu, 16), f"{len(gpu.shares):>3}", gpu.model)


def share_row(gpu: Gpu, share: Share, *, wide: bool) -> Row:
    """A tenant on a GPU, under TENANTS."""
    start: Row = (
        share.tenant, f"{format_milli(share.request_milli):>7}", f"{format_milli(share.limit_milli):>5}",
        usage_cell(share.usage_milli, 20 if wide else 10, share.limit_milli, measured=gpu.measured),
        memory_cell(share.memory_used_mib, share.memory_mib, measured=gpu.measured), state_of(gpu, share),
    )  # fmt: skip
    if not wide:
        return start
    times_ms = (share.wait_ms, share.quota_ms, share.debt_ms)
    visible = gpu.measured and not share.hidden
    return (*start, *(f"{time_ms:>4.0f} ms" if visible else UNKNOWN for time_ms in times_ms))


def workload_row(workload: Workload) -> Row:
    """A workload, under WORKLOADS."""
    where = ", ".join(f"{piece.node} GPU {piece.index}" for piece in workload.pieces) or workload.message
    promised = format_milli(workload.request_milli)
    if workload.limit_milli != workload.request_milli:
        promised += f"-{format_milli(workload.limit_milli)}"
    usage = Text(f"{workload.usage_milli / 1000:.2f}" if workload.measured else UNKNOWN, style="green")
    memory = memory_cell(workload.memory_used_mib, workload.memory_mib, measured=workload.measured)
    return (workload.name, workload.state, promised, usage, memory, where[:60], workload.kind)


# The box under the table


class UsageHistory:
    """The last `MAX_POINTS` measurements: by GPU its use, by GPU and tenant its use and wait."""

    def __init__(self) -> None:
        self.busy: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MAX_POINTS))
        self.usage: dict[tuple[str, str], deque[tuple[float, float]]] = defaultdict(lambda: deque(maxlen=MAX_POINTS))

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
        self._cells = max(16, min(MAX_POINTS, width - 24))

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
        room = self._width - _BOX_EDGE - max(map(len, aligned(numbers)))
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
            *(f"pid {process.pid:>8}  {process.text}" for process in self._look.processes.get(tenant, ())),
        ]

    def workload(self, name: str) -> list[str]:
        """A workload that runs or waits."""
        workload = self._look.workload(name)
        if workload is None:
            return []
        lines = [workload.message] if workload.message else []
        if workload.windows:
            lines.append(f"promise kept in {kept(workload.kept_percent)} of {workload.windows} windows")
        return [*lines, *workload.events[-6:]] or [f"{workload.kind} {workload.name}"]
