"""Engines of several accounts start and end in random order over the GPUs of one machine: a GPU has one owner at most.

Most owners are processes that do what an engine does first, take its GPUs, as accounts and in rooms of their own; a few
are whole engines. `ALIQUOT_SEED` repeats the order of a run that failed; each test prints its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rights import rooms
from waiting import engine_lives, eventually

from aliquot.driver.emulation import prepare
from aliquot.driver.gpu import Gpu
from aliquot.driver.gpu_lock import check_free
from aliquot.driver.mounts import linker_cache
from aliquot.driver.native import HOOK, native_part

from .stage import Aliquot, first_line
from .test_machine_engine import ANN, BOB, PATHS, PYTHON, accounts_cannot_start, become

pytestmark = [
    rooms,
    pytest.mark.skipif(accounts_cannot_start(), reason="needs a Python that every account can start"),
]
PROGRAM = Path(__file__).with_name("programs") / "owners.py"
GPUS = 4
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
"""Death, an orderly end, and what a session's processes get when its account logs out."""


class Owner:
    """One that takes GPUs: what it asked for and, once it has answered, whether it `has` them."""

    def __init__(self, number: int, gpus: list[int], words: str) -> None:
        self.number, self.gpus, self.words = number, gpus, words
        self.pid = 0
        self.has: bool | None = None
        self.process: subprocess.Popen[str] | None = None
        """Of a whole engine."""


class Owners:
    """All of them, over the driver of an emulated machine; what they say of their GPUs is in `slots`."""

    others: tuple[str, ...] = ()
    """Kinds of engines that take no GPU, which may start as well."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        driver = prepare(folder / "driver", f"h100x{GPUS}")
        self.libnvml = driver.libnvml
        self.gpus = [Gpu(index, uuid, "H100", 81559) for index, uuid in enumerate(driver.uuids)]
        linker_cache(folder / "cache", driver.directory)
        (folder / "cache").chmod(0o644)
        driver.libnvml.with_name("shown").touch()
        self._slots = folder / "slots"
        self._slots.write_bytes(bytes(4 * GPUS + 10_000))
        self._slots.chmod(0o666)
        self.living: dict[int, Owner] = {}
        self._count = 0
        self._forks = subprocess.Popen(
            [sys.executable, PROGRAM, self.libnvml, self._slots, *driver.uuids], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert "0 ready\n" == first_line(self._forks)

    def close(self) -> None:
        """End what is left."""
        for owner in list(self.living.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGKILL)
            if owner.process is not None:
                owner.process.communicate(timeout=60)
        self._forks.communicate(timeout=60)
        for place in self.folder.glob("e*-*"):  # of a run that was killed, whose engine ends with it
            eventually(lambda place=place: not engine_lives(place), "no engine is left")

    def start(self, gpus: list[int]) -> Owner:
        """Begin to take GPUs, as some account, on the machine itself or in a mount and a network namespace."""
        uid, room = self.chance.choice((0, ANN, BOB)), self.chance.random() < 0.3
        owner = self._new(gpus, f"account {uid}{' in a room' if room else ''}")
        self._tell([owner.number, uid, room, gpus])
        self._read(lambda: owner.pid)
        return owner

    def start_engine(self, gpus: list[int]) -> Owner:
        """Begin a whole engine: an account's own, the machine's, or one that emulates GPUs, which takes none."""
        kind = self.chance.choice(("private", "private", "system", *self.others))
        uid = 0 if kind == "system" else self.chance.choice((0, ANN, BOB))
        owner = self._new([] if kind == "emulated" else gpus, f"{kind} engine of {uid}")
        place = Path(tempfile.mkdtemp(prefix=f"e{owner.number}-", dir=self.folder))
        os.chown(place, uid, uid)
        environment = Aliquot(place).env | {"PYTHONPATH": PATHS, "HOME": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["ALIQUOT_NATIVE_DIR"] = str(native_part(HOOK).parent)
        environment["ALIQUOT_MACHINE_DIR"] = environment["ALIQUOT_RUNTIME_DIR"] = str(place)
        command = [*become(uid), PYTHON, "-m", "aliquot.cli"]
        if kind == "emulated":
            command += ["run", "--emulate", "h100", "--", "sh", "-c", "echo ready; exec sleep 600"]
        else:
            command += ["up", "--no-web", f"--only-gpus={','.join(map(str, gpus))}"]
            command += ["--system"] if kind == "system" else []
        room = ["unshare", "--mount", *(["--net"] if self.chance.random() < 0.5 else [])]
        script = f'mount --bind {self.folder}/cache /etc/ld.so.cache && exec "$@"'
        owner.process = subprocess.Popen(
            [*room, "sh", "-c", script, "sh", *command], env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=place,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup has ignored for all of us
        )  # fmt: skip
        owner.pid = owner.process.pid
        return owner

    def answer(self, owner: Owner) -> None:
        """Wait until it has its GPUs or was refused, and compare that with what the living ones have."""
        if owner.process is None:
            self._read(lambda: owner.has is not None)
            if not owner.has:
                self._reap(owner)
        else:
            assert owner.process.stdout is not None
            said = next((line for line in owner.process.stdout if line.startswith("ready")), "")
            owner.has = bool(said)
            if not said:
                _, why = owner.process.communicate(timeout=60)
                assert "is shared by" in why, why
                del self.living[owner.number]

    def take(self, owners: list[Owner], gone: set[int]) -> None:
        """Let them all answer: of their GPUs each has one owner at most, and who was refused met one.

        Who was killed meanwhile may have had the GPUs that are `gone`.
        """
        for owner in owners:
            self.answer(owner)
        having = [owner for owner in self.living.values() if owner.has]
        taken = sorted(gpu for owner in having for gpu in owner.gpus)
        assert len(set(taken)) == len(taken), [(owner.words, owner.gpus) for owner in having]
        for owner in owners:
            assert owner.has or not gone.union(taken).isdisjoint(owner.gpus), f"{owner.words} was refused free GPUs"

    def end(self, owner: Owner, number: signal.Signals) -> None:
        """End it; from then on its GPUs are free."""
        if number == signal.SIGKILL:
            with self._slots.open("r+b") as file:
                file.seek(4 * GPUS + owner.number)
                file.write(b"\1")
        if number == signal.SIGHUP and owner.process is not None:
            os.killpg(owner.pid, number)  # its whole session
        else:
            os.kill(owner.pid, number)
        if owner.process is None:
            self._reap(owner)
        else:
            owner.process.communicate(timeout=60)
            del self.living[owner.number]
        others = {gpu for other in self.living.values() for gpu in other.gpus}
        check_free(self.libnvml, [self.gpus[gpu] for gpu in owner.gpus if gpu not in others])

    def check(self) -> None:
        """What the owners say of themselves agrees with what they were told."""
        said = struct.unpack(f"{GPUS}I", self._slots.read_bytes()[: 4 * GPUS])
        for owner in self.living.values():
            if owner.process is None:
                assert all(said[gpu] == owner.number for gpu in owner.gpus), (owner.words, said)

    def _new(self, gpus: list[int], words: str) -> Owner:
        self._count += 1
        owner = self.living[self._count] = Owner(self._count, gpus, words)
        return owner

    def _tell(self, what: list[object]) -> None:
        assert self._forks.stdin is not None
        self._forks.stdin.write(json.dumps(what) + "\n")

    def _reap(self, owner: Owner) -> None:
        self._tell([owner.number])
        self._read(lambda: owner.number not in self.living)

    def _read(self, until) -> None:
        while not until():
            number, _, words = first_line(self._forks).partition(" ")
            assert words, "the forking process has ended"
            owner, (what, *rest) = self.living[int(number)], words.split()
            assert what != "two", f"{owner.words}: {words}"
            if what == "pid":
                owner.pid = int(rest[0])
            elif what == "ended":
                del self.living[owner.number]
            else:
                owner.has = what == "has"


@pytest.fixture
def owners() -> Iterator[Owners]:
    """None yet."""
    seed = int(os.environ.get("ALIQUOT_SEED") or random.SystemRandom().randrange(10**6))
    print(f"ALIQUOT_SEED={seed}")
    folder = Path(tempfile.mkdtemp(prefix="own-", dir="/tmp"))
    folder.chmod(0o755)
    made = Owners(folder, seed)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


def start_and_end(owners: Owners, count: int, engine_every: int) -> None:
    """So many starts, of which some are killed before they have answered, and as many ends."""
    chance, outcomes = owners.chance, {"has": 0, "refused": 0, "killed at its start": 0}
    while count > 0:
        together = chance.choice((1, 1, 2, 3))
        some = [sorted(chance.sample(range(GPUS), chance.randint(1, GPUS))) for _ in range(together)]
        begun = [owners.start(gpus) for gpus in some]
        if count // engine_every != (count - together) // engine_every:
            begun.append(owners.start_engine(some[0]))
        count, gone = count - len(begun), set[int]()
        if chance.random() < 0.2:
            time.sleep(chance.random() / 200)
            owners.end(killed := begun.pop(chance.randrange(len(begun))), signal.SIGKILL)
            print(f"{killed.words}: killed at its start, asked for {killed.gpus}", flush=True)
            outcomes["killed at its start"] += 1
            gone = set(killed.gpus)
        owners.take(begun, gone)
        for owner in begun:
            print(f"{owner.words}: {'has' if owner.has else 'refused'} {owner.gpus}", flush=True)
            outcomes["has" if owner.has else "refused"] += 1
        owners.check()
        for owner in list(owners.living.values()):
            if chance.random() < 0.5:
                number = chance.choice(ENDS)
                owners.end(owner, number)
                print(f"{owner.words}: {number.name}, {owner.gpus} free", flush=True)
    for owner in list(owners.living.values()):
        owners.end(owner, chance.choice(ENDS))
    check_free(owners.libnvml, owners.gpus)
    print(outcomes)
    assert outcomes["has"] and outcomes["refused"], outcomes


@pytest.mark.timeout(120)
def test_a_gpu_has_one_owner_whatever_starts_and_ends(owners: Owners):
    """Of engines that are started, killed, stopped and logged out, none gets a GPU that has an owner."""
    start_and_end(owners, 40, engine_every=10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_gpu_has_one_owner_whatever_starts_and_ends_for_long(owners: Owners):
    """The same a thousand times, with runs on emulated GPUs in between."""
    owners.others = ("emulated",)
    start_and_end(owners, 1000, engine_every=30)
