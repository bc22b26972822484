"""What a new arbiter knows of the memory that processes held under the one before."""

import errno
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from aliquot.arbiter import leases as leases_module
from aliquot.arbiter.grants import MemoryLease, Process
from aliquot.arbiter.leases import Leases
from aliquot.arbiter.linux import start_ticks
from aliquot.arbiter.measure import correct_absent
from aliquot.arbiter.records import TenantGpu, TenantRecord
from aliquot.arbiter.server import Server, Settings

MIB = 1 << 20
SIZE_BYTES = 4096
GPU = f"GPU-{uuid.uuid4()}"


class Scene:
    """A file of leases; `restart` is a new arbiter over it, which has the one tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers: list[Server] = []
        self.restart()

    def restart(self) -> None:
        self.leases = Leases(self.folder / "leases", SIZE_BYTES)
        server = Server(Settings(self.folder), self.leases)
        self.servers.append(server)
        gpu = TenantGpu(GPU, 300, 1000, 1000)
        server.add_tenant(TenantRecord("a", str(self.folder / "a.sock"), [gpu]))
        self.grant = server.engine.tenants["a"].grants[0]
        server.restore_leases()

    def store(self, pid: int, mib: int) -> None:
        """The arbiter that runs has leased this to a process."""
        record = self.leases.take("a", self.grant.gpu.uuid_bytes(), pid)
        assert record is not None
        record.store(mib * MIB)

    @property
    def charged_mib(self) -> int:
        return self.grant.leased_bytes // MIB


@pytest.fixture
def scene(tmp_path):
    """An arbiter over an empty folder."""
    scene = Scene(tmp_path)
    yield scene
    for server in scene.servers:
        server.close()


@pytest.fixture
def process():
    """A process that lives until the test has ended."""
    child = subprocess.Popen(["sleep", "1000"])
    yield child.pid
    child.kill()
    child.wait()


def test_what_living_processes_hold_is_charged_after_a_restart(scene, process):
    """Each process is charged what it was leased last, however often the arbiter is replaced."""
    scene.store(process, 300)
    scene.store(os.getpid(), 20)
    charged = []
    for _ in range(3):
        scene.restart()
        charged.append(scene.charged_mib)

    assert [320, 320, 320] == charged


def test_a_process_that_has_ended_holds_nothing(scene):
    """A pid that no process has is not charged, and its record is free."""
    child = subprocess.Popen(["true"])
    scene.store(child.pid, 300)
    child.wait()
    scene.restart()

    assert (0, []) == (scene.charged_mib, Leases(scene.folder / "leases", SIZE_BYTES).earlier)


def test_a_reused_pid_is_another_process(scene, process, monkeypatch):
    """A process with the pid of one that has ended, and that started at another time, is not charged for it."""
    monkeypatch.setattr(leases_module, "start_ticks", lambda pid: start_ticks(pid) - 1)
    scene.store(process, 300)
    scene.restart()

    assert 0 == scene.charged_mib


def test_records_of_an_earlier_boot_of_the_machine_mean_nothing(scene, process, monkeypatch):
    """After a reboot a process with the same pid and start time is another one."""
    scene.store(process, 300)
    monkeypatch.setattr(leases_module, "machine_boot", lambda: "another")
    scene.restart()

    assert 0 == scene.charged_mib


def test_a_process_whose_record_was_left_is_released_when_it_ends(scene):
    """The arbiter waits for the end of every process that it charges and that does not report."""
    child = subprocess.Popen(["sleep", "1000"])
    scene.store(child.pid, 300)
    scene.restart()
    child.kill()
    child.wait()
    server = scene.servers[-1]
    for key, _ in server.selector.select(10):
        key.data()

    assert (0, {}) == (scene.charged_mib, server.engine.tenants["a"].absent)


@pytest.mark.parametrize(
    ("damage", "held_mib"),
    [("none", 320), ("header", 320), ("record", 300), ("cut", 0), ("removed", 0), ("full", 320)],
)
def test_a_file_that_may_have_lost_records_is_not_trusted_alone(scene, process, damage, held_mib):
    """Whatever was lost of the file, what is left of it is charged, and it does not count as whole."""
    path = scene.folder / "leases"
    scene.store(process, 300)
    scene.store(os.getpid(), 20)
    while damage == "full" and scene.leases.take("a", scene.grant.gpu.uuid_bytes(), process):
        pass
    scene.leases.close()
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[3] ^= 1
    if damage == "record":
        data[2 * 64 + 40] ^= 1
    path.unlink() if damage == "removed" else path.write_bytes(data[: 64 if damage == "cut" else None])
    found = Leases(path, SIZE_BYTES)

    assert (damage == "none") is found.whole
    assert held_mib == sum(earlier.held_bytes // MIB for earlier in found.earlier)


def test_a_full_disk_costs_the_memory_of_leases_and_no_lease(tmp_path, monkeypatch):
    """Where the file cannot be had, leases are kept in memory, and the reason is known."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    leases = Leases(tmp_path / "leases", SIZE_BYTES)

    assert "No space left" in leases.fault
    assert leases.take("a", bytes(16), os.getpid()) is not None


@pytest.mark.parametrize(
    ("used", "charged_mib"),
    [({}, 300), ({"it": 300, "other": 9}, 300), ({"it": 500, "other": 9}, 500), ({"other": 9}, 0)],
    ids=["NVML tells nothing", "as leased", "more than leased", "not on the GPU"],
)
def test_nvml_corrects_what_an_absent_process_is_charged(scene, process, used, charged_mib):
    """A process that is not connected is charged what NVML shows, if that is more, and nothing if it holds nothing."""
    scene.store(process, 300)
    scene.restart()
    other = Process(None, None, 1, -1, 0.0, 0, leases={0: MemoryLease(contexts=1)})
    scene.grant.attached.add(other)
    for _ in range(3):
        correct_absent(scene.grant, {(GPU, process if who == "it" else 1): size * MIB for who, size in used.items()})

    assert charged_mib == scene.charged_mib
