"""The size of the history's file and the CPU time of a minute: python bench/history.py [GPUS] [TENANTS] [QUARTERS]."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from aliquot.status.gpus import Gpu
from aliquot.web.history.file import HistoryFile, Limits
from aliquot.web.history.points import GpuMinute, Minute

START = 1_800_000_000 // 900 * 900


def minute(at_s: int, gpus: int, tenants: int, chance: random.Random) -> Minute:
    """A minute in which every tenant took turns."""
    held = []
    for g in range(gpus):
        span_ms = 60_000 + chance.randint(-40, 40)
        rows = {}
        for t in range(tenants):
            promised = (10 + 7 * (g + t) % 50) * span_ms // 1000
            used = max(0, round(chance.gauss(0.8, 0.2) * promised))
            memory = (200 + 57 * t % 1800) * span_ms // 1000
            windows = chance.randint(220, 240)
            kept = windows - chance.choice((0, 0, 0, 1))
            waited, handovers = chance.randrange(20_000), chance.randint(50, 300)
            row = [span_ms, promised, used, 0, 0, waited, memory, windows, kept, handovers]
            rows[f"team-{t % 7}/pod-{g}-{t}/main", f"Deployment/d{t}"] = row
        gpu = Gpu(f"GPU-{g}", g, "node", "V100", 16384, "idle", 1000, 16384, 0, 0, [])
        held.append(GpuMinute(gpu, span_ms, rows))
    return Minute(at_s, held)


def main() -> None:
    """Write some quarter hours, and say what a month would take."""
    gpus, tenants, quarters = (*map(int, sys.argv[1:]), *(8, 32, 64)[len(sys.argv) - 1 :])
    chance, spent_s = random.Random(1), 0.0
    with tempfile.TemporaryDirectory() as folder:
        file = HistoryFile(Path(folder) / "history.db")
        empty = file.size
        for n in range(quarters * 15):
            made = minute(START + 60 * n, gpus, tenants, chance)
            began_s = time.process_time()
            file.add(made)
            spent_s += time.process_time() - began_s
        size = file.size
        tables = ("minutes", "quarters", "hours")
        query = ", ".join(f"(SELECT sum(length(data)) FROM {table})" for table in tables)
        parts = dict(zip(tables, file.read(lambda base: base.execute(f"SELECT {query}").fetchone()), strict=True))
        file.close()
    limits = Limits()
    month = (
        parts["minutes"] * limits.minutes / (quarters * 15)
        + (parts["quarters"] + parts["hours"]) * limits.quarters / quarters
    )
    month = empty + month * (size - empty) / sum(parts.values())
    sys.stdout.write(
        f"{gpus} GPUs with {tenants} tenants each: {1000 * spent_s / (quarters * 15):.1f} ms of CPU a minute\n"
    )
    sys.stdout.write(f"after {quarters / 4:g} h {size / 1e6:.1f} MB; 30 days take {month / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
