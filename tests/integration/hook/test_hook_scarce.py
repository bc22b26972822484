"""Programs under the hook on a machine that has no memory, thread or descriptor left."""

import pytest


@pytest.fixture(scope="module")
def scarce(built):
    """The program, built; see its head."""
    return built("emulator/scarce.c", "-rdynamic")


@pytest.mark.timeout(180)
def test_every_request_of_hook_and_driver_may_fail(tenant, scarce):
    """A call for which the system has nothing left answers an error or does without, and works again afterwards."""
    scene = tenant(auto_grant=True)
    program = scene.start([scarce, "every"])

    out, errors = program.process.communicate(timeout=170)

    assert 0 == program.process.returncode, out + errors
    assert int(out) > 80


@pytest.mark.parametrize("limit_gib", [1, 2, 4, 8, 12, 16, 20])
def test_a_limit_of_the_address_space_is_an_answer(tenant, scarce, limit_gib):
    """Where RLIMIT_AS leaves no room, a call answers an error code; the program neither crashes nor hangs."""
    scene = tenant(auto_grant=True)
    program = scene.start(["prlimit", f"--as={limit_gib << 30}", scarce, "once"])

    out, errors = program.process.communicate(timeout=60)

    assert 0 == program.process.returncode, out + errors
    assert limit_gib > 1 or out.startswith("retain")
