"""Real programs that work and rest, and what a fluid would give them."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from irregular import STEP_NS, fluid_of, random_phases, windows

from aliquot.tokens import SECOND, Share

pytestmark = pytest.mark.real_time

PROGRAM = Path(__file__).parent / "programs" / "phases.py"
SHARES = {"a": Share(200, 500), "b": Share(300, 1000), "c": Share(500, 500)}
SECONDS = 20
WINDOW_NS = 5 * SECOND


def test_programs_that_rest_get_what_the_fluid_gives(stage):
    """Three programs busy at random complete what a fluid would give them, to a few points of every window of 5 s."""
    scene = stage()
    phases = random_phases(1, "abc", SECONDS)
    clients = []
    for name, share in SHARES.items():
        folder = scene.tenant(name, share.request_milli, share.limit_milli)
        argv = [sys.executable, str(PROGRAM), str(scene.directory / f"{name}.progress")]
        argv += [f"{begin},{end}" for begin, end in phases[name]]
        clients.append(scene.program(folder, argv, name, stdin=subprocess.PIPE))
    for client in clients:
        client.wait_ready()
    start_ns = time.monotonic_ns() + SECOND // 10
    for client in clients:
        client.process.stdin.write(b"%d\n" % start_ns)
        client.process.stdin.flush()
    seen = {client.name: [(start_ns, client.totals.kernel_ns)] for client in clients}
    grid_ns = [start_ns + step * STEP_NS for step in range(SECONDS * SECOND // STEP_NS + 1)]
    for at_ns in grid_ns:
        time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
        for client in clients:
            totals = client.totals
            seen[client.name].append((max(start_ns, totals.at_ns), totals.kernel_ns))
    # By the clients' own clock: they have real-time priority and go on while a busy machine lets this process wait.
    got = {name: np.interp(grid_ns, *zip(*counts, strict=True)) for name, counts in seen.items()}
    fluid = fluid_of(SHARES, phases, SECONDS)
    done, due = (np.array([windows(sums[name], WINDOW_NS) for name in SHARES]) for sums in (got, fluid))
    # A machine without a free core completes less of everything; whose part is whose does not depend on it.
    off = np.abs(done - due * (done.sum(axis=0) / due.sum(axis=0)))
    assert float(np.percentile(off, 95)) < 0.04, (done.mean(axis=1), due.mean(axis=1))
    assert done.sum() > 0.7 * due.sum()
