"""Faults in random order: processes stopped and killed, the disk full. No share is lost, none is given twice.

`ALIQUOT_SEED` repeats the order of a run that failed; each test prints its own.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from rights import rooms

from .chaos import Machine, fault, settle
from .stage import mounted

pytestmark = rooms
SHORT, LONG = 8, 100


@pytest.fixture
def seed() -> int:
    """A new one for each test, or the one that was asked for."""
    return int(os.environ.get("ALIQUOT_SEED") or random.SystemRandom().randrange(10**6))


@pytest.fixture
def machine(tmp_path: Path, seed: int) -> Iterator[Machine]:
    """Everything runs."""
    with mounted(tmp_path / "d", "24m") as disk:
        made = Machine(disk, tmp_path, mark=f"{os.getpid()}-{seed}")
        try:
            settle(made)
            yield made
        finally:
            made.sweep()


def endure(machine: Machine, seed: int, count: int) -> None:
    """So many faults, and an end in order."""
    chance, longest_s = random.Random(seed), 0.0
    print(f"ALIQUOT_SEED={seed}")
    for number in range(count):
        for words in fault(machine, chance):
            print(f"{number + 1}: {words}", flush=True)
        longest_s = max(longest_s, settle(machine))
    print(f"{count} faults; all held again within {longest_s:.1f} s of each")
    assert [] == machine.close()
    left = {path.name for path in machine.disk.folder.iterdir()}
    assert left <= {"arbiter.lock", "engine.log", "journal", "leases", "logs", "state", "tenants.json"}


@pytest.mark.timeout(120)
def test_a_few_faults_in_random_order_lose_nothing(machine: Machine, seed: int):
    """After each fault the engine answers, programs run or say why not, and all ledgers agree."""
    endure(machine, seed, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_hundred_faults_in_random_order_lose_nothing(machine: Machine, seed: int):
    """The same at length."""
    endure(machine, seed, LONG)
