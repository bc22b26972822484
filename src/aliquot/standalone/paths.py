"""The directories of an engine: one for run time, one for state that lasts longer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from aliquot.model.errors import AliquotError

SOCKET_PATH_BYTES: Final = 107  # sun_path, less its NUL
_LONGEST_NAME: Final = "tenants/99999/socket"
HISTORY_FILES: Final = ("history.db", "history-emulated.db")
"""Of the dashboard, in `state_dir`: what the machine's GPUs did, and apart from it what emulated GPUs did."""


class RuntimeDirError(AliquotError):
    """The runtime directory cannot be used."""


def runtime_dir() -> Path:
    """ALIQUOT_RUNTIME_DIR, else /run/aliquot for root, else a folder of the user's own, one for all logins.

    XDG_RUNTIME_DIR would be another one for logins without it, as by su or cron, and is removed when the last login
    ends, while programs run on.
    """
    named = os.environ.get("ALIQUOT_RUNTIME_DIR")
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return Path("/run/aliquot")
    return Path(f"/tmp/aliquot-{os.geteuid()}")


def state_dir() -> Path:
    """The directory for files that must survive a reboot.

    ALIQUOT_STATE_DIR; else, for an engine that ALIQUOT_RUNTIME_DIR gave a place of its own, `state` in there; else
    /var/lib/aliquot for root and a folder of the user's own.
    """
    named, beside = os.environ.get("ALIQUOT_STATE_DIR"), os.environ.get("ALIQUOT_RUNTIME_DIR")
    if named or beside:
        return Path(named).absolute() if named else Path(beside or "").absolute() / "state"
    if os.geteuid() == 0:
        return Path("/var/lib/aliquot")
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return Path(base).absolute() / "aliquot"
    try:
        return Path("~/.local/state/aliquot").expanduser()
    except RuntimeError:  # a user without a home
        return runtime_dir() / "state"


class RuntimeDir:
    """The files of one engine, by name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self) -> None:
        """Make the directory, for this user alone.

        Raises:
            RuntimeDirError: it belongs to another user, cannot be created, or its name is too long for sockets in it.
        """
        if len(os.fsencode(self.root / _LONGEST_NAME)) > SOCKET_PATH_BYTES:
            raise RuntimeDirError(
                f"{self.root} is too long a path for sockets; set ALIQUOT_RUNTIME_DIR to a shorter one"
            )
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RuntimeDirError(f"{self.root} cannot be made ({error.strerror}); set ALIQUOT_RUNTIME_DIR") from None
        if self.root.stat().st_uid != os.geteuid():
            raise RuntimeDirError(f"{self.root} belongs to another user; set ALIQUOT_RUNTIME_DIR to a folder of yours")
        self.root.chmod(0o700)
        of_arbiter = (self.root / name for name in ("arbiter.lock", "journal", "leases", "tenants.json"))
        for file in (self.engine_log, self.sharepods, *of_arbiter):
            if file.exists() and not file.is_file():
                raise RuntimeDirError(f"{file} is not a plain file; remove it, or set ALIQUOT_RUNTIME_DIR")
        for folder in (self.emulated, self.tenants, self.logs):
            if folder.exists() and not folder.is_dir():
                raise RuntimeDirError(f"{folder} is not a folder; remove it, or set ALIQUOT_RUNTIME_DIR")

    @property
    def engine_socket(self) -> Path:
        """Where the engine answers."""
        return self.root / "engine.sock"

    @property
    def emulated(self) -> Path:
        """The emulated machine."""
        return self.root / "emulated"

    @property
    def tenants(self) -> Path:
        """One folder per tenant."""
        return self.root / "tenants"

    @property
    def sharepods(self) -> Path:
        """The names of SharePods that have not ended; outlives an engine that is killed."""
        return self.root / "sharepods.json"

    @property
    def logs(self) -> Path:
        """The output of pods; survives the engine, but not a reboot."""
        return self.root / "logs"

    @property
    def engine_log(self) -> Path:
        """The log of an engine without a terminal."""
        return self.root / "engine.log"
