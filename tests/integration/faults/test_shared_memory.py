"""Memory that one process exports and others import, by the ledger of the arbiter."""

import signal

import pytest
from kit.driver_calls import AS_DESCRIPTOR, MIB, OUT_OF_MEMORY
from stage import Stage
from waiting import eventually, stop

SIZE_MIB = 300


class Partner:
    """One process that makes memory which it can show, or maps what another has made."""

    def __init__(self, scene: Stage, folder) -> None:
        self.gpu = scene.driver(folder)
        self.handle = self.address = 0

    def make(self, mib: int = SIZE_MIB) -> int:
        """Physical memory, which it keeps."""
        code, (handle,) = self.gpu.create(mib * MIB, handles=AS_DESCRIPTOR)
        self.handle = self.handle or handle
        return code

    def take_from(self, exporter: "Partner") -> list[int]:
        """Import the other's memory and map it; the codes of the calls."""
        code, (self.handle,) = self.gpu.imported(exporter.gpu, exporter.gpu.export(exporter.handle))
        self.address = self.gpu.new("cuMemAddressReserve", SIZE_MIB * MIB, 0, 0, 0)
        return [code, self.gpu.code("cuMemMap", self.address, SIZE_MIB * MIB, 0, self.handle, 0)]

    def drop(self) -> None:
        """Unmap and release."""
        if self.address:
            self.gpu.ok("cuMemUnmap", self.address, SIZE_MIB * MIB)
        self.gpu.ok("cuMemRelease", self.handle)


@pytest.fixture
def pair(stage):
    """A stage with a tenant, and two processes of it: the one with the memory and one that may import it."""

    def make(memory_mib: int = 500):
        scene = stage()
        folder = scene.tenant("a", 500, memory_mib=memory_mib)
        exporter, importer = Partner(scene, folder), Partner(scene, folder)
        assert exporter.make() == 0
        return scene, exporter, importer

    return make


def charged(scene: Stage, name: str = "a") -> int:
    """MiB without contexts and without what is leased for small things to come."""
    seen = scene.seen(name)
    return seen.memory_used_mib - seen.memory_context_mib


def settles_at(scene: Stage, mib: int, name: str = "a") -> None:
    """Slabs go back within a second or two."""
    eventually(lambda: charged(scene, name) == mib, f"{name} is charged {mib} MiB, not {charged(scene, name)}", 10)


def test_memory_that_processes_of_a_tenant_share_is_charged_once_until_the_last_lets_it_go(pair):
    """An importer pays nothing while the memory is charged, and it stays charged when the exporter ends before it."""
    scene, exporter, importer = pair()

    codes = importer.take_from(exporter)
    settles_at(scene, SIZE_MIB)
    exporter.gpu.kill()
    settles_at(scene, SIZE_MIB)
    refused = importer.make()
    importer.drop()
    settles_at(scene, 0)

    assert ([0, 0], OUT_OF_MEMORY) == (codes, refused)
    assert 0 == importer.make()


def test_the_exporter_may_let_go_first_or_last_and_import_twice(pair):
    """Handles that are released and memory that is exported again change nothing while one process holds it."""
    scene, exporter, importer = pair()
    importer.take_from(exporter)
    importer.drop()
    settles_at(scene, SIZE_MIB)
    codes = importer.take_from(exporter)

    exporter.drop()
    settles_at(scene, SIZE_MIB)
    importer.gpu.kill()
    settles_at(scene, 0)

    assert [0, 0] == codes


def test_another_tenants_memory_is_charged_to_its_importer_too(stage):
    """Between tenants each pays: the exporter's share is free for others when it ends, so its memory cannot pass on."""
    scene = stage()
    importer, exporter = (Partner(scene, scene.tenant(name, 200, memory_mib=500)) for name in "ba")
    assert exporter.make() == 0

    importer.take_from(exporter)
    settles_at(scene, SIZE_MIB, "a")
    settles_at(scene, SIZE_MIB, "b")
    exporter.gpu.kill()
    settles_at(scene, 0, "a")

    assert SIZE_MIB == charged(scene, "b")


@pytest.mark.parametrize("lost", [False, True])
def test_the_memory_of_a_stopped_process_is_not_given_again_by_a_new_arbiter(stage, lost):
    """What the arbiter before wrote down stays charged, and where that is lost, what NVML shows of the process."""
    scene = stage()
    scene.options += ("--libnvml", str(scene.machine.libnvml))
    folder = scene.tenant("a", 500, memory_mib=2 * SIZE_MIB)
    holder = Partner(scene, folder)
    assert holder.make() == 0
    stop(holder.gpu.process.pid)

    scene.kill()
    if lost:
        (scene.directory / "run" / "leases").unlink()
    scene.start()
    other = Partner(scene, folder)
    refused = other.make(SIZE_MIB + 2)
    holder.gpu.process.send_signal(signal.SIGCONT)
    again = other.make(SIZE_MIB + 2)
    holder.gpu.kill()
    eventually(lambda: scene.seen("a").processes == 1, "only one is left")

    assert [OUT_OF_MEMORY] * 2 == [refused, again]
    assert 0 == other.make(100)


def test_a_new_arbiter_charges_every_holder(pair):
    """After a restart each holder is charged what it holds, so nothing is held uncharged, and it comes back whole."""
    scene, exporter, importer = pair(800)
    importer.take_from(exporter)
    settles_at(scene, SIZE_MIB)

    scene.kill()
    scene.start()
    settles_at(scene, 2 * SIZE_MIB)
    exporter.drop()
    importer.drop()
    settles_at(scene, 0)
