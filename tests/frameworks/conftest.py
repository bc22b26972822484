"""Clients in environments of their own, each feature of each alone and as a tenant; what was seen goes to a file.

`make test-frameworks` runs this folder and nothing else does: it needs 15 GB from the package registry once.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from environments import python
from gpuruns import WAYS, Room, Run

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "integration" / "runtime" / "programs"
RESULTS = Path(os.environ.get("ALIQUOT_FRAMEWORKS_RESULTS", HERE.parents[1] / "build" / "frameworks" / "results.json"))
# Two NCCL ranks on one GPU are charged twice for what they show each other: 5.3 GiB, of which the device holds 4.
SHARE = ("--gpu-request", ".3", "--gpu-limit", ".6", "--gpu-mem", "8Gi")
EQUAL = ("--gpu-request", ".4", "--gpu-mem", "8Gi")
LONGEST_S = 400
"""Ways to run a client: alone on the emulated machine, the three ways in, and beside a tenant of equal request."""
ALL_WAYS = (*WAYS, "neighbour")


@dataclass(frozen=True)
class Client:
    """A program of `clients/`, its environment, the GPU for it, and features that want a process of their own."""

    name: str
    program: str
    environment: str
    gpu: str
    own: dict[str, dict[str, str]] = field(default_factory=dict, hash=False)
    left_out: tuple[str, ...] = ()


def start(
    room: Room, client: Client, way: str, features: Sequence[str], share: Sequence[str] = (), **environment: str
) -> Run:
    """The client with these features."""
    share = share or (EQUAL if way == "neighbour" else SHARE)
    way = "substitute" if way == "neighbour" else way
    argv = [python(client.environment), HERE / "clients" / client.program, *features]
    path = os.pathsep.join([str(HERE / "clients"), str(PROGRAMS)])
    return room.start(way, ["env", f"PYTHONPATH={path}", *argv], share=share, **environment)


def lines(run: Run, count: int) -> Iterator[dict[str, Any]]:
    """What it says of its features, until it ends, says nothing for too long, or has said so much."""
    assert run.process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(run.process.stdout, selectors.EVENT_READ)
        for _ in range(count):
            if not selector.select(LONGEST_S):
                run.process.terminate()
                return
            while line := run.process.stdout.readline():
                if line.startswith('{"feature"'):
                    yield json.loads(line)
                    break
            else:
                return


def run_all(
    room: Room, client: Client, way: str, features: Sequence[str], **environment: str
) -> Iterator[dict[str, Any]]:
    """Every feature's line; one that ends the process is noted, and the others follow in a new one."""
    left = list(features)
    while left:
        run = start(room, client, way, left, **environment)
        for line in lines(run, len(left)):
            left.remove(line["feature"])
            yield line
        run.process.wait(timeout=120)
        if left:
            tail = run.errors.strip().splitlines()[-1:] or [""]
            error = f"the process ended with {run.process.returncode}: {tail[0][:300]}"
            yield {"feature": left.pop(0), "error": error, "emulator": 0, "gate": 0}


class Seen:
    """What each client showed in each way; a client runs once for a way, when first asked."""

    def __init__(self) -> None:
        self.by: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def of(self, client: Client, way: str) -> dict[str, dict[str, Any]]:
        """Feature by feature."""
        if (client.name, way) not in self.by:
            self.by[client.name, way] = {}
            for line in self._run(client, way):
                self.note(client.name, way, **line)
        return self.by[client.name, way]

    def _run(self, client: Client, way: str) -> Iterator[dict[str, Any]]:
        room = Room(client.gpu)
        try:
            listed = start(room, client, "alone", ()).facts(timeout_s=120)
            self.versions[client.name] = listed["versions"] | {"GPU": client.gpu}
            if way == "neighbour":
                beside = [sys.executable, "-m", "aliquot.bench.client", "steady"]
                room.start("library-path", [*beside, "--progress", room.folder / "beside"], share=EQUAL)
            own = [name for name in listed["features"] if name not in client.own and name not in client.left_out]
            yield from run_all(room, client, way, own)
            for name, environment in client.own.items():
                yield from run_all(room, client, way, [name], **environment)
        finally:
            room.close()

    def note(self, client: str, way: str, feature: str, **facts: Any) -> None:
        """Something seen, kept at once."""
        self.by.setdefault((client, way), {})[feature] = {"feature": feature, **facts}
        self.write()

    def write(self) -> None:
        """Everything so far, beside what an earlier run saw of other clients and ways."""
        old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"clients": {}}
        clients = old["clients"]
        for (name, way), features in self.by.items():
            entry = clients.setdefault(name, {"versions": {}, "ways": {}})
            entry["versions"] = self.versions.get(name, entry["versions"])
            entry["ways"].setdefault(way, {}).update(features)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(
            json.dumps({"date": time.strftime("%Y-%m-%d"), "clients": clients}, indent=1, sort_keys=True)
        )


@pytest.fixture(scope="session")
def seen() -> Seen:
    """What the clients showed."""
    return Seen()


@pytest.fixture(scope="session", autouse=True)
def _environments_are_here() -> None:
    try:
        python("cuda13")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.exit(f"the clients' environments cannot be had: {error}", 1)
