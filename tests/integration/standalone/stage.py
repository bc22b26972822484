"""The command in a runtime directory of its own, an engine behind it, the disk under it and the processes it starts."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import eventually

import aliquot

SOURCES = Path(aliquot.__file__).parents[1]
FULL = "no space left on device"


class Aliquot:
    """The command, run in one runtime directory."""

    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        path = os.pathsep.join(filter(None, [str(SOURCES), os.environ.get("PYTHONPATH", "")]))
        self.env = os.environ | {"ALIQUOT_RUNTIME_DIR": str(runtime), "PYTHONPATH": path}

    def start(self, *words: str, **options) -> subprocess.Popen[str]:
        """Start it and go on."""
        command = [sys.executable, "-m", "aliquot.cli", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, **({"env": self.env} | streams | options))

    def __call__(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*words, **options)
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def facts(self, *words: str, **options) -> Any:
        """What it says as JSON."""
        return json.loads(self(*words, "-o", "json", **options).stdout)

    def run(self, *words: str, **options) -> subprocess.CompletedProcess[str]:
        """`aliquot run` on an emulated V100."""
        return self("run", "--emulate", "v100", *words, **options)

    @property
    def engine_is_up(self) -> bool:
        """Whether an engine's socket is there."""
        return (self.runtime / "engine.sock").exists()

    def wait_gone(self) -> None:
        """Wait until the engine of the last run has ended and left nothing of its tenants."""
        eventually(lambda: not self.engine_is_up and not (self.runtime / "tenants").exists(), "the engine has ended")


def sharepod(
    name: str, script: str, *, policy: str = "Never", notes: dict[str, str] | None = None, **gpu: object
) -> str:
    """A SharePod that runs a shell script; `notes` are its annotations."""
    metadata = {"name": name} | ({"annotations": notes} if notes else {})
    spec = {
        "gpu": {"request": 0.2} | gpu,
        "template": {
            "spec": {"restartPolicy": policy, "containers": [{"name": "main", "command": ["sh", "-c", script]}]}
        },
    }
    return json.dumps({"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": metadata, "spec": spec})


def first_line(process: subprocess.Popen[str]) -> str:
    """The next line that a program prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[str, str]:
    """Send a signal and wait for the end; what the program had still to say."""
    process.send_signal(number)
    return process.communicate(timeout=60)


class Cluster:
    """Short ways to use an engine."""

    def __init__(self, command: Aliquot, folder: Path) -> None:
        self.command = command
        self._file = folder / "pod.yaml"

    def apply(self, text: str, *flags: str):
        self._file.write_text(text)
        return self.command("apply", "-f", str(self._file), *flags)

    def pod(self, name: str) -> dict:
        """What `describe` says."""
        return self.command.facts("describe", name)

    def wait_phase(self, name: str, phase: str) -> dict:
        """Wait until a SharePod is in a phase."""
        eventually(lambda: self.pod(name)["phase"] == phase, f"{name} is {phase}")
        return self.pod(name)


class Served:
    """An engine that is ready: what it `said` until then, and its dashboard's address where it has one."""

    def __init__(self, command: Aliquot, process: subprocess.Popen[str]) -> None:
        self.command = command
        self.process = process
        self.said: list[str] = []
        while not self.said or not self.said[-1].startswith("ready"):
            self.said.append(first_line(process))
            assert self.said[-1], (self.said, process.stderr.read() if process.stderr else "")
        found = re.search(r"^dashboard at (\S+)$", "".join(self.said), re.M)
        self.url = found[1] if found else ""

    def get(self, path: str) -> dict:
        """An answer of the API."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.load(answer)


@contextlib.contextmanager
def serving(command: Aliquot, spec: str, *words: str) -> Iterator[Served]:
    """`aliquot up` on an emulated machine in the background, ready, until the end of the block."""
    process = command.start("up", "--emulate", spec, "--window", "2", *words)
    try:
        yield Served(command, process)
    finally:
        end(process)
    assert process.returncode == 0


@contextlib.contextmanager
def engine_of(command: Aliquot, spec: str, *words: str) -> Iterator[Aliquot]:
    """The command with such an engine."""
    with serving(command, spec, *words):
        yield command


def engine_pid(command: Aliquot) -> int:
    """Of the engine that is up, by its socket: commands that say it take longer than an arbiter's return."""
    with socket.socket(socket.AF_UNIX) as to_engine:
        to_engine.connect(str(command.runtime / "engine.sock"))
        pid, _, _ = struct.unpack("3i", to_engine.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid)


class Disk:
    """A small file system, to be filled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @property
    def is_full(self) -> bool:
        """Whether it is filled now."""
        return self._ballast.exists()

    def fill(self) -> None:
        """Take what is left, to the last byte."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"0" * 4096):
                    pass
            except OSError:
                return

    def free(self) -> None:
        self._ballast.unlink()


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Disk]:
    """A file system of that size."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder], check=True)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def all_processes() -> Iterator[tuple[int, int]]:
    """Every process that is no zombie, and its parent."""
    for folder in Path("/proc").glob("[0-9]*"):
        fields = read(f"{folder}/stat").rpartition(b")")[2].split()
        if fields and fields[0] != b"Z":
            yield int(folder.name), int(fields[1])


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def children(pid: int) -> list[int]:
    return [child for child, parent in all_processes() if parent == pid]


def children_of(pid: int, word: str) -> list[int]:
    """Children of a process with a word in their command line."""
    return [child for child in children(pid) if word.encode() in read(f"/proc/{child}/cmdline")]


def environment(pid: int) -> list[bytes]:
    """The variables that it was started with."""
    return read(f"/proc/{pid}/environ").split(b"\0")


def read(path: str) -> bytes:
    """A file of /proc; nothing where the process is gone."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
