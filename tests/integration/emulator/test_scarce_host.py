"""The emulated driver on a machine that has no memory, thread or descriptor left for it."""

import os
import subprocess
from pathlib import Path

import pytest
from kit.compiling import compile_c

GIB = 1 << 30
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def scarce(tmp_path_factory) -> Path:
    """The program, built; see its head."""
    return compile_c(tmp_path_factory.mktemp("scarce") / "scarce", "-rdynamic", Path(__file__).with_name("scarce.c"))


def test_every_request_of_the_driver_may_fail(clients, scarce):
    """A call for which the system has nothing left answers an error or does without, and works again afterwards."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(clients("a100").machine.directory)}

    done = subprocess.run([scarce, "every"], env=env, capture_output=True, text=True, timeout=120, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert int(done.stdout) > 60


@pytest.mark.parametrize("limit_gib", [1, 2, 4, 8, 12, 16, 20])
def test_a_limit_of_the_address_space_is_out_of_memory(clients, scarce, limit_gib):
    """Where RLIMIT_AS leaves no room for what the driver reserves, the call answers CUDA_ERROR_OUT_OF_MEMORY."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(clients("a100").machine.directory)}
    limit = limit_gib * GIB

    done = subprocess.run(
        ["prlimit", f"--as={limit}", scarce, "once"], env=env, capture_output=True, text=True, timeout=60, check=False
    )

    assert 0 == done.returncode, done.stderr
    step, answer = done.stdout.split()
    assert step == "all" or int(answer) == OUT_OF_MEMORY, done.stdout
    assert limit_gib > 1 or step == "retain"
