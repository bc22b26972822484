"""Where the programs begin: Ctrl-C ends them without a traceback, also while they are still being imported.

Imports nothing that the interpreter has not loaded before it is ready for Ctrl-C; `signal` and `typing` take
milliseconds. Until `main` runs there is nothing to clean up, so Ctrl-C ends the process at once. What an interrupted
import raises may be anything: packages with parts in C turn it into errors of their own.

A standard stream that the caller closed is /dev/null from here on, also for the command of `aliquot run`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    import _signal as signal


def _end(number: int, _: object) -> None:
    os._exit(128 + number)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)


def main() -> None:
    """`aliquot`."""
    interruptible(lambda: import_module("aliquot.cli.main").main())


def kubectl() -> None:
    """`kubectl aliquot`."""
    interruptible(lambda: import_module("aliquot.cli.kubectl").main())


def interruptible(run: Callable[[], None]) -> None:
    """Run a program; after Ctrl-C any error but an exit of its own ends it quietly with a shell's status for it.

    An interrupt in a callback of the interpreter, as imports have them, would be printed and the program go on.
    """
    came: list[int] = []

    def interrupt(number: int, _: object) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    def undelivered(lost: sys.UnraisableHookArgs) -> None:
        if came and isinstance(lost.exc_value, KeyboardInterrupt):
            os._exit(128 + signal.SIGINT)
        sys.__unraisablehook__(lost)

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = undelivered
    try:
        open_standard_streams()
        run()
    except Exception:
        if not came:
            raise
        raise SystemExit(128 + signal.SIGINT) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


def open_standard_streams() -> None:
    """Put /dev/null where the caller closed standard input, output or error.

    A file that is opened later would get the number, and what is meant for the stream would be written into it. The
    command of `aliquot run` inherits the descriptors for the same reason: in its process the hook has files of its own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, so this one
    # The interpreter has None in place of a stream that was closed when it started. Standard input stays so: a command
    # that is to read it says that it is closed.
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
