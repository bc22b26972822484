"""One engine for each GPU of a machine, whatever account, login or container it runs in.

The lock is on the file of the driver's libnvidia-ml, through which an engine finds the GPUs. All accounts and logins
have that one file, and containers have it bind-mounted from the machine, which is the same file to the kernel. So the
lock needs no folder that every account can write, leaves nothing behind, outlasts logins, and the kernel releases it
when its owner dies, however that happens. Not seen are a container with a libnvidia-ml of its own, and an engine that
started before the driver's files were replaced.

A GPU is a range of bytes, by its UUID, far beyond the end of the file. A descriptor that may only read can only have
read locks, which do not exclude one another: a GPU is taken, while the whole file is held by flock, if no lock is in
its range. The length of the lock is the process id of its owner, because the kernel reports none for a lock of an open
file. POSIX locks have one, but end when the process closes any descriptor of the file, as dlopen does.

What an account can do that does not play by these rules is in docs/security.md: all can read the file, so all can lock
it, and only what they may not open would be safe from them.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import hashlib
import os
import pwd
import stat
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from aliquot.driver.gpu import Gpu
from aliquot.driver.injection import conf_of
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError, in_words

TAKING_S: Final = 5.0
"""Longer than any owner holds the file while it takes its GPUs."""
_POLL_S: Final = 0.02
_RANGE: Final = 1 << 22
"""Bytes of a GPU's range: Linux has no larger process id (PID_MAX_LIMIT)."""
_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock`: l_type, l_whence, l_start, l_len, l_pid."""
_PROC: Final = Path("/proc")
_UNMAPPED: Final = 65534
"""What the kernel shows for every account and group that a user namespace does not map."""
_LOG: Final = Logger("driver")


class GpuTaken(AliquotError):
    """Another engine of this machine shares the GPU; `of_machine`: it serves this account, now or once it is back."""

    def __init__(self, text: str, *, of_machine: bool = False) -> None:
        super().__init__(text)
        self.of_machine = of_machine


class GpuLock:
    """The sole right among engines to share some GPUs of a machine, until it is closed or its process dies."""

    def __init__(self, libnvml: Path, gpus: Sequence[Gpu], release: Callable[[], object] = lambda: None) -> None:
        """Take all of these GPUs or none. `release` has a keeper of them let go, while no
        other engine can take them.

        Raises:
            GpuTaken: another engine has one of them.
        """
        self.descriptor = os.open(libnvml, os.O_RDONLY | os.O_CLOEXEC)
        """The lock is held until no process has it."""
        try:
            with _alone(self.descriptor):
                release()
                check_free(libnvml, gpus)
                for gpu in gpus:
                    _control(self.descriptor, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, gpu, os.getpid())
        except OSError as error:  # a file system without locks
            _LOG.warning("%s cannot be locked, so other engines are not seen: %s", libnvml, in_words(error))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the GPUs back."""
        os.close(self.descriptor)


def check_free(libnvml: Path, gpus: Sequence[Gpu]) -> None:
    """Refuse GPUs that another engine shares. Takes none, and hinders no engine from taking them.

    Raises:
        GpuTaken: another engine has one of them, or gives them to the program that this is.
        OSError: there are no locks on this file system.
    """
    check_no_share(libnvml)
    owners = {}
    descriptor = os.open(libnvml, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for gpu in gpus:  # by the process id as the owner knows itself; a lock of another shape has some owner as well
            kind, length = _control(descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, gpu, _RANGE)
            if kind != fcntl.F_UNLCK:
                owners[gpu.uuid] = length
    finally:
        os.close(descriptor)
    taken = [gpu for gpu in gpus if gpu.uuid in owners]
    if taken:
        free = [str(gpu.index) for gpu in gpus if gpu.uuid not in owners]
        raise _taken(taken[0], owners[taken[0].uuid], free)


def check_no_share(libnvml: Path) -> None:
    """Refuse the driver as a tenant sees it: the library is our own, another file than its engine has locked.

    Raises:
        GpuTaken: this is a program of an engine.
    """
    if conf := conf_of(libnvml):
        folder, within, _ = str(conf).rpartition("/tenants/")
        raise GpuTaken(
            f"the GPUs here are a share that {f'the engine at {folder}' if within else 'another engine'} gives to this "
            "program; use that one: aliquot run and all other commands find it as they are"
        )


def _control(descriptor: int, command: int, kind: int, gpu: Gpu, length: int) -> tuple[int, int]:
    number = int.from_bytes(hashlib.sha256(gpu.uuid.encode()).digest()[:5])
    lock = _FLOCK.pack(kind, os.SEEK_SET, number * _RANGE, length, 0)
    kind, _, _, length, _ = _FLOCK.unpack(fcntl.fcntl(descriptor, command, lock))
    return kind, length


@contextlib.contextmanager
def _alone(descriptor: int) -> Iterator[None]:
    """Hold the whole file, for as long as GPUs are being taken.

    Raises:
        GpuTaken: another process does not let go of it.
    """
    until_s = time.monotonic() + TAKING_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until_s:
                file = Path(f"/proc/self/fd/{descriptor}").readlink()
                raise GpuTaken(f"{file} is locked by another program; see which: lslocks") from None
            time.sleep(_POLL_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _taken(gpu: Gpu, pid: int, free: Sequence[str]) -> GpuTaken:
    """Who shares a GPU, and what a person can do who wanted to."""
    where = f"GPU {gpu.index} ({gpu.uuid}) is shared by"
    others = f", or share the other GPUs: aliquot up --only-gpus {','.join(free)}" if free else ""
    try:
        uid = (_PROC / str(pid)).stat().st_uid
        ticks = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        since = time.strftime("since %Y-%m-%d %H:%M", time.localtime(time.time() - age_s))
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words, since = [], ""
    if not any("aliquot" in word for word in words):  # of another process namespace, or hidden by one's mount options
        return GpuTaken(
            f"{where} the machine's engine, which is being restarted or has left runs (start it again: aliquot up "
            "--system), or by an engine in a container, or of an account whose processes are hidden; end it first"
            f"{others}",
            of_machine=True,
        )
    if "node" in words[:4]:
        way_out = "leave GPUs to you with its --not-gpus"
        return GpuTaken(f"{where} this node's agent, pid {pid} ({since}); {way_out}{others}")
    folder, place = "", None  # of the engine, from the command line of its arbiter
    for process in _PROC.iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and "aliquot.arbiter" in words:
                folder = words[words.index("--runtime-dir") + 1]
                place = Path(folder).stat()
                break
    at = f" ({folder}, {since})" if folder else f" ({since})"
    if uid == os.geteuid() != _UNMAPPED:
        use = f"use that one: export ALIQUOT_RUNTIME_DIR={folder}" if folder else "use that one"
        return GpuTaken(f"{where} your own engine, pid {pid}{at}; {use}, or end it{others}")
    if uid in (0, _UNMAPPED) and place is not None:
        if os.access(f"{folder}/engine.sock", os.W_OK):
            use = "aliquot run and all other commands use it as they are"
            return GpuTaken(f"{where} the engine of this machine, pid {pid}{at}; {use}", of_machine=True)
        if place.st_mode & stat.S_IXGRP and not os.access(folder, os.X_OK):
            return GpuTaken(f"{where} the machine's engine, pid {pid}{at}; it {not_in_group(place.st_gid)}{others}")
    if uid == _UNMAPPED:
        return GpuTaken(
            f"{where} another account's engine, pid {pid}{at}; ask its owner to end it (aliquot down){others}"
        )
    owner = _name(uid) or f"user {uid}"
    return GpuTaken(f"{where} {owner}'s engine, pid {pid}{at}; ask {owner} to end it (aliquot down){others}")


def not_in_group(gid: int) -> str:
    """Whom the machine's engine serves that lets this account not in, and how it gets in; its subject is the engine."""
    if gid == _UNMAPPED:
        return "serves a group, and you are not in it; ask root to add you, and log in again"
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    way_in = f"usermod -aG {group} {_name(os.geteuid()) or os.geteuid()}"
    return f"serves group {group}, and you are not in it; ask root to add you, and log in again: {way_in}"


def _name(uid: int) -> str:
    """An account as it logs in; empty where it has no name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return ""
