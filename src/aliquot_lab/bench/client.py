"""A CUDA program as a tenant: `python -m aliquot_lab.bench.client MODE --progress FILE`.

It knows nothing of Aliquot, but in phases. Each mode is one way programs use a GPU:

- steady: launches ahead, a bounded number in flight (training);
- sync: launch, wait, launch (inference, notebooks);
- graph: captured graphs, a bounded number in flight;
- burst: some work, then nothing for a while;
- long: kernels of a second;
- cells: `--batch` kernels whenever SIGUSR1 comes, and a look at what it wrote into its memory (a notebook in use);
- phases: takes turns with others in the GPU's memory: acquires the GPU of the `--engine`, computes `--batch` kernels,
  yields it, and does something else for `--idle-ms`; an interval is a phase;
- memory: allocates and frees, and keeps the time of each pair's allocation.

The work is kernels of a known duration, so completed kernels are GPU time that the client can swear to. It ends at
SIGTERM or after `--seconds`, waits for its work, and with `--report` prints its counts as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aliquot_lab.bench.cuda import CudaDevice
from aliquot_lab.bench.priority import go_before_other_programs
from aliquot_lab.bench.progress import ProgressWriter

_MS_NS = 1_000_000
WRITTEN = 0x5A


class ClientProgram:
    """One program: its GPU, its counts and what it was asked to do."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.ends_s = time.monotonic() + (asked.seconds or math.inf)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        self.progress = ProgressWriter(asked.progress)
        self.gpu = CudaDevice()
        self.kernel_ns = int(asked.kernel_ms * _MS_NS)
        self.held = self.gpu.allocate(asked.memory_mib << 20) if asked.memory_mib else None

    def _end(self, _number: int, _frame: object) -> None:
        self.ends_s = 0.0

    @property
    def stop(self) -> bool:
        """Whether to end: by SIGTERM or SIGINT, or by the clock."""
        return time.monotonic() >= self.ends_s

    def turn(self, kernels: int = 1) -> None:
        """Launch some kernels and wait for them; the turn is kept in the progress ring."""
        asked_ns = time.monotonic_ns()
        self.gpu.spin(self.kernel_ns)
        launched_ns = time.monotonic_ns()
        for _ in range(kernels - 1):
            self.gpu.spin(self.kernel_ns)
        self.gpu.synchronize()
        self.progress.interval(asked_ns, launched_ns, time.monotonic_ns())
        self.count(kernels)

    def count(self, kernels: int) -> None:
        """`kernels` more have completed."""
        self.progress.launched += kernels
        self.progress.completed += kernels
        self.progress.kernel_ns += kernels * self.kernel_ns
        self.progress.store()

    def ahead(self, launch: Callable[[], None], kernels: int) -> None:
        """Launch with at most `depth` launches in flight until the stop signal."""
        in_flight: deque[Any] = deque()
        spare = [self.gpu.event() for _ in range(self.asked.depth)]
        while not self.stop:
            if not spare:
                self.gpu.wait(in_flight[0])
                spare.append(in_flight.popleft())
                self.count(kernels)
            event = spare.pop()
            launch()
            self.gpu.record(event)
            in_flight.append(event)
        for event in in_flight:
            self.gpu.wait(event)
            self.count(kernels)


def steady(client: ClientProgram) -> None:
    """Single kernels, a few ahead."""
    client.ahead(lambda: client.gpu.spin(client.kernel_ns), kernels=1)


def graph(client: ClientProgram) -> None:
    """Captured graphs of `--batch` kernels, a few ahead."""
    executable = client.gpu.capture(client.kernel_ns, client.asked.batch)
    client.ahead(lambda: client.gpu.launch_graph(executable), kernels=client.asked.batch)


def sync(client: ClientProgram) -> None:
    """One kernel at a time."""
    while not client.stop:
        client.turn()


def burst(client: ClientProgram) -> None:
    """`--batch` kernels, then nothing for `--idle-ms`."""
    while not client.stop:
        client.turn(client.asked.batch)
        time.sleep(client.asked.idle_ms / 1e3)


def cells(client: ClientProgram) -> None:
    """A notebook: nothing until it is used; ends with a failure if its memory has changed."""
    uses: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: uses.append(number))
    client.gpu.fill(client.held, WRITTEN)
    while not client.stop:
        if uses:
            uses.clear()
            client.turn(client.asked.batch)
            if client.gpu.sample(client.held) != WRITTEN:
                raise SystemExit("device memory has changed")
        time.sleep(0.01)


def phases(client: ClientProgram) -> None:
    """A trainer or an inference engine by phases; ends with a failure if its memory has changed."""
    import aliquot

    os.environ["ALIQUOT_RUNTIME_DIR"] = client.asked.engine
    client.gpu.fill(client.held, WRITTEN)
    while not client.stop:
        asked_ns = time.monotonic_ns()
        aliquot.acquire_gpu()
        acquired_ns = time.monotonic_ns()
        for _ in range(client.asked.batch):
            client.gpu.spin(client.kernel_ns)
        client.gpu.synchronize()
        if client.gpu.sample(client.held) != WRITTEN:
            raise SystemExit("device memory has changed")
        client.progress.interval(asked_ns, acquired_ns, time.monotonic_ns())
        client.count(client.asked.batch)
        aliquot.yield_gpu()
        time.sleep(client.asked.idle_ms / 1e3)


def memory(client: ClientProgram) -> None:
    """Allocate and free `--batch` KiB over and over; an interval is one allocation."""
    size_bytes = client.asked.batch << 10
    while not client.stop:
        asked_ns = time.monotonic_ns()
        pointer = client.gpu.allocate(size_bytes)
        ended_ns = time.monotonic_ns()
        client.gpu.free(pointer)
        client.progress.interval(asked_ns, asked_ns, ended_ns)
        client.progress.store()


MODES: dict[str, Callable[[ClientProgram], None]] = {
    "steady": steady, "sync": sync, "graph": graph, "burst": burst, "long": sync, "cells": cells, "memory": memory,
    "phases": phases,
}  # fmt: skip


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aliquot_lab.bench.client", description=__doc__)
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("--progress", type=Path, required=True, help="file for the counts")
    parser.add_argument("--kernel-ms", type=float, default=None, help="duration of a kernel (2; mode long: 1000)")
    parser.add_argument("--depth", type=int, default=4, help="launches in flight at most")
    parser.add_argument("--batch", type=int, default=10, help="kernels a graph or burst; KiB an allocation")
    parser.add_argument("--idle-ms", type=float, default=50, help="rest between bursts")
    parser.add_argument("--memory-mib", type=int, default=0, help="device memory held all the while")
    parser.add_argument("--engine", default="", help="runtime folder of the engine, in mode phases")
    parser.add_argument("--seconds", type=float, default=0, help="end after this long; 0: at a signal")
    parser.add_argument("--real-time", action="store_true", help="run before other programs, where permitted")
    parser.add_argument("--report", action="store_true", help="print the counts at the end")
    asked = parser.parse_args(argv)
    if asked.kernel_ms is None:
        asked.kernel_ms = 1000 if asked.mode == "long" else 2
    return asked


def main(argv: list[str]) -> int:
    """Run one client to its end; the exit status is 0 unless CUDA failed."""
    asked = _parse(argv)
    if asked.real_time:
        go_before_other_programs()
    client = ClientProgram(asked)
    client.turn()
    client.progress.ready()
    MODES[asked.mode](client)
    progress = client.progress
    progress.store()
    if not asked.report:
        return 0
    counts = {
        "mode": asked.mode,
        "gpu": client.gpu.name,
        "launched": progress.launched,
        "completed": progress.completed,
        "kernel_ns": progress.kernel_ns,
        "ran_ns": time.monotonic_ns() - progress.ready_ns,
    }
    sys.stdout.write(json.dumps(counts) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
