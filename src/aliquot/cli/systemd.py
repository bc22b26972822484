"""systemd and the engine: the unit that starts it at boot, and what it says to the service manager."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def unit(words: Sequence[str]) -> str:
    """The unit for `aliquot up` with these words."""
    command = [sys.executable, "-m", "aliquot.cli", "up", *words]
    template = Path(__file__).with_name("aliquot.service").read_text("utf-8")
    return template.format(command=shlex.join(command).replace("%", "%%"))


def notify(state: str) -> None:
    """Say `READY=1`, `WATCHDOG=1` or `STOPPING=1` to the service manager; nothing where none waits for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
