"""The engine's tenants and the node's, whatever fails at whichever step: nothing is left, no tenant is there twice."""

import contextlib

import pytest
from hypothesis import HealthCheck, settings
from tenancy_faults import EngineFaults, Faults, NodeFaults
from tenants import AT_ARBITER, ON_DISK

STEADY = settings(
    max_examples=100, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
SHARE = (0, 700, 9000)
ONE_FAULT = [([""] * calls + [fault], []) for calls in range(4) for fault in AT_ARBITER] + [([], [f]) for f in ON_DISK]


class TestEngine(EngineFaults.TestCase):
    """An engine holds shares for those that are here, whatever fails when they come or go."""

    settings = STEADY


class TestNode(NodeFaults.TestCase):
    """A node holds shares for the containers that are here, whatever fails when they start or end."""

    settings = STEADY


def go_on(machine: Faults) -> None:
    """Start the program again if it has crashed, and bring everything in order."""
    if machine.arbiter.crashed:
        machine.restart()
    machine.the_ledger_has_who_is_here()
    machine.heal()


def through_its_life(machine: Faults, asked: list[str], made: list[str], *, forget: bool) -> None:
    """A tenant comes, is registered again and goes, each with these faults."""
    with contextlib.ExitStack() as failing:
        failing.push(machine.stack)
        machine.admit(name="a", share=SHARE, asked=asked, made=made)
        go_on(machine)
        machine.admit(name="a", share=SHARE, asked=[], made=[])
        machine.admit(name="b", share=(1, 500, 9000), asked=[], made=[])
        assert {"a", "b"} == set(machine.oracle.here)
        machine.restart_arbiter(forget=forget)
        machine.reconcile(asked=asked)
        go_on(machine)
        machine.remove(name="a", asked=asked)
        if not machine.arbiter.crashed:
            machine.admit(name="a", share=SHARE, asked=[], made=[])
        go_on(machine)
        failing.pop_all()
    machine.teardown()


@pytest.mark.parametrize("program", [EngineFaults, NodeFaults])
@pytest.mark.parametrize("forget", [False, True])
def test_a_fault_at_any_step_leaves_nothing_and_the_next_try_succeeds(program: type[Faults], forget: bool):
    """At each call of the arbiter and at each part of a folder: while a tenant comes, while it goes, and while tenants
    are registered with a new arbiter."""
    for asked, made in ONE_FAULT:
        machine = program()
        through_its_life(machine, asked, made, forget=forget)
