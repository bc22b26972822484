"""What a program starts with that works in steps until it is ended, and counts them where others can read them.

While the file `PROGRESS.rest` is there it asks the GPU for nothing. At its end `PROGRESS.json` has its launches, as the
emulated driver and the hook counted them.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from counters import launches

from aliquot_lab.bench.progress import ProgressWriter


class Steps:
    """The counts of one program, in the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.progress = ProgressWriter(path)
        self._rest = Path(f"{path}.rest")
        self._ended = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, _number: int, _frame: object) -> None:
        self._ended = True

    def go_on(self) -> bool:
        """Whether to work on, asked before each step; returns when there is no rest any more."""
        while not self._ended and self._rest.exists():
            time.sleep(0.005)
        return not self._ended

    def done(self, steps: int = 1) -> None:
        """So many steps more are complete."""
        self.progress.completed += steps
        (self.progress.store if self.progress.ready_ns else self.progress.ready)()

    def note(self) -> None:
        """Write the launches; nothing is in flight any more."""
        Path(f"{self.path}.json").write_text(json.dumps(launches()))
