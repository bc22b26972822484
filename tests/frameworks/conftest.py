"""Clients in environments of their own, each feature of each alone and as a tenant; what was seen goes to a file.

`make test-frameworks` runs this folder and nothing else does: it needs 15 GB from the package registry once.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from environments import python
from gpuruns import SOURCES, WAYS, Room, Run
from watching import Watched

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "integration" / "runtime" / "programs"
RESULTS = Path(os.environ.get("ALIQUOT_FRAMEWORKS_RESULTS", HERE.parents[1] / "build" / "frameworks" / "results.json"))
# Two NCCL ranks on one GPU fill 4 GiB almost; where sharing by descriptors is not seen they are charged 5.3 GiB.
SHARE = ("--gpu-request", ".3", "--gpu-limit", ".6", "--gpu-mem", "8Gi")
EQUAL = ("--gpu-request", ".4", "--gpu-mem", "8Gi")
NEIGHBOUR = ("--gpu-request", ".4", "--gpu-mem", "1Gi")
SILENT_S = 240.0
"""How long a client may say nothing: the longest feature takes 20 s on a quiet machine."""
END_S = 60.0
"""How long a client may take to end after its last feature: 2 s on a quiet machine."""
THE_END = "end of the program"
"""Ways to run a client: alone on the emulated machine, the three ways in, and beside a tenant of equal request."""
ALL_WAYS = (*WAYS, "neighbour")

Line = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """A program of `clients/`, its environment, the GPU for it, and features that want a process of their own.

    `fails` has the features that cannot work on the emulated driver, each with a part of the error that it ends in.
    """

    name: str
    program: str
    environment: str
    gpu: str
    own: dict[str, dict[str, str]] = field(default_factory=dict, hash=False)
    left_out: tuple[str, ...] = ()
    fails: dict[str, str] = field(default_factory=dict, hash=False)


def start(
    room: Room, client: Client, way: str, features: Sequence[str], share: Sequence[str] = (), **environment: str
) -> Run:
    """The client with these features."""
    share = share or (EQUAL if way == "neighbour" else SHARE)
    way = "substitute" if way == "neighbour" else way
    argv = [python(client.environment), HERE / "clients" / client.program, *features]
    path = os.pathsep.join([str(HERE / "clients"), str(PROGRAMS)])
    return room.start(way, ["env", f"PYTHONPATH={path}", *argv], share=share, **environment)


def failed(feature: str, error: str, stacks: str = "") -> Line:
    """The line of a feature that could not write one itself."""
    return {"feature": feature, "error": error, "stacks": stacks, "emulator": 0, "gate": 0}


def run_all(room: Room, client: Client, way: str, words: Sequence[str], **environment: str) -> Iterator[Line]:
    """The client's list, then every feature's line; one that ends the process is noted, the others follow in a new one.

    The last line is how the program ended.
    """
    while words:
        watched = Watched(start(room, client, way, words, **environment))
        facts = watched.facts(SILENT_S)
        listed = next(facts, None)
        if listed is None:
            yield failed(THE_END, watched.ended(END_S) or "it said nothing", watched.hung)
            return
        yield listed
        left = [n for n in listed["features"] if n not in words] if words[0] == "--but" else list(words)
        for line in facts:
            left.remove(line["feature"])
            yield line
        ended = watched.ended(END_S)
        if not left:
            yield failed(THE_END, ended, watched.hung)
        else:
            silent = f"nothing for {SILENT_S:.0f} s" if watched.hung else ended
            yield failed(left.pop(0), silent or "the process ended", watched.hung)
        words = left


class Seen:
    """What each client showed in each way; a client runs once for a way, when first asked."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.by: dict[tuple[str, str], dict[str, Line]] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def of(self, client: Client, way: str) -> dict[str, Line]:
        if (client.name, way) not in self.by:
            self.by[client.name, way] = {}
            with contextlib.closing(self._run(client, way)) as lines:
                for line in lines:
                    self.note(client, way, line)
        return self.by[client.name, way]

    def _run(self, client: Client, way: str) -> Iterator[Line]:
        room = Room(client.gpu)
        try:
            if way == "neighbour":
                beside = [sys.executable, "-m", "aliquot_lab.bench.client", "steady"]
                room.start("library-path", [*beside, "--progress", room.folder / "beside"], share=NEIGHBOUR)
            runs = [(["--but", *client.own, *client.left_out], {})]
            runs += [([name], environment) for name, environment in client.own.items()]
            for words, environment in runs:
                yield from run_all(room, client, way, words, **environment)
        finally:
            room.close()

    def note(self, client: Client, way: str, line: Line) -> None:
        """Something seen, kept at once."""
        if "versions" in line:
            self.versions[client.name] = line["versions"] | {"GPU": client.gpu}
            return
        features, name = self.by.setdefault((client.name, way), {}), line["feature"]
        if not features.get(name, {}).get("error"):  # a program that ended badly once has ended badly
            features[name] = line | {"expected": client.fails.get(name, "")}
        how = (line["error"].strip().splitlines() or ["yes"])[-1]
        self.say(f"{client.name}, {way}: {name}: {how} ({line['gate']} of {line['emulator']})")
        if line.get("stacks"):
            self.say(line["stacks"])
        self.write()

    def write(self) -> None:
        """Everything so far; what an earlier run saw stays for the clients and ways that this one did not run."""
        clients = json.loads(RESULTS.read_text())["clients"] if RESULTS.exists() else {}
        for (name, way), features in self.by.items():
            entry = clients.setdefault(name, {"versions": {}, "ways": {}})
            entry["versions"] = self.versions.get(name, entry["versions"])
            entry["ways"][way] = {"date": time.strftime("%Y-%m-%d"), "features": features}
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({"clients": clients}, indent=1, sort_keys=True))


@pytest.fixture
def room() -> Iterator[Room]:
    """One emulated H100."""
    one = Room("h100")
    yield one
    one.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a shell where `aliquot` is found and an engine with one emulated H100 is up."""
    runtime = tempfile.mkdtemp(prefix="alq-")  # a socket's path is short, and pytest's folders are not
    (tmp_path / "aliquot").write_text(f'#!/bin/sh\nexec {sys.executable} -m aliquot.cli "$@"\n')
    (tmp_path / "aliquot").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCES), "ALIQUOT_RUNTIME_DIR": runtime,
    }  # fmt: skip
    subprocess.run(["aliquot", "up", "-d", "--no-web", "--emulate", "h100"], env=environment, check=True)
    yield environment
    subprocess.run(["aliquot", "down"], env=environment, check=True)
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture(scope="session")
def seen(pytestconfig: pytest.Config) -> Seen:
    """What the clients showed; each line of it is shown while it comes."""
    try:
        python("cuda13")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.exit(f"the clients' environments cannot be had: {error}", 1)
    capture, start_s = pytestconfig.pluginmanager.get_plugin("capturemanager"), time.monotonic()

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            print(f"\n{time.monotonic() - start_s:6.0f} s  {text}", end="", flush=True)

    return Seen(say)
