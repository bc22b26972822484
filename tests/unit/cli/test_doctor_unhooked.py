"""What the doctor says of programs that are not held as they should be."""

import pytest

from aliquot.arbiter.records import GpuStatus, Status
from aliquot.cli.doctor import unhooked
from aliquot.status.tenants import TenantStatus


def status_with(**facts) -> Status:
    """An arbiter with one tenant of which these facts are known."""
    tenant = TenantStatus("a", 500, 1000, 0.1, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 1, waiting=False, **facts)
    return Status(0, 1, 1, 1, "", 1, "", "", 1, [GpuStatus("GPU-1", "", 0.0, [tenant])])


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"unrouted": 2}, "a: 2 driver functions not intercepted"),
        ({"ungated_ms": 1500.0}, "a: 1.5 s without an arbiter"),
    ],
)
def test_a_program_that_goes_past_the_hook_is_a_fault(facts, found):
    """Functions that were handed out unhooked, and launches without any arbiter, are told with the tenant."""
    assert [("fault", found)] == [(finding.state, finding.found) for finding in unhooked(status_with(**facts))]


def test_programs_that_are_held_are_not_mentioned():
    """Without such reports the doctor has nothing to say."""
    assert unhooked(status_with()) == []
