"""The past of GPUs: what programs record of them, and what is read of it. Units as in `aliquot.status.gpus`.

With it the GPU-hours, by which names they are summed, as a table and as a file for spreadsheets; and what workloads
used by namespace, controller and container: percentiles of the minutes that the history has.

In how many windows of the last hour the promise was kept, from the arbiter's counts.

The arbiter evaluates every window in which a tenant wanted the GPU, as `aliquot.tokens.account.Kept` says, and counts
since the tenant was registered. Here the counts of two readings are subtracted. At the first reading all earlier counts
are dated to that moment, so that a page that has just been opened shows them.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import msgspec

from aliquot.model.errors import UserError
from aliquot.model.ids import split_key
from aliquot.model.quantities import BadQuantity
from aliquot.model.wake import parse_span
from aliquot.status.gpus import Gpu, Share
from aliquot.status.tenants import TenantStatus
from aliquot.status.workloads import History

RUN: Final = "Run"
"""The controller of all runs of a machine; each of them is a workload of its own here."""


class Percentiles(msgspec.Struct, frozen=True):
    """A quantity over the recorded minutes: so much or less in 50 and in 95 of 100, and the most."""

    p50: int = 0
    p95: int = 0
    peak: int = 0


class ControllerUse(msgspec.Struct, frozen=True):
    """What the tenants of a controller's container used, each on each of its GPUs.

    `recorded_s` is the time that is recorded of all of them together, `idle_s` that of the minutes without work.
    """

    namespace: str
    controller: str
    container: str
    recorded_s: int
    idle_s: int
    milli: Percentiles
    memory_mib: Percentiles


class Uses(msgspec.Struct, frozen=True):
    """The uses of a time, by namespace, controller and container; `note` says why something is missing."""

    since_s: int
    until_s: int
    uses: list[ControllerUse]
    note: str = ""


def names_of_use(tenant: str, owner: str) -> tuple[str, str, str]:
    """Namespace, controller and container of a tenant: `default/a` of `SharePod/a`, `lab/web-7/main`, a run `train`."""
    namespace, rest = split_key(tenant)
    if owner == RUN:
        return namespace, f"{RUN}/{rest}", ""
    return namespace, owner, rest.partition("/")[2].partition("#")[0].partition("@")[0]


def spread(sums: Mapping[int, int]) -> Percentiles:
    """Percentiles of values, each with its weight."""
    total, found, so_far, peak = sum(sums.values()), [0, 0], 0, 0
    for value in sorted(value for value, weight in sums.items() if weight > 0):
        for n, percent in enumerate((50, 95)):
            if so_far * 100 < percent * total:
                found[n] = value
        so_far += sums[value]
        peak = value
    return Percentiles(found[0], found[1], peak)


DIMENSIONS: Final = ("namespace", "controller", "model")
DEFAULT_DIMENSIONS: Final = ("namespace", "controller")
COLUMNS: Final[Mapping[str, str]] = {
    "promised": "Promised",
    "used": "Used",
    "borrowed": "Borrowed",
    "lent": "Lent to others",
    "idle": "Idle",
    "waited": "Waited",
}


class HourLine(msgspec.Struct, frozen=True):
    """GPU-hours of one namespace, controller and model, or of what they were summed by.

    `used` is `borrowed`, beyond the promise, and the rest within it. Promised and not used is `lent`, where others
    used it, and `idle`. `waited` is the time in which work of theirs waited for the GPU.
    """

    namespace: str
    owner: str
    model: str
    promised: float
    used: float
    borrowed: float
    lent: float
    idle: float
    waited: float


NO_HOURS: Final = HourLine("", "", "", 0, 0, 0, 0, 0, 0)


class Hours(msgspec.Struct, frozen=True):
    """GPU-hours from `since_s` to `until_s`, the largest promise first; `recorded` are those of the GPUs themselves.

    `note` says why something is missing, `source` where it was recorded if not here.
    """

    since_s: int
    until_s: int
    recorded: float
    lines: list[HourLine]
    total: HourLine
    note: str = ""
    source: str = ""


def dimensions(text: str, called: str = "by") -> tuple[str, ...]:
    """What hours are summed by, in order; `text` has the names with commas between them.

    Raises:
        UserError: there is no such dimension; `called` is the name of the text.
    """
    words = [word for word in text.split(",") if word] or DEFAULT_DIMENSIONS
    unknown = next((word for word in words if word not in DIMENSIONS), None)
    if unknown is not None:
        raise UserError(f'{called} "{unknown[:40]}" is unknown; name some of {", ".join(DIMENSIONS)}')
    return tuple(name for name in DIMENSIONS if name in words)


def names_of(line: HourLine, by: Sequence[str]) -> list[str]:
    """Of a line, the names of the dimensions."""
    names = dict(zip(DIMENSIONS, (line.namespace, line.owner, line.model), strict=True))
    return [names[dimension] for dimension in by]


def format_hours(value: float) -> str:
    """`0.1234` -> `0.12`, `1234.5` -> `1,234.5`."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def as_csv(hours: Hours, by: Sequence[str]) -> str:
    """The lines as a table for spreadsheets, hours with the digits that matter (3.6 ms)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*by, *(f"{field}_gpu_hours" for field in COLUMNS)])
    for line in hours.lines:
        writer.writerow([*names_of(line, by), *(f"{getattr(line, field):.6f}" for field in COLUMNS)])
    return out.getvalue()


def totalled(hours: Hours) -> Hours:
    """With the total of its lines, and the largest promise first."""
    lines = sorted(hours.lines, key=lambda line: (-line.promised, line.namespace, line.owner, line.model))
    return msgspec.structs.replace(hours, lines=lines, total=_together("", "", "", lines))


def summed_by(hours: Hours, by: Iterable[str]) -> Hours:
    """The same hours by fewer dimensions, of `DIMENSIONS`."""
    wanted = [dimension in set(by) for dimension in DIMENSIONS]
    groups: dict[tuple[str, str, str], list[HourLine]] = {}
    for line in hours.lines:
        namespace, owner, model = (
            name if keep else "" for name, keep in zip(names_of(line, DIMENSIONS), wanted, strict=True)
        )
        groups.setdefault((namespace, owner, model), []).append(line)
    lines = [_together(*key, held) for key, held in groups.items()]
    return totalled(msgspec.structs.replace(hours, lines=lines))


def _together(namespace: str, owner: str, model: str, lines: Sequence[HourLine]) -> HourLine:
    return HourLine(namespace, owner, model, *(sum(getattr(line, field) for line in lines) for field in COLUMNS))


MINUTE_S: Final = 60
QUARTER_S: Final = 900


class Lane(msgspec.Struct, frozen=True):
    """One tenant on one GPU over time, each list as long as the timeline's `at_s`; None where nothing was recorded.

    `used`, `promised`, `lent` and `waited` are parts of the recorded time, of which 1 is the whole GPU; `lent` is what
    was promised, not used, and used by others. `memory_mib` is a mean; `kept_percent` is None where no window counted.
    """

    tenant: str
    owner: str
    used: list[float | None]
    promised: list[float | None]
    lent: list[float | None]
    waited: list[float | None]
    memory_mib: list[float | None]
    kept_percent: list[float | None]
    handovers: list[int | None]


class Timeline(msgspec.Struct, frozen=True):
    """One GPU over time, oldest first; `at_s` is when each step begins, `recorded` how much of it was recorded.

    `note` says why something is missing, `source` where it was recorded if not here.
    """

    gpu: str
    since_s: int
    until_s: int
    step_s: int
    at_s: list[int]
    recorded: list[float]
    lanes: list[Lane]
    note: str = ""
    source: str = ""


class Turn(msgspec.Struct, frozen=True):
    """From when to when a tenant held a GPU; the end is from when on its work had ended."""

    tenant: str
    since_s: float
    until_s: float


class Turns(msgspec.Struct, frozen=True):
    """The turns on one GPU in the last minute, oldest first; `known_s` is from when on all of them are known."""

    gpu: str
    since_s: float
    until_s: float
    known_s: float
    turns: list[Turn]


class Range(NamedTuple):
    """A time to look back: how far, in which steps, and from which table."""

    label: str
    seconds: int
    step_s: int
    table: str


RANGES: Final[Mapping[str, Range]] = {
    "15m": Range("15 minutes", 900, 60, "minutes"),
    "1h": Range("1 hour", 3600, 60, "minutes"),
    "24h": Range("24 hours", 86_400, 300, "minutes"),
    "7d": Range("7 days", 604_800, 3600, "quarters"),
    "30d": Range("30 days", 2_592_000, 14_400, "quarters"),
}
"""By the word in an address."""


def range_of(word: str) -> Range:
    """The range by its word; an hour without one.

    Raises:
        UserError: there is none.
    """
    found = RANGES.get(word or "1h")
    if found is None:
        raise UserError(f'range "{word[:20]}" is unknown; choose one of {", ".join(RANGES)}')
    return found


DEFAULT_RANGE: Final = "7d"
_LONGEST_S: Final = max(span.seconds for span in RANGES.values())
_DAYS: Final = re.compile(r"(\d{1,2})d", re.ASCII)


def hours_range(word: str, called: str = "range") -> Range:
    """How far a word says to look back: one of `RANGES`, or any duration in whole quarter hours, rounded up.

    Raises:
        UserError: it is no duration, shorter than 15 minutes or longer than 30 days; `called` is the word's name in the
            text.
    """
    found = RANGES.get(word or DEFAULT_RANGE)
    if found is not None:
        return found
    days = _DAYS.fullmatch(word)
    try:
        seconds = 86_400 * int(days[1]) if days else parse_span(word)
    except BadQuantity:
        seconds = 0
    if not QUARTER_S <= seconds <= _LONGEST_S:
        raise UserError(f'{called} "{word[:20]}" is unknown; write 15m to 30d, such as 24h or 7d')
    quarters = -int(-seconds // QUARTER_S)
    return Range(word, QUARTER_S * quarters, QUARTER_S, "quarters")


class Counts(NamedTuple):
    """The arbiter's sums of one tenant on one GPU since it came."""

    charged_ns: int
    waited_ns: int
    windows: int
    kept: int
    handovers: int


class TenantReading(NamedTuple):
    """One tenant on one GPU at one moment; `owner` is its controller, such as `Deployment/web`.

    `counts` is None while the arbiter does not know it: its share is promised, and it uses nothing yet.
    """

    name: str
    owner: str
    request_milli: int
    memory_mib: int
    counts: Counts | None


class Reading(NamedTuple):
    """One GPU at one moment, with its tenants. One that is not measured is not read."""

    gpu: Gpu
    tenants: Sequence[TenantReading]


CountsOf = Callable[[Gpu, Share], Counts | None]
MAX_COUNT: Final = 1 << 60


def counts_of(now: TenantStatus) -> Counts:
    """The sums of a tenant on a GPU, each within bounds, since a node may report anything."""
    sums = (now.charged_ns, now.waited_ns, now.promise.windows, now.promise.kept, now.handovers)
    return Counts(*(min(max(0, number), MAX_COUNT) for number in sums))


def readings(gpus: Iterable[Gpu], counts: CountsOf) -> list[Reading]:
    """The GPUs that are measured, with the tenants on them."""
    return [
        Reading(gpu, [
            TenantReading(
                share.tenant, share.owner, share.request_milli, share.memory_used_mib, counts(gpu, share)
            )
            for share in gpu.shares
        ])
        for gpu in gpus
        if gpu.measured
    ]  # fmt: skip


class Past(Protocol):
    """What pages may query about the past; each may take a second."""

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """One GPU over time; without lanes where nothing is recorded."""

    def hours(self, span: Range) -> Hours:
        """GPU-hours by namespace, controller and model."""

    def uses(self, span: Range) -> Uses:
        """What was used, by namespace, controller and container."""


class Recorder(Past, Protocol):
    """What a program records its readings with."""

    def see(self, now_s: float, readings: Sequence[Reading]) -> None:
        """Add a reading; `now_s` is of a clock that only goes forward. One caller at a time."""

    def last_hour(self, gpu: str, seconds: float) -> History:
        """The last `seconds` of a GPU, one hour at most, in steps of seconds."""


SPAN_S: Final = 3600.0
MAX_READINGS: Final = 3600
"""The number of readings in an hour, a second apart; a node with a slow clock makes no more."""
MAX_WINDOWS: Final = 10**9
"""The maximum a node may report; a year has two million."""


@dataclass(slots=True)
class _Tenant:
    windows: int = 0  # the counts of the last reading: all windows, and those in which the promise was kept
    windows_kept: int = 0
    readings: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=MAX_READINGS))
    """The time, and by how many windows both counts grew since the previous reading."""


class PromiseHistory:
    """Windows of every tenant of every GPU, for the last hour."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._tenants: dict[tuple[str, str], _Tenant] = {}

    def add(self, gpu: str, status: TenantStatus, now_ns: int) -> None:
        """Add a reading of a tenant. Decreased counts (a new tenant of that name, a restarted arbiter) begin at 0."""
        windows = min(max(0, status.promise.windows), MAX_WINDOWS)
        kept = min(max(0, status.promise.kept), windows)
        known = self._tenants.setdefault((gpu, status.name), _Tenant())
        if windows < known.windows or kept < known.windows_kept or windows - known.windows < kept - known.windows_kept:
            known.windows = known.windows_kept = 0
        if windows > known.windows:
            known.readings.append((now_ns, windows - known.windows, kept - known.windows_kept))
        known.windows, known.windows_kept = windows, kept
        while known.readings and known.readings[0][0] < now_ns - SPAN_S * 1e9:
            known.readings.popleft()

    def kept_percent(self, gpu: str, tenant: str) -> tuple[float | None, int]:
        """Percent of the windows in which the promise was kept, and their number."""
        known = self._tenants.get((gpu, tenant))
        count = sum(windows for _, windows, _ in known.readings) if known is not None else 0
        if known is None or not count:
            return None, 0
        return 100.0 * sum(kept for _, _, kept in known.readings) / count, count

    def forget_all_but(self, present: set[tuple[str, str]]) -> None:
        """Drop the records of tenants that have left."""
        for key in self._tenants.keys() - present:
            del self._tenants[key]
