"""A node's allocations, whenever the agent is killed and whatever kubelet forgets: none is lost, none given twice."""

import pytest
from allocation_faults import NO_CRASH, AllocationFaults
from hypothesis import HealthCheck, settings


class TestAllocations(AllocationFaults.TestCase):
    """What runs on a node keeps its share, alone, until it has ended, whenever the agent is killed."""

    settings = settings(
        max_examples=60,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("forced", [False, True], ids=["lives", "deleted by force"])
def test_what_runs_has_its_share_again_before_what_never_started(forced: bool):
    """Kubelet has forgotten a container that runs and given its ids again; the next agent knows whose share it is."""
    machine = AllocationFaults()
    machine.admit(name="a", share=(1, 500, 9000), steps=NO_CRASH)
    machine.start_now("a")
    assert machine.pods["a"].runs
    machine.kubelet_forgets()
    machine.admit(name="b", share=(1, 1000, 1000), steps=NO_CRASH)
    if forced:
        machine.delete_now("a", forced=True)

    machine.restart_agent(listed=True)

    machine.nothing_is_removed_that_runs()
    machine.what_runs_is_reserved()
    machine.teardown()
