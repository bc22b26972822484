"""The emulated driver on a machine that has no memory, thread or descriptor left for it."""

import pytest

GIB = 1 << 30
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def scarce(built):
    """The program, built; see its head."""
    return built("emulator/scarce.c", "-rdynamic")


def test_every_request_of_the_driver_may_fail(clients, scarce):
    """A call for which the system has nothing left answers an error or does without, and works again afterwards."""
    status, out, err = clients("a100").execute(scarce, "every", timeout_s=120)

    assert 0 == status, out + err
    assert int(out) > 60


@pytest.mark.parametrize("limit_gib", [1, 2, 4, 8, 12, 16, 20])
def test_a_limit_of_the_address_space_is_out_of_memory(clients, scarce, limit_gib):
    """Where RLIMIT_AS leaves no room for what the driver reserves, the call answers CUDA_ERROR_OUT_OF_MEMORY."""
    status, out, err = clients("a100").execute("prlimit", f"--as={limit_gib * GIB}", scarce, "once")

    assert 0 == status, err
    step, answer = out.split()
    assert step == "all" or int(answer) == OUT_OF_MEMORY, out
    assert limit_gib > 1 or step == "retain"
