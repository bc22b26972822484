"""Memory that one process exports and others import, by the ledger of the arbiter."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stage import Client, Stage
from waiting import eventually, stop

PROGRAM = Path(__file__).parent / "programs" / "share.py"
MIB = 300


class Partner:
    """One process that shares memory; `do` is one step of it."""

    def __init__(self, scene: Stage, folder, role: str, name: str, socket: str = "sock") -> None:
        self.out = scene.directory / f"{name}.out"
        command = f"exec {sys.executable} {PROGRAM} {role} {scene.directory / socket} {MIB} > {self.out}"
        self.client: Client = scene.program(folder, ["sh", "-c", command], name, stdin=subprocess.PIPE)
        self.steps = 0
        self._answer()

    def tell(self, step: str) -> None:
        self.client.process.stdin.write(f"{step}\n".encode())
        self.client.process.stdin.flush()
        self.steps += 1

    def do(self, step: str) -> int:
        self.tell(step)
        return int(self._answer())

    def end(self) -> None:
        self.client.process.kill()
        self.client.process.wait()

    def _answer(self) -> str:
        eventually(lambda: self.out.exists() and self.out.read_text().count("\n") > self.steps, self.client.name, 30)
        return self.out.read_text().splitlines()[-1]


def charged(scene: Stage, name: str = "a") -> int:
    """MiB without contexts and without what is leased for small things to come."""
    seen = scene.seen(name)
    return seen.memory_used_mib - seen.memory_context_mib


def hand_over(exporter: Partner, importer: Partner) -> list[int]:
    """The memory goes from the one to the other, who maps it; the codes of the calls."""
    importer.tell("receive")
    codes = [exporter.do("send"), int(importer._answer())]
    return [*codes, importer.do("map")]


def settles_at(scene: Stage, mib: int, name: str = "a") -> None:
    """Slabs go back within a second or two."""
    eventually(lambda: charged(scene, name) == mib, f"{name} is charged {mib} MiB, not {charged(scene, name)}", 10)


def test_memory_that_processes_of_a_tenant_share_is_charged_once_until_the_last_lets_it_go(stage):
    """An importer pays nothing while the memory is charged, and it stays charged when the exporter ends before it."""
    scene = stage()
    folder = scene.tenant("a", 500, memory_mib=500)
    importer = Partner(scene, folder, "import", "importer")
    exporter = Partner(scene, folder, "export", "exporter")

    codes = hand_over(exporter, importer)
    settles_at(scene, MIB)
    exporter.end()
    settles_at(scene, MIB)
    refused = importer.do(f"create {MIB}")
    importer.do("drop")
    settles_at(scene, 0)

    assert ([0, 0, 0], 2) == (codes, refused)
    assert 0 == importer.do(f"create {MIB}")


def test_the_exporter_may_let_go_first_or_last_and_import_twice(stage):
    """Handles that are released and memory that is exported again change nothing while one process holds it."""
    scene = stage()
    folder = scene.tenant("a", 500, memory_mib=500)
    importer = Partner(scene, folder, "import", "importer")
    exporter = Partner(scene, folder, "export", "exporter")
    hand_over(exporter, importer)
    importer.do("drop")
    settles_at(scene, MIB)
    codes = hand_over(exporter, importer)

    exporter.do("drop")
    settles_at(scene, MIB)
    importer.end()
    settles_at(scene, 0)

    assert [0, 0, 0] == codes


def test_another_tenants_memory_is_charged_to_its_importer_too(stage):
    """Between tenants each pays: the exporter's share is free for others when it ends, so its memory cannot pass on."""
    scene = stage()
    importer = Partner(scene, scene.tenant("b", 200, memory_mib=500), "import", "importer")
    exporter = Partner(scene, scene.tenant("a", 200, memory_mib=500), "export", "exporter")

    hand_over(exporter, importer)
    settles_at(scene, MIB, "a")
    settles_at(scene, MIB, "b")
    exporter.end()
    settles_at(scene, 0, "a")

    assert MIB == charged(scene, "b")


@pytest.mark.parametrize("lost", [False, True])
def test_the_memory_of_a_stopped_process_is_not_given_again_by_a_new_arbiter(stage, lost):
    """What the arbiter before wrote down stays charged, and where that is lost, what NVML shows of the process."""
    scene = stage()
    scene.options += ("--libnvml", str(scene.machine.libnvml))
    folder = scene.tenant("a", 500, memory_mib=2 * MIB)
    holder = Partner(scene, folder, "export", "holder")
    stop(holder.client.process.pid)

    scene.kill()
    if lost:
        (scene.directory / "run" / "leases").unlink()
    scene.start()
    other = Partner(scene, folder, "import", "other")
    refused = other.do(f"create {MIB + 2}")
    holder.client.process.send_signal(signal.SIGCONT)
    again = other.do(f"create {MIB + 2}")
    holder.end()
    eventually(lambda: scene.seen("a").processes == 1, "only one is left")

    assert [2, 2] == [refused, again]
    assert 0 == other.do("create 100")


def test_a_new_arbiter_charges_every_holder(stage):
    """After a restart each holder is charged what it holds, so nothing is held uncharged, and it comes back whole."""
    scene = stage()
    folder = scene.tenant("a", 500, memory_mib=800)
    importer = Partner(scene, folder, "import", "importer")
    exporter = Partner(scene, folder, "export", "exporter")
    hand_over(exporter, importer)
    settles_at(scene, MIB)

    scene.kill()
    scene.start()
    settles_at(scene, 2 * MIB)
    exporter.do("drop")
    importer.do("drop")
    settles_at(scene, 0)
