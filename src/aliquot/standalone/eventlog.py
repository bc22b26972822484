"""The last events of a machine in one numbered list: the arbiter's events and those of SharePods."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from aliquot.status import Event

KEPT: Final = 500
_SENTENCES: Final[Mapping[str, str]] = {
    "tenant-added": "has a place",
    "tenant-removed": "gave its place back",
    "misbehaved": "process {pid} broke the protocol ({why}) and was cut off",
    "throttled": "process {pid} sends too many messages and is read again in a second",
    "too-many-processes": "process {pid} exceeds the maximum and was refused",
    "drain-timeout": "processes {pids} did not answer a revocation; the GPU went on without them",
    "out-of-descriptors": "the arbiter is out of file descriptors; new processes of it wait",
    "journal-not-written": "the arbiter cannot write its journal ({why}); debts would be forgotten at a restart",
    "tenant-lost": "could not be taken over from the last arbiter: {why}",
}


class EventLog:
    """Numbers events as they are first seen and keeps the last ones."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._count = 0
        self._boot_id = self._last = 0
        self._of_arbiter: dict[int, Event] = {}  # by the arbiter's own id, the last of them
        self._pods: dict[str, list[str]] = {}

    def since(self, last: int) -> list[Event]:
        """Those with an id above `last`, oldest first."""
        return [event for event in self._kept if event.id > last]

    def take_arbiter(self, boot_id: int, events: Iterable[Mapping[str, Any]], clock_offset_s: float) -> None:
        """The arbiter's events; `clock_offset_s` is wall clock less its monotonic clock."""
        if boot_id != self._boot_id:
            self._boot_id, self._last = boot_id, 0
            self._of_arbiter.clear()
        for event in events:
            number, count, before = event["id"], event.get("count", 1), self._of_arbiter.get(event["id"])
            if number <= self._last and (before is None or count <= before.count):
                continue
            if before is not None and before in self._kept:
                self._kept.remove(before)
            self._last = max(self._last, number)
            kind = str(event["kind"])
            text = _SENTENCES.get(kind, kind.replace("-", " ")).format_map(_Facts(event))
            at_s = round(event.get("last_ns", event["now_ns"]) / 1e9 + clock_offset_s, 3)
            repeats = f" ({count} times)" if count > 1 else ""
            self._of_arbiter[number] = self._add(at_s, kind, str(event.get("tenant", "")), text + repeats, count)
            if len(self._of_arbiter) > KEPT:
                del self._of_arbiter[next(iter(self._of_arbiter))]

    def take_pod(self, name: str, notes: Sequence[str], now_s: float) -> None:
        """A SharePod's own notes, each `HH:MM:SS text`."""
        for note in fresh(self._pods.get(name, ()), notes):
            self._add(now_s, "sharepod", name, note.partition(" ")[2])
        self._pods[name] = list(notes)

    def forget_pods_but(self, names: set[str]) -> None:
        """Drop the notes of tenants that are gone."""
        for name in self._pods.keys() - names:
            del self._pods[name]

    def _add(self, at_s: float, kind: str, subject: str, text: str, count: int = 1) -> Event:
        self._count += 1
        self._kept.append(event := Event(self._count, at_s, kind, subject, text, count))
        return event


class _Facts(dict[str, Any]):
    """Facts of an event for `format_map`; a missing one is left out."""

    def __missing__(self, key: str) -> str:
        return "?"


def fresh(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The entries appended to a list that forgets its oldest entries."""
    for gone in range(len(before) + 1):
        kept = len(before) - gone
        if list(before[gone:]) == list(now[:kept]):
            return list(now[kept:])
    return list(now)
