"""An emulated machine belongs to whoever prepared it, and is used by all."""

import ctypes
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest

from aliquot.driver.emulation import prepare

NOBODY = 65534


def init_as(uid, libcuda):
    os.setgid(uid)
    os.setuid(uid)
    os._exit(ctypes.CDLL(str(libcuda)).cuInit(0) & 0x7F)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_first_program_of_a_machine_may_be_of_another_user():
    """A pod that does not run as root calls cuInit with success on a machine that no program has used yet."""
    with tempfile.TemporaryDirectory(prefix="aq-") as folder:
        Path(folder).chmod(0o755)
        machine = prepare(Path(folder) / "emulated", "v100")
        child = multiprocessing.get_context("fork").Process(target=init_as, args=(NOBODY, machine.libcuda))
        child.start()
        child.join()

    assert 0 == child.exitcode
