"""Memory that a tenant's processes have leased and do not use is there for its other processes."""

from kit.driver_calls import MIB

LIMIT_MIB = 3000


def test_idle_processes_keep_nothing_from_a_busy_one(stage):
    """Beside six processes that hold 2 MiB each, a seventh gets all but one step of what is left of the limit."""
    scene = stage()
    folder = scene.tenant("t", 500, memory_mib=LIMIT_MIB)
    for _ in range(6):
        scene.driver(folder).new("cuMemAlloc_v2", 2 * MIB)
    taker, taken_mib = scene.driver(folder), 0
    while taker.allocate("linear", 16 * MIB).code == 0:
        taken_mib += 16
    left_mib = LIMIT_MIB - 6 * 2 - scene.seen("t").memory_context_mib

    assert left_mib - 16 <= taken_mib <= left_mib
