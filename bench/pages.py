#!/usr/bin/env python3
"""The server's time for the dashboard's first page: `python bench/pages.py`.

The whole application answers in this process, without a socket and uncompressed, for an administrator and for a viewer
of one namespace, of made-up clusters with 1,000 and 10,000 GPUs. Half of the requests come after facts have changed, so
nothing is left over from the request before. The times are of the process (CPU), the size is that of the HTML; scripts
and styles are files of their own, which browsers keep. Exit status 1 where a median is above its target.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from starlette.testclient import TestClient

from aliquot.status.gpus import Node
from aliquot.status.source import StatusSource
from aliquot.status.view import NamespacedView
from aliquot.status.workloads import Workload
from aliquot.web.app import dashboard, everyone

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from made_up_facts import MadeUpFacts

REQUESTS: Final = 20
TARGETS: Final = ((1_000, 100.0, 80_000), (10_000, 300.0, 150_000))
"""GPUs, milliseconds, bytes."""


class ReadFacts(MadeUpFacts):
    """Lists nodes and workloads as a cluster's facts do: from the last reading."""

    def pass_time(self, points: int = 1) -> None:
        """Let usage move, and read it."""
        super().pass_time(points)
        self._read = (super().workloads(), super().nodes())

    def workloads(self) -> Sequence[Workload]:
        """See `Facts`."""
        return self._read[0]

    def nodes(self) -> Sequence[Node]:
        """See `Facts`."""
        return self._read[1]


def measured(facts: ReadFacts, seen: StatusSource) -> tuple[float, float, int]:
    """Median and maximum in milliseconds, and the page's bytes."""
    client = TestClient(dashboard(everyone(seen)), base_url="http://localhost")
    times_ms, size = [], 0
    for number in range(REQUESTS):
        if number % 2:
            facts.pass_time()
        began_s = time.process_time()
        answer = client.get("/", headers={"accept-encoding": "identity"})
        times_ms.append(1000 * (time.process_time() - began_s))
        size = len(answer.content)
    return statistics.median(times_ms[2:]), max(times_ms[2:]), size


def main() -> int:
    """Print a line for each size and viewer; whether all targets hold."""
    met = True
    sys.stdout.write(f"{'GPUs':>7} {'viewer':<14} {'median ms':>9} {'max ms':>7} {'kB':>6}   target\n")
    for count, max_ms, max_bytes in TARGETS:
        facts = ReadFacts(nodes=count // 8, gpus=8)
        facts.pass_time()
        for viewer, seen in (("administrator", facts), ("one namespace", NamespacedView(facts, frozenset({"web"})))):
            median_ms, longest_ms, size = measured(facts, seen)
            met = met and median_ms <= max_ms and size <= max_bytes
            target = f"{max_ms:.0f} ms, {max_bytes / 1000:.0f} kB"
            sys.stdout.write(
                f"{count:>7,} {viewer:<14} {median_ms:>9.0f} {longest_ms:>7.0f} {size / 1000:>6.1f}   {target}\n"
            )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
