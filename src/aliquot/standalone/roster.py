"""The SharePods of an engine, in a file of its runtime directory, so that the next engine knows which a kill ended.

An engine that is stopped removes the file. One that is killed leaves it, and takes its programs along: the next engine
names what was there, until it is applied again or deleted. When the kill was is not known, only that it was before this
next engine began, which is kept with the names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from aliquot.lib.decoding import decode_json
from aliquot.lib.files import read_plain, write_whole
from aliquot.lib.log import Logger, Repeats
from aliquot.model.errors import in_words

NOT_ENDED: Final = ("Pending", "Running")
log = Logger("standalone")


class Roster:
    """Names and phases of SharePods that have not ended; without a path nothing is kept. Not safe for threads."""

    def __init__(self, path: Path | None = None, *, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._repeats = Repeats()
        self._written: dict[str, str] = {}
        if path is not None:
            try:
                self._written = decode_json(read_plain(path), dict[str, str])
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError, RecursionError) as error:
                why = in_words(error) if isinstance(error, OSError) else str(error)
                log.warning("%s cannot be read (%s); what a killed engine had is not known", path, why)
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(now_s()))
        self.lost = {
            name: f"{phase}, killed before {begun}" if phase in NOT_ENDED else phase
            for name, phase in self._written.items()
        }
        """Those of engines that were killed, with the phases they were in and by when."""

    def keep(self, phases: Mapping[str, str]) -> None:
        """Save the current SharePods; one that was lost and exists again is no longer lost."""
        self.lost = {name: phase for name, phase in self.lost.items() if name not in phases}
        self._write(self.lost | {name: phase for name, phase in phases.items() if phase in NOT_ENDED})

    def forget(self, name: str) -> bool:
        """Forget a lost SharePod; returns whether it was lost."""
        if self.lost.pop(name, None) is None:
            return False
        self._write({other: phase for other, phase in self._written.items() if other != name})
        return True

    def clear(self) -> None:
        """Forget all: an orderly end follows, in which nothing is lost."""
        self.lost = {}
        self._write({})

    def _write(self, phases: dict[str, str]) -> None:
        if self._path is None or phases == self._written:
            return
        try:
            if phases:
                write_whole(self._path, msgspec.json.encode(phases), synced=False)
            else:
                self._path.unlink(missing_ok=True)
            self._written = phases
            self._repeats.news("")
        except OSError as error:
            if self._repeats.news(text := in_words(error)):
                log.warning("which SharePods there are cannot be written down: %s", text)


def told(lost: Mapping[str, str]) -> str:
    """A message about lost SharePods; empty if there are none."""
    if not lost:
        return ""
    names = ", ".join(f"{name} ({phase})" for name, phase in lost.items())
    what, them = ("1 SharePod", "it") if len(lost) == 1 else (f"{len(lost)} SharePods", "them")
    return f"{what} ended when an engine was killed: {names}. Apply {them} again, or forget {them}: aliquot delete NAME"
