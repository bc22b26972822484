"""The table of `aliquot top --once`: what waits, then the GPUs with their tenants, no line wider than the terminal.

A narrow terminal has shorter bars, then none. Sentences go on in another line, and only names are cut.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from aliquot.cli.tables import UNBOUNDED, aligned
from aliquot.model.quantities import format_milli

if TYPE_CHECKING:
    from aliquot.arbiter.records import GpuStatus, Status
    from aliquot.driver.gpu import Gpu
    from aliquot.standalone.wire import EngineFacts
    from aliquot.status.tenants import TenantStatus

BAR_CELLS: Final = 22
_LEAST_BAR: Final = 6
_NAME_WIDTH: Final = 14
_LEAST_NAME: Final = 6


def render(facts: EngineFacts, status: Status, waiting: Mapping[str, str], width: int = UNBOUNDED) -> str:
    """The table as text: what waits, then the GPUs."""
    by_uuid = {gpu.uuid: gpu for gpu in status.gpus}
    window = f"{status.window_ms / 1000:g} s"
    blocks = []
    if waiting:
        reasons = [line for name, why in waiting.items() for line in _wrapped(f"  {name}  {why}", width)]
        blocks.append([f"{len(waiting)} waiting", *reasons])
    for gpu in facts.gpus:
        seen = by_uuid.get(gpu.uuid)
        lines = _gpu_lines(gpu, seen, _since(status, seen), width, emulated=bool(facts.emulate))
        blocks.append(lines + (_tenant_lines(seen, window, width) if seen and seen.tenants else ["  no tenants"]))
    meaning = (
        f"busy: charged to all tenants, of {window}; usage: of {window}, or of the time since a tenant came; "
        "│: its limit"
    )
    blocks.append(_wrapped(meaning, width))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _since(status: Status, seen: GpuStatus | None) -> str:
    """How long ago its first tenant ran, where that is less than the window that `busy` is a part of."""
    granted = [tenant.first_grant_ns for tenant in seen.tenants if tenant.first_grant_ns] if seen else []
    ago_s = (status.now_ns - min(granted, default=0)) / 1e9
    window_s = status.window_ms / 1000
    return f" of {window_s:g} s, in use for {ago_s:.0f} s" if granted and ago_s < window_s else ""


def _gpu_lines(gpu: Gpu, seen: GpuStatus | None, since: str, width: int, *, emulated: bool) -> list[str]:
    used = sum(tenant.memory_used_mib for tenant in seen.tenants) if seen else 0
    name = f"GPU {gpu.index}  {gpu.model}{' (emulated)' if emulated else ''}"
    busy = f"busy {(seen.busy if seen else 0.0) * 100:.0f} %{since}"
    now = f"{busy}   memory {used / 1024:.1f} / {gpu.memory_mib / 1024:.1f} GiB"
    whole = f"{name}   {now}"
    return [whole] if len(whole) <= width else [_cut(name, width), f"  {now}"]


def _tenant_lines(gpu: GpuStatus, window: str, width: int) -> list[str]:
    names = max(_NAME_WIDTH, *(len(tenant.name) for tenant in gpu.tenants))
    cells = BAR_CELLS - max(0, max(map(len, _with_bars(gpu.tenants, window, names, BAR_CELLS))) - width)
    lines = (
        _with_bars(gpu.tenants, window, names, cells)
        if cells >= _LEAST_BAR
        else _without_bars(gpu.tenants, width)
    )  # fmt: skip
    wakes = [f"  {tenant.wake_text}" for tenant in gpu.tenants if tenant.wake is not None]
    return [*lines, *(line for text in wakes for line in _wrapped(text, width))]


def _with_bars(tenants: Sequence[TenantStatus], window: str, names: int, cells: int) -> list[str]:
    usage = f"USAGE ({window})".ljust(cells + 6)
    head = f"  {'TENANT':<{names}} REQUEST  LIMIT   {usage}   {'MEMORY':<16} WAITS"
    return [head, *(_tenant_line(tenant, names, cells) for tenant in tenants)]


def _tenant_line(tenant: TenantStatus, names: int, cells: int) -> str:
    return (
        f"  {tenant.name:<{names}}   {format_milli(tenant.request_milli):<5}   {format_milli(tenant.limit_milli):<5} "
        f" {bar(tenant.usage, tenant.limit_milli, cells)}  {tenant.usage:.2f}   {_memory(tenant):<16} "
        f"{tenant.wait_ms_p50:.0f} ms"
    )


def _without_bars(tenants: Sequence[TenantStatus], width: int) -> list[str]:
    rows = [
        [format_milli(each.request_milli), format_milli(each.limit_milli), f"{each.usage:.2f}", _memory(each),
         f"{each.wait_ms_p50:.0f} ms"]
        for each in tenants
    ]  # fmt: skip
    lines = list(aligned([["REQUEST", "LIMIT", "USAGE", "MEMORY", "WAITS"], *rows]))
    names = max(_LEAST_NAME, min(max(len(each.name) for each in tenants), width - max(map(len, lines)) - 4))
    heads = ["TENANT", *(each.name for each in tenants)]
    return [f"  {_cut(name, names):<{names}}  {line}" for name, line in zip(heads, lines, strict=True)]


def _memory(tenant: TenantStatus) -> str:
    return f"{tenant.memory_used_mib / 1024:.1f} / {tenant.memory_limit_mib / 1024:.1f} GiB"


def bar(usage: float, limit_milli: int, cells: int = BAR_CELLS) -> str:
    """Usage as a filled bar with a stroke at the limit, of fixed width."""
    filled = min(cells, round(usage * cells))
    drawn = ["█"] * filled + ["░"] * (cells - filled)
    if limit_milli < 1000:
        drawn[min(cells - 1, limit_milli * cells // 1000)] = "│"
    return "".join(drawn)


def _wrapped(text: str, width: int) -> list[str]:
    """A sentence, its further lines indented; one that fits is left as it is."""
    return [text] if len(text) <= width else textwrap.wrap(text, max(20, width), subsequent_indent="    ")


def _cut(text: str, cells: int) -> str:
    return text if len(text) <= cells else f"{text[: cells - 1]}…"
