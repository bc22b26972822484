"""Many parks of programs with memory of every kind: all bytes are as they were, however they come back."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from pathlib import Path

import pytest
from spawning import engine_of, spawn
from waiting import eventually

from aliquot.model.ids import TenantName
from aliquot.standalone.engine import Engine
from aliquot.standalone.parking import NotParked

KEEPER = Path(__file__).with_name("programs") / "keeper.py"
PROGRAMS = 3


def said(cells: Path) -> str:
    """The program's last word."""
    answer = cells.with_suffix(".said")
    return answer.read_text() if answer.exists() else ""


def use(cells: Path) -> None:
    """Have a program compare all it holds."""
    number = int(cells.read_text()) + 1
    cells.with_suffix(".new").write_text(str(number))
    cells.with_suffix(".new").rename(cells)
    eventually(lambda: said(cells) == f"{number} as it was", f"{cells.name} compares its memory: {said(cells)}", 60)


def park(engine: Engine, name: TenantName) -> None:
    """One that was used just now is refused for a moment."""

    def parked() -> bool:
        with contextlib.suppress(NotParked):
            engine.parking.park(name)
        return name in engine.parked

    eventually(parked, f"{name} is parked", 30)


@pytest.mark.parametrize("parks", [30, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_bytes_are_as_they_were_after_any_number_of_parks(tmp_path: Path, parks: int):
    """Linear memory, a pool's, mappings, and what a captured graph writes: compared after every return."""
    seed = int(os.environ.get("CHAOS_SEED") or time.time_ns() % 1_000_000)
    print(f"CHAOS_SEED={seed}")
    chance = random.Random(seed)
    with engine_of("v100") as engine:
        programs = {}
        for number in range(PROGRAMS):
            cells = tmp_path / f"p{number}.cells"
            cells.write_text("0")
            spawn(
                engine,
                cells.stem,
                [sys.executable, str(KEEPER), str(cells), str(seed + number)],
                request_milli=200,
                memory_mib=2048,
            )
            programs[TenantName(cells.stem)] = cells
        for cells in programs.values():
            eventually(lambda cells=cells: said(cells) == "held", "it has its memory", 60)  # type: ignore[misc]
        done = 0
        while done < parks:
            names = chance.sample(sorted(programs), chance.randint(1, PROGRAMS))
            for name in names:
                park(engine, name)
            done += len(names)
            for name in chance.sample(names, len(names)):
                if chance.random() < 0.3:
                    engine.parking.unpark(name)
                use(programs[name])
