"""Several processes of one tenant: `together.py -- COMMAND... -- COMMAND...`; the end of one, or SIGTERM, ends all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time


def split(words: list[str]) -> list[list[str]]:
    """The commands between the separators."""
    commands: list[list[str]] = []
    for word in words:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def main() -> int:
    """Start all, wait, end all; the status of the first that ended by itself."""
    running = [subprocess.Popen(command) for command in split(sys.argv[1:])]
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    while not asked and all(process.poll() is None for process in running):
        time.sleep(0.02)
    statuses = [process.poll() for process in running]
    for process in running:
        process.terminate()
    for process in running:
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
