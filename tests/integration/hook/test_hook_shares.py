"""Physical memory that leaves a process by descriptors: charged while one is open, and not a moment longer."""

import os

import pytest
from kit.driver_calls import AS_DESCRIPTOR, MIB
from kit.driver_process import DriverProcess


def shown(gpu: DriverProcess, size: int = 2 * MIB) -> tuple[int, int]:
    """A handle of physical memory and a descriptor of it."""
    handle = gpu.create(size, handles=AS_DESCRIPTOR).value
    return handle, gpu.export(handle)


def test_everything_that_is_closed_is_free_at_the_next_refusal(tenant):
    """However many pieces are exported, released and then closed, an allocation of the whole limit fits at once."""
    gpu = tenant(memory_mib=700).gpu()
    pieces = [shown(gpu) for _ in range(300)]
    for handle, _ in pieces:
        gpu.ok("cuMemRelease", handle)
    full = gpu.charged()
    for _, descriptor in pieces:
        gpu.posix("close", descriptor)

    assert (600 * MIB, 0) == (full, gpu.allocate("linear", 700 * MIB).code)
    assert 700 * MIB == gpu.charged()


@pytest.mark.parametrize("order", ["released first", "closed first", "mixed"])
def test_everything_that_is_closed_is_free_at_the_next_question(tenant, order):
    """After release and close, in any order, cuMemGetInfo shows all of the limit; what is open stays charged."""
    gpu = tenant(memory_mib=1024).gpu()
    pieces = [shown(gpu) for _ in range(200)]
    *others, (handle, descriptor) = pieces
    for step in (0, 1):
        for number, (other, its) in enumerate(others):
            closes = order == "closed first" or (order == "mixed" and number % 2 == 0)
            if closes == (step == 0):
                gpu.posix("close", its)
            else:
                gpu.ok("cuMemRelease", other)
    twin = gpu.posix("dup", descriptor)
    gpu.ok("cuMemRelease", handle)
    gpu.posix("close", descriptor)
    kept = gpu.memory_info()[0]
    gpu.posix("close", twin)

    assert (1022 * MIB, 1024 * MIB, 0) == (kept, gpu.memory_info()[0], gpu.charged())


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_without_proc_what_is_closed_is_free(tenant, tmp_path):
    """Where /proc is not to be seen, exported memory is charged while a descriptor is open, and free after that."""
    (tmp_path / "empty").mkdir()
    gpu = tenant(memory_mib=256).gpu()
    pieces = [shown(gpu) for _ in range(50)]
    gpu.posix("chroot", str(tmp_path / "empty"))
    twins = [gpu.posix("dup", descriptor) for _, descriptor in pieces]
    for handle, descriptor in pieces:
        gpu.ok("cuMemRelease", handle)
        gpu.posix("close", descriptor)
    kept = gpu.memory_info()[0]
    for twin in twins:
        gpu.posix("close", twin)

    assert (156 * MIB, 256 * MIB, 0) == (kept, gpu.memory_info()[0], gpu.charged())


def test_a_program_may_close_our_descriptors_and_use_their_numbers(tenant):
    """A program that closes all descriptors and opens files loses no more of these than it does to the driver alone."""
    scene = tenant(memory_mib=256)

    def lost(gpu: DriverProcess) -> int:
        gpu.open()
        handle, _ = shown(gpu, 64 * MIB)
        gpu.posix("closerange", 3, 256)
        opened = [gpu.posix("open", "/dev/null", os.O_RDONLY) for _ in range(64)]
        gpu.ok("cuMemRelease", handle)
        return len(set(opened) - {int(name) for name in gpu.posix("listdir", "/proc/self/fd")})

    assert lost(scene.driver()) == lost(scene.bare())
