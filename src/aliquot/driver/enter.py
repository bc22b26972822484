"""Enter a tenant's view of the machine and exec the tenant's program.

Runs as a script of its own, `python -I -S enter.py LAUNCH.json`, in the process that is to become the program: it makes
a private mount namespace, bind-mounts the tenant's libraries over those of the driver, and calls exec. Nothing of it
is left in the program but the mounts: signals, descriptors, environment and process id are those the caller gave.

Only the standard library, and no import from this package, for it starts with every tenant.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import sys
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SLAVE = 0x80000
PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
MAX_PROCESSES = 8192
"""Of an account whose program root starts: what it forks counts against root's service otherwise."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def new_mount_namespace() -> str:
    """Give this process its own mounts; returns "root" or "user", the privilege that was used.

    Raises:
        OSError: the kernel does not let us.
    """
    libc = _libc()
    way = "root" if os.geteuid() == 0 else "user"
    uid, gid = os.geteuid(), os.getegid()
    if way == "root" and libc.unshare(CLONE_NEWNS) != 0:
        way = "user"  # root of a container without CAP_SYS_ADMIN
    if way == "user":
        _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
        # The kernel takes the group map of an unprivileged writer only once setgroups is given up.
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as target:  # noqa: PTH123 (pathlib costs 10 ms here)
                target.write(text)
    # Slave: what the machine mounts later is seen here, what is mounted here is not seen there.
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None), "mount /")
    return way


def bind(source: str, target: str) -> None:
    """Show `source` at `target`, with all that is mounted below it."""
    result = _libc().mount(source.encode(), target.encode(), None, MS_BIND | MS_REC, None)
    _check(result, f"bind {source} on {target}")


def _substitute(launch: dict[str, Any]) -> str:
    """The injection in effect: substitute, or library-path where allowed and the kernel refuses."""
    try:
        way = new_mount_namespace()
        for source, target in launch["binds"]:
            bind(source, target)
    except OSError as error:
        if not launch["fallback"]:
            sys.stderr.write(
                f"aliquot: substitution is not possible here ({error.strerror or error}). "
                f"Use --inject library-path, or see: aliquot doctor\n"
            )
            raise SystemExit(1) from None
        paths = [launch["lib"], launch["env"].get("LD_LIBRARY_PATH", "")]
        launch["env"]["LD_LIBRARY_PATH"] = ":".join(filter(None, paths))
        return f"library-path ({error.strerror or error})"
    return f"substitute ({way} namespace)"


def _die_with_parent(launch: dict[str, Any]) -> None:
    _libc().prctl(PR_SET_PDEATHSIG, launch["death_signal"], 0, 0, 0)
    if os.getppid() != launch["parent"]:  # it ended before the signal was set, so none will come
        os.kill(os.getpid(), launch["death_signal"])


def _become(uid: int, gid: int, groups: list[int]) -> None:
    """Give up root for an account. The mounts were made with root's rights, so nothing may gain rights behind them.

    Raises:
        OSError: the kernel refuses; then nothing of the account may run.
    """
    _check(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    os.umask(0o022)


def main(path: str) -> None:
    """Read the launch, prepare, exec; 127 and 126 mean what they mean to a shell."""
    with open(path, encoding="utf-8", errors="surrogateescape") as source:  # noqa: PTH123
        launch = json.load(source)
    os.unlink(path)  # noqa: PTH108
    if launch["death_signal"]:
        _die_with_parent(launch)
    mode = _substitute(launch) if launch["mode"] == "substitute" else launch["mode"]
    mode = launch["called"] or mode
    with contextlib.suppress(OSError), open(launch["report"], "w", encoding="utf-8") as report:  # noqa: PTH123
        report.write(mode)
    if launch["verbose"]:
        sys.stderr.write(f"aliquot: tenant {launch['tenant']}: injection by {mode}\n")
        sys.stderr.flush()
    if launch["account"]:
        _become(*launch["account"])
        _die_with_parent(launch)  # the kernel forgets it with the change of account
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # the interpreter ignores them; the program must not inherit that
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # as the program has it; Ctrl-C is no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, launch["blocked"])
    argv, env = launch["argv"], launch["env"]
    try:
        if launch["cwd"]:
            os.chdir(launch["cwd"])
        if not argv[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "")
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        what = launch["cwd"] if error.filename == launch["cwd"] else argv[0]
        sys.stderr.write(f'aliquot: cannot start "{what}": {error.strerror}\n')
        sys.stderr.flush()
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main(sys.argv[1])
