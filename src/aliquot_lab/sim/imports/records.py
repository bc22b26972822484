"""What an importer hands over, and the count of what was kept and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

MAX_WARNINGS: Final = 20
MAX_NAME: Final = 200


class Dropped(StrEnum):
    """Why a job is left out."""

    NO_GPU = "without GPU"
    RUNNING = "still running at the end"
    NO_END = "ended at an unknown time"
    NEVER_RAN = "never started"
    OF_0_S = "of 0 s"
    NO_TIMES = "without usable times"
    SHARED = "with gres/shard or gres/mps, whose size is not recorded"
    UNREADABLE = "unreadable"


def plain(text: str) -> str:
    """A name for a cell or a message: on one line, of letters that UTF-8 has, and not longer than `MAX_NAME`."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text[:MAX_NAME].strip()


@dataclass(frozen=True, slots=True)
class Record:
    """One job of the source: when it could have started, how long it ran, and what each of its parts held.

    `sizes_milli` has the milli-GPU of each part; CPU and memory are those of one part. A job on several machines is
    several parts, because a request is placed on one machine. `notes` are what the reader of the trace should know of
    it, counted where the job is kept.
    """

    name: str
    arrival_s: float
    duration_s: float
    sizes_milli: tuple[int, ...]
    model: str = ""
    cpu_milli: int = 0
    memory_mib: int = 0
    priority: int = 0
    user: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class JobAccounts:
    """What was kept and dropped, by reason, and what the reader of the trace should know."""

    warn: Callable[[str], None]
    seen: int = 0
    kept: int = 0
    written: int = 0
    gpu_hours: float = 0.0
    dropped: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    place: object = ""
    """Its text names the line, or the item of a document, that is being read."""
    _warned: int = 0

    def drop(self, reason: str) -> None:
        """A job is left out."""
        self.dropped[reason] += 1

    def note(self, what: str, job: str) -> None:
        """Something is to be known of a job that is kept; the first such job is named."""
        self.notes[what] += 1
        self.first.setdefault(what, plain(job))

    def unreadable(self, what: str) -> None:
        """A job is left out because it cannot be read; the first of these are named."""
        self.drop(Dropped.UNREADABLE)
        self.warn_of_line(what)

    def broken(self, what: str) -> None:
        """A line that has no cells to read counts as a job, too."""
        self.seen += 1
        self.unreadable(what)

    def warn_of_line(self, what: str) -> None:
        """Warn of what cannot be read, unless there were many warnings already."""
        self._warned += 1
        if self._warned <= MAX_WARNINGS:
            self.warn(what)
        elif self._warned == MAX_WARNINGS + 1:
            self.warn("more lines cannot be read; they are counted, not named")

    def facts(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "jobs_seen": self.seen,
            "jobs_kept": self.kept,
            "lines_written": self.written,
            "gpu_hours": round(self.gpu_hours, 2),
            "dropped": dict(self.dropped),
            "not_jobs": dict(self.ignored),
            "notes": dict(self.notes),
            "first_jobs": dict(self.first),
            "models": dict(self.models),
        }

    def text(self) -> str:
        """Sentences for a person."""
        lines = [f"{self.kept:,} of {self.seen:,} jobs kept, {self.gpu_hours:,.1f} GPU-hours"]
        if self.dropped:
            lines.append("dropped: " + ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items()))
        if self.ignored:
            lines.append("not jobs: " + ", ".join(f"{count:,} {reason}" for reason, count in self.ignored.items()))
        return "\n".join(lines + [self._noted(note, count) for note, count in self.notes.items()])

    def _noted(self, note: str, count: int) -> str:
        if note in self.first:
            return f"{count:,} {note} (the first: job {self.first[note]})"
        return f"{count:,} {note}" if count > 1 else note
