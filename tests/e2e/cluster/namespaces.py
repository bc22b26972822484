"""The rooms that a cluster lives in: mount, network and PID namespaces and a cgroup of its own.

The network has loopback only, with the cluster's addresses on it, so every port is free, two clusters never meet and
nothing of the machine's network changes. Programs outside reach a port inside through a relay; a test reaches in
and serves inside with sockets that are made there (`connect`, `listener`).
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from . import cgroups

HERE = Path(__file__).resolve().parent
PREFIX = "aliquot-cluster-"
NODE_ADDRESS = "10.124.0.1"
SERVICE_ADDRESS = "10.250.0.1"
CLONE_NEWNET = 0x40000000
START_S = 20.0
ROOMS = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--propagation", "private")

T = TypeVar("T")


def started(pid: int) -> str:
    """When a process began, in clock ticks since boot; empty if there is none. A zombie counts as none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after_name[0] == "Z" else after_name[19]


def sweep() -> None:
    """Removes the folders and cgroups of clusters whose owner was killed; their processes are gone already."""
    for state in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            owner = json.loads((state / "owner.json").read_text())
        except (OSError, ValueError):
            continue
        if started(owner["pid"]) != owner["started"]:
            cgroups.remove(owner["cgroup"])
            shutil.rmtree(state, ignore_errors=True)


class Inside:
    """A process in the namespaces. `pid` is its number on the machine, as `os.kill` outside needs it."""

    def __init__(self, entering: subprocess.Popen[bytes]) -> None:
        self._entering = entering
        self.pid = _only_child(entering)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._entering.poll()

    def wait(self, timeout_s: float) -> int:
        """Waits for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        return self._entering.wait(timeout_s)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when it ended already."""
        if self.poll() is None and self.pid:
            os.kill(self.pid, number)
        if number in (signal.SIGCONT, signal.SIGKILL):
            self.go_on()

    def go_on(self) -> None:
        """nsenter stops itself when its child is stopped; only awake it buries the child and tells its end."""
        if self.poll() is None:
            self._entering.send_signal(signal.SIGCONT)

    def end(self, timeout_s: float = 5.0) -> None:
        """Ends it: TERM first, KILL if it does not listen."""
        self.send(signal.SIGTERM)
        try:
            self.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self.wait(timeout_s)


def _only_child(entering: subprocess.Popen[bytes]) -> int:
    """nsenter forks into a PID namespace and waits: the child is the program. 0 when it ended before it was seen."""
    children = Path(f"/proc/{entering.pid}/task/{entering.pid}/children")
    deadline = time.monotonic() + START_S
    while entering.poll() is None and time.monotonic() < deadline:
        try:
            if found := children.read_text().split():
                return int(found[0])
        except OSError:
            break
        time.sleep(0.002)
    return 0


class Namespaces:
    """One cluster's rooms, from `open` to `close`; `state` is its folder on disk, `cgroup` its cgroup's name."""

    def __init__(self, busybox: str) -> None:
        self._busybox = busybox
        self._holder: subprocess.Popen[bytes] | None = None
        self._holder_pid = 0
        self._network = -1
        self._entered: list[Inside] = []
        self.state = Path()
        self.cgroup = ""

    def open(self) -> None:
        """Makes everything; ready when it returns.

        Raises:
            RuntimeError: the machine does not let us; the text says what failed.
        """
        sweep()
        if self.state == Path():
            self.state = Path(tempfile.mkdtemp(prefix=PREFIX))
            self.state.chmod(0o755)
            self.cgroup = self.state.name.replace(PREFIX, "aliquot-")
        owner = {"pid": os.getpid(), "started": started(os.getpid()), "cgroup": self.cgroup}
        (self.state / "owner.json").write_text(json.dumps(owner))
        cgroups.create(self.cgroup)
        shutil.rmtree(self.state / "run", ignore_errors=True)
        self._holder = subprocess.Popen(
            [
                *ROOMS,
                sys.executable,
                str(HERE / "holder.py"),
                str(self.state),
                self._busybox,
                NODE_ADDRESS,
                SERVICE_ADDRESS,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != b"ready\n":
            trouble = self._holder.stderr.read().decode(errors="replace").strip()
            self.close()
            raise RuntimeError(f"no namespaces for the test cluster: {trouble[-400:]}")
        self._holder_pid = _only_child(self._holder)
        self._network = os.open(f"/proc/{self._holder_pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def popen(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | int = subprocess.DEVNULL,
        input_: IO[bytes] | int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> Inside:
        """Starts a program inside; paths in the command are absolute. Its errors go where its output goes."""
        enter = ["nsenter", "--target", str(self._holder_pid), "--mount", "--net", "--pid", "--"]
        entering = subprocess.Popen(
            [*enter, *command],
            env=environment,
            stdin=input_,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
        made = Inside(entering)
        self._entered = [other for other in self._entered if other.poll() is None] + [made]
        return made

    def run(self, command: Sequence[str], *, timeout_s: float = 60.0) -> str:
        """Runs a program inside to its end and returns what it printed.

        Raises:
            RuntimeError: it failed; the text is its output.
        """
        enter = ["nsenter", "--target", str(self._holder_pid), "--mount", "--net", "--pid", "--"]
        done = subprocess.run(
            [*enter, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def connect(self, port: int, address: str = "127.0.0.1", timeout_s: float = 5.0) -> socket.socket:
        """A TCP connection to a port inside.

        Raises:
            OSError: nobody listens there.
        """
        made = self._in_network(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        made.settimeout(timeout_s)
        try:
            made.connect((address, port))
        except BaseException:
            made.close()
            raise
        return made

    def listener(self, port: int = 0, address: str = "127.0.0.1") -> socket.socket:
        """A listening TCP socket inside, for a server that the test itself runs."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return made

        made = self._in_network(make)
        made.bind((address, port))
        made.listen(128)
        return made

    def _in_network(self, make: Callable[[], T]) -> T:
        """`make()` in a thread that has entered the network; a socket belongs to where it was made, for good."""
        made: list[T] = []
        failed: list[BaseException] = []

        def enter() -> None:
            try:
                if ctypes.CDLL(None, use_errno=True).setns(self._network, CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
                made.append(make())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return made[0]

    def close(self, *, keep: bool = False) -> None:
        """Ends every process inside and removes everything; `keep` leaves the folder, to be opened again.

        Raises:
            TimeoutError: something does not go away.
        """
        if self._network >= 0:
            os.close(self._network)
            self._network = -1
        if self._holder:
            for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
                assert pipe
                pipe.close()
            for process in self._entered:
                process.go_on()
            self._holder.wait(START_S)
            self._holder = None
            for process in self._entered:
                process.wait(START_S)
            self._entered.clear()
        if self.cgroup:
            cgroups.remove(self.cgroup)
        if self.state != Path() and not keep:
            shutil.rmtree(self.state)
            self.state, self.cgroup = Path(), ""
