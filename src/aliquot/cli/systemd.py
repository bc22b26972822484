"""systemd and the engine: the unit that starts it at boot, and what it says to the service manager."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from typing import Final

UNIT: Final = """\
# The engine of this machine's GPUs, for all accounts. Put it there and start it, now and at each boot:
#   aliquot up --system --print-unit > /etc/systemd/system/aliquot.service
#   systemctl daemon-reload && systemctl enable --now aliquot

[Unit]
Description=Aliquot shares the GPUs of this machine
After=local-fs.target nvidia-persistenced.service

[Service]
Type=notify
ExecStart={command}
WatchdogSec=30
Restart=always
RestartSec=1
# What accounts have started goes on while the engine is away, with its GPUs kept, and finds its folders again.
KillMode=process
TimeoutStopSec=60
RuntimeDirectory=aliquot
RuntimeDirectoryMode=0711
RuntimeDirectoryPreserve=yes
StateDirectory=aliquot
StateDirectoryMode=0700
LimitNOFILE=1048576
TasksMax=infinity
OOMPolicy=continue
# SharePods are its children: what hides files or devices from it would hide them from the programs.
NoNewPrivileges=yes
ProtectKernelTunables=yes
ProtectKernelLogs=yes
ProtectHostname=yes
LockPersonality=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
KeyringMode=private

[Install]
WantedBy=multi-user.target
"""


def unit(words: Sequence[str]) -> str:
    """The unit for `aliquot up` with these words."""
    command = [sys.executable, "-m", "aliquot.cli", "up", *words]
    return UNIT.format(command=shlex.join(command).replace("%", "%%"))


def notify(state: str) -> None:
    """Say `READY=1`, `WATCHDOG=1` or `STOPPING=1` to the service manager; nothing where none waits for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
