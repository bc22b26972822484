"""Contexts that were made past the hook, as libraries of the driver's maker may do by its private tables."""

import uuid

import pytest
from kit.driver_calls import MIB, OUT_OF_MEMORY
from kit.driver_process import DriverProcess

PRIVATE_TABLE = uuid.UUID("0ca50b8c-1004-929a-89a7-d0df10e77286")


def opened(scene) -> tuple[DriverProcess, int]:
    """A process with a context that it made by the second function of the table."""
    driver = scene.driver()
    driver.ok("cuInit", 0)
    table = driver.new("cuGetExportTable", PRIVATE_TABLE.bytes)
    function = int.from_bytes(driver.read(table + 8, 8), "little")
    return driver, driver.new(f"{function:#x}", 0, 0)


@pytest.mark.parametrize("use", ["linear", "async"])
def test_the_first_allocation_in_a_context_made_past_the_hook_needs_room_for_both(tenant, use):
    """The context is reserved before the first allocation in it: one that does not fit beside it is out of memory."""
    scene = tenant(memory_mib=512, context_mib=300)
    driver, _ = opened(scene)

    assert (OUT_OF_MEMORY, 0) == (driver.allocate(use, 320 * MIB).code, driver.allocate(use, 64 * MIB).code)
    assert 1 == scene.arbiter.contexts[0]
    assert scene.device_bytes() <= 512 * MIB


def test_a_context_made_past_the_hook_is_no_reason_to_lend_memory_without_room_for_it(tenant):
    """Where the context itself does not fit, every allocation in it is out of memory."""
    driver, _ = opened(tenant(memory_mib=256, context_mib=300))

    assert OUT_OF_MEMORY == driver.allocate("linear", 2 * MIB).code


def test_a_context_made_past_the_hook_is_charged_until_it_is_destroyed(tenant):
    """It is charged once, beside the primary one, and given back with cuCtxDestroy."""
    scene = tenant(memory_mib=1024, context_mib=300)
    driver, context = opened(scene)
    used = [driver.allocate("linear", 2 * MIB).code for _ in range(2)]
    charged = [scene.arbiter.contexts[0]]
    driver.new("cuDevicePrimaryCtxRetain", 0)
    charged.append(scene.arbiter.contexts[0])
    driver.ok("cuCtxDestroy_v2", context)
    end = driver.counters()

    assert ([0, 0], [1, 2]) == (used, charged)
    assert (0, 0) == (end["reserved_bytes"], end["unbalanced"])
