"""All processes of a machine share one clock and one ledger per GPU."""

import pytest
from kit.driver_calls import OUT_OF_MEMORY

LOOP = """
open_gpu()
k = Spinner()
answer("ready"); sys.stdin.readline()
begin, spent, best = time.monotonic(), 0, 0
while time.monotonic() - begin < 2:
    began = time.monotonic()
    for _ in range({depth}): k.launch({ns})
    k.sync()
    spent += {depth} * {ns}
    best = max(best, {depth} * {ns} / 1e9 / (time.monotonic() - began))
answer([spent / 1e9 / (time.monotonic() - begin), best])
"""


def race(clients, *loads):
    children = [clients.start(LOOP.format(depth=depth, ns=ns)) for depth, ns in loads]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    return [clients.answer(child) for child in children]


@pytest.mark.real_time
def test_one_process_gets_the_whole_gpu(clients):
    """Back-to-back kernels of one process use all of the GPU's time, where nothing delays the program between two."""
    ((_, best),) = race(clients(), (200, 1_000_000))

    assert best > 0.985


@pytest.mark.real_time
def test_two_processes_alternate_evenly(clients):
    """Two processes with kernels of 1 ms and 30 ms each get about half, and together not more than one GPU."""
    (short, _), (long, _) = race(clients(), (60, 1_000_000), (2, 30_000_000))

    assert abs(short / (short + long) - 0.5) < 0.05
    assert 0.8 < short + long < 1.03


def test_memory_of_a_killed_process_comes_back(clients):
    """kill -9 of a process returns its allocations and its context to the device."""
    machine = clients()
    holder, other = machine.gpu(), machine.gpu()
    holder.new("cuMemAlloc_v2", 8 << 30)
    held, _ = other.memory_info()

    holder.kill()

    assert other.memory_info()[0] - held >> 20 == (8 << 10) + machine.machine.profile.context_mib


def test_killed_owner_does_not_keep_the_gpu(clients):
    """When a process dies inside a long kernel the others go on."""
    machine = clients()
    hog, other = machine.gpu(), machine.gpu()
    hog.launch(hog.function(), 100_000_000_000)
    hog.kill()

    assert 0 == other.launch(other.function(), 1000, other.stream) == other.sync()


def test_device_memory_is_one_sum_over_processes(clients):
    """An allocation that fits alone fails when another process holds the memory."""
    machine = clients("v100")
    machine.gpu().new("cuMemAlloc_v2", 10 << 30)

    assert OUT_OF_MEMORY == machine.gpu().allocate("linear", 8 << 30).code
