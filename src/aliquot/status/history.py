"""The past of GPUs: what programs record of them, and what is read of it. Units as in `aliquot.status.gpus`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity
from aliquot.model.wake import parse_span
from aliquot.status.answers import History
from aliquot.status.gpus import Gpu, Share
from aliquot.status.hours import Hours
from aliquot.status.tenants import TenantStatus
from aliquot.status.uses import Uses

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
