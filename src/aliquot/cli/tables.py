"""Tables for people: aligned columns, and the rows of `aliquot get`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from aliquot.cli.calling import short_name
from aliquot.model.ages import format_age
from aliquot.model.errors import UserError, printable
from aliquot.model.quantities import MILLI, format_mib, format_milli

if TYPE_CHECKING:
    from aliquot.model.requests import Slice
    from aliquot.standalone.wire import GpuFacts, PodFacts, TenantFacts, TenantSlice
    from aliquot.status import Recommendations

Table = list[list[str]]
UNBOUNDED: Final = 10_000
"""The width of what goes to a file or a pipe."""
MAX_COMMAND: Final = 60
LONGEST_AMOUNT: Final = 20
"""Columns that are no wider have amounts, such as `23.9 GiB -> 12.0 GiB`."""


def columns() -> int:
    """How wide a table may be: as the terminal, or as COLUMNS says; UNBOUNDED where the output goes to a file."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return shutil.get_terminal_size().columns
    return UNBOUNDED


def aligned(
    rows: Sequence[Sequence[str]], widths: Sequence[int] = (), *, right: Collection[int] = (), width: int = UNBOUNDED
) -> Iterable[str]:
    """The rows in columns, each at least as wide as `widths` says; those in `right` are aligned to the right.

    Where they are wider than `width`, long texts are cut, and columns at the end left out: no number is cut.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    least = [*widths, *([0] * (len(rows[0]) - len(widths)))]
    wide = [max(least[column], *(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    while len(wide) > 1 and sum(min(each, LONGEST_AMOUNT) + 2 for each in wide) - 2 > width:
        wide.pop()
    while max(wide) > LONGEST_AMOUNT and sum(wide) + 2 * (len(wide) - 1) > width:
        wide[wide.index(max(wide))] -= 1
    for row in rows:
        cells = [cut(cell, most) for cell, most in zip(row, wide, strict=False)]
        cells = [
            cell.rjust(most) if column in right else cell.ljust(most)
            for column, (cell, most) in enumerate(zip(cells, wide, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def cut(text: str, cells: int) -> str:
    """A text of at most that width, with a sign where something was left out."""
    return text if len(text) <= cells else f"{text[: cells - 1]}…"


class _Paths(textwrap.TextWrapper):
    """Breaks a word that is longer than a line behind its slashes, where it has any."""

    def _handle_long_word(self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int) -> None:
        word = reversed_chunks[-1]
        if end := word.rfind("/", 0, width - cur_len) + 1:
            cur_line.append(word[:end])
            reversed_chunks[-1] = word[end:]
        elif not cur_line:
            super()._handle_long_word(reversed_chunks, cur_line, cur_len, width)


def wrapped(text: str, width: int) -> list[str]:
    """A sentence in lines of that width; the further ones begin under what stands behind the last gap of the first."""
    if len(text) <= width:
        return [text]
    gap = max((gap.end() for gap in re.finditer(r"  +(?=\S)", text[: width // 2 + 1])), default=0)
    indent = " " * max(0, 4 - gap)
    wrapper = _Paths(max(20, width - gap), subsequent_indent=indent, break_on_hyphens=False)
    lines = wrapper.wrap(text[gap:]) or [""]
    return [text[:gap] + lines[0], *(" " * gap + line for line in lines[1:])]


def nearest(links: Sequence[str]) -> str:
    """The class of a GPU's best link and the GPUs at its end, as in `NV2 1,3`."""
    from aliquot.topology import link_cost

    others = [(link_cost(label), label, g) for g, label in enumerate(links) if label != "X"]
    if not others:
        return "-"
    best = min(others)[1]
    return f"{best} {','.join(str(g) for _, label, g in others if label == best)}"


def reserved(free_milli: int, memory_mib: int, free_mib: int) -> tuple[str, str]:
    """Compute and memory of a GPU that are promised, as `0.30 of 1.00` and `4.0 / 16.0 GiB`."""
    memory = f"{(memory_mib - free_mib) / 1024:.1f} / {memory_mib / 1024:.1f} GiB"
    return f"{format_milli(MILLI - free_milli)} of {format_milli(MILLI)}", memory


def pod_table(
    pods: Sequence[PodFacts], *, wide: bool = False, namespaces: bool = False, reasons: bool = False
) -> Table:
    """SharePods; `namespaces` and `reasons` have their namespaces, and why they wait, in columns of their own."""
    head = ["NAME", "STATUS", "GPU", "REQUEST", "LIMIT", "MEMORY", "RESTARTS", "AGE"]
    head = [*(["NAMESPACE"] if namespaces else []), *head, *(["UUID", "PID", "COMMAND", "LABELS"] if wide else [])]
    table = [[*head, *(["REASON"] if reasons else [])]]
    for pod in pods:
        space, _, name = pod.name.rpartition("/")
        row = [
            *([space, name] if namespaces else [short_name(pod.name)]),
            pod.state,
            ",".join(map(str, pod.gpus)) or "-",
            format_milli(pod.request_milli),
            format_milli(pod.limit_milli),
            memory_of(pod),
            str(pod.restarts),
            format_age(pod.age_s),
        ]
        if wide:
            pids = [str(c.pid) for c in pod.containers if c.pid]
            commands = "; ".join(shlex.join(c.command) for c in pod.containers)
            labels = ",".join(f"{key}={value}" for key, value in pod.labels.items())
            command = commands if len(commands) <= MAX_COMMAND else f"{commands[: MAX_COMMAND - 3]}..."
            row += [",".join(pod.gpu_uuids) or "-", ",".join(pids) or "-", command or "-", labels or "-"]
        table.append([*row, *([pod.message.partition(". ")[0]] if reasons else [])])
    return table


def memory_of(pod: PodFacts) -> str:
    """What it has, or what it requested while it waits."""
    return _with_more(pod.memory_mib, pod) if pod.gpus else pod.requested_memory or "-"


def _with_more(memory_mib: int, held: PodFacts | TenantFacts) -> str:
    """An amount of memory, and what is held beyond it: since it was reduced, or because it is lent."""
    more = ((held.pending_mib, "to free"), (held.lent_mib, "lent"))
    return format_mib(memory_mib) + "".join(f" (+{format_mib(mib)} {why})" for mib, why in more if mib)


def size_change(before: Slice | TenantSlice, after: Slice | TenantSlice) -> str:
    """What a resize changes, and what it leaves."""
    return (
        f"request {format_milli(before.request_milli)} -> {format_milli(after.request_milli)}, "
        f"limit {format_milli(before.limit_milli)} -> {format_milli(after.limit_milli)}, "
        f"memory {format_mib(before.memory_mib)} -> {format_mib(after.memory_mib)}"
    )


def tenant_table(tenants: Sequence[TenantFacts], *, wide: bool = False) -> Table:
    """Tenants, one a row, with the numbers of their GPUs and what they hold of all of them."""
    head = ["TENANT", "GPU", "REQUEST", "LIMIT", "MEMORY", "INJECTION"]
    table = [[*head, *(["ENFORCED", "UUID"] if wide else [])]]
    for tenant in tenants:
        pieces = tenant.slices
        shares = [
            format_milli(sum(piece.request_milli for piece in pieces)),
            format_milli(sum(piece.limit_milli for piece in pieces)),
            _with_more(sum(piece.memory_mib for piece in pieces), tenant) + (" (parked)" if tenant.parked else ""),
        ]
        row = [
            tenant.name,
            ",".join(map(str, tenant.gpus)) or "-",
            *shares,
            " ".join([tenant.injection or "-", *tenant.containers]),
        ]
        table.append([*row, *([tenant.enforce, ",".join(piece.gpu for piece in pieces)] if wide else [])])
    return table


def ended_lines(tenants: Iterable[TenantFacts], width: int) -> list[str]:
    """Why the programs of tenants were ended, where they were, in lines of that width."""
    said = (f"the programs of {tenant.name} were ended: {tenant.why_ended}" for tenant in tenants if tenant.why_ended)
    return [line for text in said for line in wrapped(text, width)]


def gpu_table(gpus: Sequence[GpuFacts], *, wide: bool = False) -> Table:
    """Each GPU with its class of links to the others, and under it its tenants."""
    more = ["NUMA", "CORES", "DRIVER"] if wide else []
    table = [["GPU", "MODEL", "PROMISED", "MEMORY", "NEAREST", "LABELS", "UUID", *more]]
    for gpu in gpus:
        labels = " ".join(f"{kind}={value}" for kind, value in gpu.labels.items()) or "-"
        amounts = reserved(gpu.free_milli, gpu.memory_mib, gpu.free_mib)
        row = [str(gpu.index), gpu.model, *amounts, nearest(gpu.links), labels, gpu.uuid]
        numa = "-" if gpu.numa is None else str(gpu.numa)
        table.append([*row, *([numa, gpu.cores or "-", gpu.driver or "-"] if wide else [])])
        for tenant in gpu.tenants:
            size, share = format_mib(tenant.memory_mib), format_milli(tenant.request_milli)
            row = ["", f"  {tenant.name}", f"  {share}", f"  {size}", "", "", ""]
            table.append([*row, *([""] * len(more))])
    return table


def recommended(found: Recommendations, name: str, namespace: str = "") -> Recommendations:
    """The recommendations for a controller, or a namespace, alone; `name` is one that `recommended_lines` shows.

    Raises:
        UserError: nothing of that name has a share.
    """
    import msgspec

    lines = [line for line in found.recommendations if not namespace or line.namespace == namespace]
    if name:
        short = {line.name: line.controller.partition("/")[2] for line in lines}
        lines = [
            line
            for line in lines
            if name in (line.name, line.name.removeprefix("default/"), line.controller, short[line.name])
            or name == f"{line.namespace}/{short[line.name]}"
        ]
    if name and not lines:
        names = ", ".join(line.name for line in found.recommendations) or "nothing"
        raise UserError(f'"{name:.80}" has no share now; recommendations are for {names}')
    spaces = {line.namespace for line in lines}
    totals = [row for row in found.namespaces if row.namespace in spaces]
    return msgspec.structs.replace(found, recommendations=lines, namespaces=totals)


def recommended_lines(found: Recommendations) -> Iterable[str]:
    """A table of sizes, each with the recommended one where it is another; then the reasons and the commands."""
    if found.note:
        yield f"note: {found.note}"
    if not found.recommendations:
        yield "nothing has a share"
        return

    def change(asked: int, wanted: int, form: Callable[[int], str]) -> str:
        return form(asked) if asked == wanted else f"{form(asked)} -> {form(wanted)}"

    table = [["NAME", "REQUEST", "USED P95", "PEAK", "LIMIT", "MEMORY", "HELD", "IDLE"]]
    for line in found.recommendations:
        asked, wanted, use = line.asked, line.recommended, line.use
        used = ["-"] * 4
        if use is not None:
            held = format_mib(use.memory_mib.peak)
            idle = f"{100 * use.idle_s // max(1, use.recorded_s)} %"
            used = [format_milli(use.milli.p95), format_milli(use.milli.peak), held, idle]
        request = change(asked.request_milli, wanted.request_milli, format_milli)
        limit = change(asked.limit_milli, wanted.limit_milli, format_milli)
        memory = change(asked.memory_mib, wanted.memory_mib, format_mib)
        name = line.name.removeprefix("default/")
        table.append([name, request, used[0], used[1], limit, memory, used[2], used[3]])
    yield from aligned(table, width=columns())
    for line in found.recommendations:
        yield f"{line.name.removeprefix('default/')}: {'; '.join(line.reasons)}"
        if line.command:
            yield f"  {line.command}"
