"""Tenants come and go by the thousand, as CUDA programs under the hook: the arbiter ends where it began."""

import subprocess
from pathlib import Path

import pytest
from stage import Stage
from waiting import eventually

from aliquot.arbiter.client import TenantGpu, TenantRecord

BATCH = 50


@pytest.fixture(scope="module")
def visit(built) -> Path:
    """The compiled visitor."""
    return built("faults/programs/visit.c")


def come_and_go(scene: Stage, visit: Path, libraries: list[Path], first: int, count: int) -> None:
    """`count` new tenants, a batch at a time: known, visited by a program, forgotten."""
    for at in range(first, first + count, len(libraries)):
        names = [f"t{at + i}" for i in range(len(libraries))]
        for name, library in zip(names, libraries, strict=True):
            socket = library.parents[1].with_suffix(".sock")
            gpus = [TenantGpu(uuid, 10, 1000, 64) for uuid in scene.machine.uuids]
            scene.admin.add_tenant(TenantRecord(name, str(socket), gpus))
        done = subprocess.run([visit, "4", *libraries], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        for name in names:
            scene.admin.remove_tenant(name)


def left(scene: Stage) -> dict[str, int]:
    """What the arbiter holds: descriptors, threads, grant pages, files, memory in MiB."""
    proc = Path(f"/proc/{scene.child.pid}")
    eventually(lambda: scene.admin.status().connections == 0, "every connection is gone")
    return {
        "descriptors": scene.descriptors(),
        "threads": len(list((proc / "task").iterdir())),
        "pages": scene.mappings(),
        "files": len(list((scene.directory / "run").iterdir())),
        "sockets": len(list(scene.directory.glob("*.sock"))),
    }


def resident_mib(scene: Stage) -> int:
    """The arbiter's resident memory."""
    return int(Path(f"/proc/{scene.child.pid}/statm").read_text().split()[1]) * 4096 >> 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_left_of_ten_thousand_tenants_that_came_and_went(stage, visit):
    """After 10,000 programs, a third of which just died, no descriptor, thread, page, file or memory is left."""
    scene = stage()
    libraries = [scene.tenant(f"f{i}", 10, memory_mib=64).lib / "libcuda.so.1" for i in range(BATCH)]
    for i in range(BATCH):
        scene.admin.remove_tenant(f"f{i}")
    come_and_go(scene, visit, libraries, 0, BATCH)
    before, memory_mib = left(scene), resident_mib(scene)

    come_and_go(scene, visit, libraries, BATCH, 10_000)

    assert before["pages"] == before["sockets"] == 0
    assert left(scene) == before
    assert resident_mib(scene) <= memory_mib + 8
    assert (scene.directory / "run" / "journal").stat().st_size < 2 << 20
