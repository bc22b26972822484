"""The directories of an engine: one for run time, with the lock of the engine that uses it, one for lasting state."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
import time
from pathlib import Path
from typing import Final

from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError

_POLL_S: Final = 0.05
log = Logger("standalone")
SOCKET_PATH_BYTES: Final = 107  # sun_path, less its NUL
_LONGEST_NAMES: Final = {False: "tenants/99999/socket", True: "tenants/of-4294967295/99999/socket"}
"""Of a private engine, and of the machine's."""
_ACL: Final = struct.Struct("<I" + 5 * "HHI")
HISTORY_FILES: Final = ("history.db", "history-emulated.db")
"""Of the dashboard, in `state_dir`: what the machine's GPUs did, and apart from it what emulated GPUs did."""


ROOTS_DIR: Final = Path("/run/aliquot")
_SOCKETS: Final = Path("/proc/net/unix")
_UID_MAP: Final = Path("/proc/self/uid_map")
_ALL_IDS: Final = 0xFFFFFFFF
_OVERFLOW: Final = Path("/proc/sys/kernel/overflowuid")


class RuntimeDirError(AliquotError):
    """The runtime directory cannot be used."""


def machine_dir() -> Path:
    """Where the engine of the machine is that serves all accounts: ALIQUOT_MACHINE_DIR, else /run/aliquot."""
    return Path(os.environ.get("ALIQUOT_MACHINE_DIR") or ROOTS_DIR).absolute()


def engine_dir() -> Path:
    """The directory of the engine that commands use: the account's own if it is up, else the machine's if that is.

    That is so also where this account is not in its group, which the caller then learns. Where neither is up, or
    ALIQUOT_RUNTIME_DIR names one, it is that of the account's own.
    """
    own, machine = runtime_dir(), machine_dir()
    if os.environ.get("ALIQUOT_RUNTIME_DIR") or answers(own):
        return own
    return machine if answers(machine) or closed_to_all_but(machine) is not None else own


def closed_to_all_but(root: Path) -> int | None:
    """The group that an engine of root's serves there, where this account is not in it; None where none is in the way.

    What lies in the folder cannot be seen then, but the kernel lists sockets with their paths.
    """
    try:
        folder, sockets = root.stat(), _SOCKETS.read_text(errors="replace")
    except OSError:
        return None
    listens = f" {RuntimeDir(root).engine_socket}\n" in sockets
    closed = is_trusted(folder.st_uid, root) and not os.access(root, os.X_OK, effective_ids=True)
    return folder.st_gid if listens and closed else None


def answers(root: Path) -> bool:
    """Whether an engine listens in a runtime directory of this account or root's, and lets this account in."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(str(RuntimeDir(root).engine_socket))
        return is_trusted(root.stat().st_uid, root)
    return False


def is_trusted(uid: int, root: Path) -> bool:
    """Whether that is this account or root, as the number of a runtime directory's owner or of who answers in it.

    A program of a run may be in a user namespace that maps its account alone. There root has the number that the kernel
    shows for accounts without one (overflowuid), and so has every other account: the number proves nothing. The place
    does: only root makes entries of /run. So the number counts for /run/aliquot, never for a folder that a variable
    names, and only while /, /run and the folder all have it and only their owner may write into them. It does
    not count where root, or an account of that very number, is mapped: that one cannot be told from others.
    """
    try:
        overflow, rows = int(_OVERFLOW.read_text()), _mapped()
    except (OSError, ValueError):
        return uid in (0, os.geteuid())  # without /proc nothing more can be known
    if uid in (0, os.geteuid()) and (uid != overflow or [0, 0, _ALL_IDS] in rows):
        return True
    if root != ROOTS_DIR:
        return False
    try:
        folders = [folder.lstat() for folder in (root, *root.parents)]
    except OSError:
        return False
    if any(outside == 0 or inside <= overflow < inside + count for inside, outside, count in rows):
        return False
    return uid == overflow and all(
        stat.S_ISDIR(folder.st_mode) and folder.st_uid == overflow and not folder.st_mode & 0o022 for folder in folders
    )


def _mapped() -> list[list[int]]:
    """The accounts that have a number here: the first one's, that one's outside this user namespace, and how many."""
    return [[int(word) for word in row.split()] for row in _UID_MAP.read_text().splitlines()]


def way_out(usual: str) -> str:
    """The end of a sentence about an engine that cannot be reached: what is to be done usually, or in a user namespace.

    Root of a namespace is looked for in root's place, and is another account; one without a number may be any. Where a
    variable names the place, the usual is right.
    """
    uid = os.geteuid()
    try:
        outside = [first + uid - inside for inside, first, count in _mapped() if inside <= uid < inside + count]
    except (OSError, ValueError):
        return usual
    if os.environ.get("ALIQUOT_RUNTIME_DIR") or (outside and (uid or not outside[0])):
        return usual
    if not outside:
        return "this is a user namespace without a number for your account: run aliquot outside of it"
    return (
        f"this is a user namespace, where root is account {outside[0]} outside: run aliquot outside of it for the "
        f"machine's engine, or for that account's own: export ALIQUOT_RUNTIME_DIR=/tmp/aliquot-{outside[0]}"
    )


def runtime_dir() -> Path:
    """ALIQUOT_RUNTIME_DIR, else that of the machine for root, else a folder of the user's own, one for all logins.

    XDG_RUNTIME_DIR would be another one for logins without it, as by su or cron, and is removed when the last login
    ends, while programs run on.
    """
    named = os.environ.get("ALIQUOT_RUNTIME_DIR")
    if named:
        return Path(named).absolute()
    if os.geteuid() == 0:
        return machine_dir()
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


def cdi_dir(runtime: RuntimeDir) -> Path:
    """Where CDI files go: ALIQUOT_CDI_DIR; /etc/cdi for root's engine of the machine; else `cdi` beside the engine.

    Docker and every podman since 4.1 read /etc/cdi; podman 5.0 to 5.5 does not read /var/run/cdi.
    """
    if named := os.environ.get("ALIQUOT_CDI_DIR"):
        return Path(named).absolute()
    return Path("/etc/cdi") if runtime.root == ROOTS_DIR else runtime.root / "cdi"


def shown_driver_dir(runtime: RuntimeDir, state: Path | None) -> Path:
    """Where the driver is mirrored for containers; of the machine's engine it is a place that all accounts read."""
    if runtime.root == ROOTS_DIR:
        return Path("/var/cache/aliquot")
    return (runtime.root if runtime.shared or state is None else state) / "shown-driver"


class RuntimeDir:
    """The files of one engine, by name.

    It is `shared` where the engine is the machine's: all accounts reach its sockets, or with `gid` those of one group.
    Its folders are the engine's alone to change, for it is root and ends processes by what it finds there.
    """

    def __init__(self, root: Path, *, shared: bool = False, gid: int | None = None) -> None:
        self.root = root
        self.shared = shared
        self._gid = gid
        self.engine_socket = root / "engine.sock"
        self.emulated = root / "emulated"  # the emulated machine
        self.tenants = root / "tenants"  # a folder each
        self.sharepods = root / "sharepods.json"  # names of those that have not ended; outlives a killed engine
        self.runs = root / "runs.json"  # of the machine's engine, for the next one
        self.keeper = root / "keeper"  # the process that keeps the GPUs locked for these
        self.logs = root / "logs"  # the output of pods; survives the engine, but not a reboot
        self.engine_log = root / "engine.log"  # of an engine without a terminal

    def containers_of(self, uid: int) -> Path:
        """Where the folders of tenants are whose programs run in containers of an account.

        These have numbers on the machine that are not the account's, so the account alone gets here, and starts
        containers which are shown a folder from here.

        Raises:
            RuntimeDirError: the file system knows no lists of accounts (ACL).
        """
        if not self.shared:
            return self.tenants
        folder, no_id = self.tenants / f"of-{uid}", 0xFFFFFFFF
        folder.mkdir(mode=0o700, exist_ok=True)
        # As `setfacl -m u:UID:x`: not owned by the account, which could put something else here.
        access = _ACL.pack(2, 1, 7, no_id, 2, 1, uid, 4, 0, no_id, 16, 1, no_id, 32, 0, no_id)
        try:
            os.setxattr(folder, "system.posix_acl_access", access)
        except OSError as error:
            raise RuntimeDirError(f"{folder} cannot be given to one account: setfacl: {error.strerror}") from None
        return folder

    def create(self) -> None:
        """Make the directory, for this user alone unless it is shared.

        Raises:
            RuntimeDirError: it belongs to another user, cannot be created, its name is too long for sockets in it, or
                programs of others cannot load libraries from it.
        """
        if len(os.fsencode(self.root / _LONGEST_NAMES[self.shared])) > SOCKET_PATH_BYTES:
            raise RuntimeDirError(
                f"{self.root} is too long a path for sockets; set ALIQUOT_RUNTIME_DIR to a shorter one"
            )
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            way = way_out("set ALIQUOT_RUNTIME_DIR")
            raise RuntimeDirError(f"{self.root} cannot be made ({error.strerror}); {way}") from None
        if self.root.stat().st_uid != os.geteuid():
            way = way_out("set ALIQUOT_RUNTIME_DIR to a folder of yours")
            raise RuntimeDirError(f"{self.root} belongs to another user; {way}")
        self.root.chmod(0o700)
        if self.shared and os.statvfs(self.root).f_flag & os.ST_NOEXEC:
            raise RuntimeDirError(
                f"{self.root} is mounted noexec, so no program can load its share's libraries; as root: "
                f"mount -o remount,exec {self.root.parent}"
            )
        of_arbiter = (self.root / name for name in ("arbiter.lock", "journal", "leases", "tenants.json"))
        for file in (self.engine_log, self.sharepods, self.runs, *of_arbiter):
            if file.exists() and not file.is_file():
                raise RuntimeDirError(f"{file} is not a plain file; remove it, or set ALIQUOT_RUNTIME_DIR")
        for folder in (self.emulated, self.tenants, self.logs):
            if folder.exists() and not folder.is_dir():
                raise RuntimeDirError(f"{folder} is not a folder; remove it, or set ALIQUOT_RUNTIME_DIR")
        if self.shared:
            self.logs.mkdir(mode=0o700, exist_ok=True)
            self.engine_log.touch(mode=0o600)
            os.chown(self.root, -1, 0 if self._gid is None else self._gid)
            self.root.chmod(0o711 if self._gid is None else 0o710)


class EngineLock:
    """At most one engine per runtime directory, by a lock that the kernel drops when the engine dies.

    A context manager that yields itself, or None when another engine is up and answers. The lock is on the directory
    itself, which systemd-tmpfiles does not clean while it is locked: an engine in /tmp may run for longer than files
    there are kept. No other account can take it: to lock is to open for reading, which `create` leaves to the owner.
    """

    def __init__(self, runtime: RuntimeDir, *, wait_s: float) -> None:
        self._runtime = runtime
        self._wait_s = wait_s
        self._descriptor = -1
        self._lost = False

    def __enter__(self) -> EngineLock | None:
        self._runtime.create()
        self._descriptor = os.open(self._runtime.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        until_s = time.monotonic() + self._wait_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except BlockingIOError:
                # Held and answering: up. Held and silent: starting or ending, so wait for which it is.
                if answers(self._runtime.root):
                    return None
                if time.monotonic() > until_s:
                    return None
                time.sleep(_POLL_S)

    def watch_directory(self) -> bool:
        """Whether the directory is still there; the first time that it is not, the log says so.

        Without it no caller reaches the engine, which goes on for the programs that run, and ends with the last.
        """
        try:
            there = os.path.samestat(self._runtime.root.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            there = False
        if not there and not self._lost:
            self._lost = True
            log.warning(
                "%s was removed: no command reaches this engine (pid %d), which ends with its last program; end it "
                "with them: kill %d", self._runtime.root, os.getpid(), os.getpid(),
            )  # fmt: skip
        return there

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
