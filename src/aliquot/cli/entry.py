"""Where the programs begin: Ctrl-C ends them without a traceback, also while they are still being imported.

Imports nothing of the package before it is ready for Ctrl-C. What an interrupted import raises may be anything:
packages with parts in C turn it into errors of their own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final, NoReturn

INTERRUPTED: Final = 128 + signal.SIGINT


def main() -> None:
    """`aliquot`."""
    interruptible(_aliquot)


def kubectl() -> None:
    """`kubectl aliquot`."""
    interruptible(_kubectl)


def interruptible(run: Callable[[], None]) -> None:
    """Run a program; after Ctrl-C any error but an exit of its own ends it quietly with a shell's status for it."""
    came: list[int] = []

    def interrupt(number: int, _: object) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        run()
    except Exception:
        if not came:
            raise
        raise SystemExit(INTERRUPTED) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _aliquot() -> None:
    from aliquot.cli.main import main as run

    run()


def _kubectl() -> None:
    from aliquot.cli.kubectl import main as run

    run()
