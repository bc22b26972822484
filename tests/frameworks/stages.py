"""Framework programs that count their steps (`clients/`), under one engine: each alone for a while, then together."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from environments import HERE, python

import aliquot
from aliquot_lab.bench.fig6 import RequestedShare, Sample, Tenant
from aliquot_lab.bench.scene import Client, Program, Scene

SLOW = 50
"""How many times longer an emulated kernel takes: half a millisecond, so a step waits for the GPU, not for Python."""
START_S = 240.0
"""How long a busy machine may take to import the frameworks."""
SETTLE_S, LONE_S = 0.5, 3.0
MODULES = (HERE / "clients", HERE.parent / "integration" / "runtime" / "programs", Path(aliquot.__file__).parents[1])


@dataclass(frozen=True)
class Work:
    """A program of `clients/` with its words after the progress file, its environment, and what it asks for."""

    tenant: Tenant
    ask: RequestedShare
    environment: str
    program: str
    words: tuple[str, ...] = ()

    def command(self) -> Program:
        """As a scene starts it."""
        path = f"PYTHONPATH={os.pathsep.join(map(str, MODULES))}"
        head = ["env", path, f"ALIQUOT_EMULATOR_FAULTS=slow={SLOW}", str(python(self.environment))]
        return lambda progress: [*head, str(HERE / "clients" / self.program), str(progress), *self.words]


def start(stage: Scene, works: Sequence[Work]) -> list[Client]:
    """Start all at once; each has made its first step."""
    clients = [stage.start_program(work.tenant, work.ask, work.command()) for work in works]
    for client in clients:
        client.wait_ready(START_S)
    return clients


def rest(stage: Scene, tenants: Sequence[Tenant]) -> None:
    """These ask for nothing from now on; all others work."""
    for tenant in stage.clients:
        mark = stage.directory / f"{tenant}.progress.rest"
        mark.touch() if tenant in tenants else mark.unlink(missing_ok=True)


class Lone(NamedTuple):
    """A program that has the GPU to itself: its steps a second, and the part of the time it lacked a processor."""

    per_s: float
    short: float


def lone_rates(stage: Scene, seconds: float = LONE_S) -> dict[Tenant, Lone]:
    """Each while the others rest; then all work."""
    found = {}
    for tenant, client in stage.clients.items():
        rest(stage, [other for other in stage.clients if other != tenant])
        time.sleep(SETTLE_S)
        first, waited_s = client.totals, processor_s(client)[1]
        time.sleep(seconds)
        last, waited_s = client.totals, processor_s(client)[1] - waited_s
        assert first and last
        # From one step to another, so that none is counted by half.
        per_s = (last.completed - first.completed) * 1e9 / (last.at_ns - first.at_ns)
        found[tenant] = Lone(per_s, waited_s / seconds)
    rest(stage, [])
    return found


def sample(stage: Scene, lone: dict[Tenant, Lone]) -> Sample:
    """What all have used by now; completed is the time that each one's steps take when it is alone."""
    seen = stage.sample()
    done = {tenant: client.totals for tenant, client in stage.clients.items()}
    completed = {tenant: int(each.completed * 1e9 / lone[tenant].per_s) for tenant, each in done.items() if each}
    return Sample(seen.at_ns, seen.charged_ns, completed)


def processor_s(client: Client) -> tuple[float, float]:
    """For how long the program's threads have run on a processor, and been ready without one."""
    files = [path.read_text().split() for path in Path(f"/proc/{client.pid}/task").glob("*/schedstat")]
    return sum(int(words[0]) for words in files) / 1e9, sum(int(words[1]) for words in files) / 1e9


def notes(stage: Scene, tenant: Tenant) -> dict[str, Any]:
    """End a program; the launches that it noted."""
    stage.end(tenant)
    return dict(json.loads((stage.directory / f"{tenant}.progress.json").read_text()))
