"""A GPU of the machine has one engine: the lock on the driver's library."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.driver.gpu import Gpu
from aliquot.driver.gpu_lock import GpuLock, GpuTaken
from aliquot.driver.injection import CONF_MARK, CONF_SLOT_BYTES
from aliquot.model.ids import GpuUuid

GPUS = [Gpu(i, GpuUuid(f"GPU-68294de8-0000-0000-0000-00000000000{i}"), "H100", 81559) for i in range(3)]
OWNER = """
import sys, time
from pathlib import Path
from aliquot.driver.gpu import Gpu
from aliquot.driver.gpu_lock import GpuLock
lock = GpuLock(Path(sys.argv[1]), [Gpu(int(i), f"GPU-68294de8-0000-0000-0000-00000000000{i}", "H100", 81559)
                                   for i in sys.argv[2]])
print("has it", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A file that may only be read, as the driver's library."""
    file = tmp_path / "libnvidia-ml.so.1"
    file.write_bytes(b"\x7fELF")
    file.chmod(0o444)
    return file


class Owner:
    """Another process with the lock."""

    def __init__(self, library: Path, gpus: str) -> None:
        argv = [sys.executable, "-c", OWNER, str(library), gpus, "aliquot"]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert "has it\n" == self.process.stdout.readline()

    def __enter__(self) -> Owner:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_gpu_that_another_engine_shares_is_refused_with_its_owner(library: Path):
    """The sentence names the GPU, the process that shares it and the GPUs that are left."""
    with Owner(library, "1") as owner, pytest.raises(GpuTaken) as refused:
        GpuLock(library, GPUS)
    assert f"GPU 1 ({GPUS[1].uuid}) is shared by your own engine, pid {owner.process.pid} (since " in str(refused.value)
    assert "share the other GPUs: aliquot up --only-gpus 0,2" in str(refused.value)


def test_engines_with_different_gpus_do_not_meet(library: Path):
    """An engine takes the GPUs that another one leaves out."""
    with Owner(library, "1"):
        GpuLock(library, [GPUS[0], GPUS[2]]).close()


def test_the_kernel_releases_the_lock_of_an_engine_that_is_killed(library: Path):
    """After SIGKILL nothing of the owner is in the way."""
    with Owner(library, "012") as owner:
        owner.process.send_signal(signal.SIGKILL)
        owner.process.wait()
        GpuLock(library, GPUS).close()


def test_a_refused_engine_takes_nothing(library: Path):
    """All GPUs or none: what was free is free after a refusal."""
    first = GpuLock(library, GPUS[:1])
    with pytest.raises(GpuTaken):
        GpuLock(library, GPUS)
    GpuLock(library, GPUS[1:]).close()
    first.close()


def test_the_lock_outlasts_other_uses_of_the_library(library: Path):
    """The owner may open and close the library as often as it likes, as dlopen does."""
    lock = GpuLock(library, GPUS)
    library.read_bytes()
    with pytest.raises(GpuTaken):
        GpuLock(library, GPUS)
    lock.close()


def test_children_of_an_engine_do_not_keep_its_gpus(library: Path):
    """A program that outlives the engine does not hold the lock: the descriptor is closed on exec."""
    lock = GpuLock(library, GPUS)
    with subprocess.Popen(["sleep", "60"]) as child:
        lock.close()
        GpuLock(library, GPUS).close()
        child.kill()


def test_an_owner_of_another_process_namespace_is_not_named_wrongly(library: Path, monkeypatch: pytest.MonkeyPatch):
    """A process id that means nothing here, as a container's, names no process of this machine."""
    lock = GpuLock(library, GPUS)
    monkeypatch.setattr("aliquot.driver.gpu_lock._PROC", library.parent)
    with pytest.raises(GpuTaken, match="or by an engine in a container, or of an account whose processes"):
        GpuLock(library, GPUS)
    lock.close()


def test_an_account_is_told_by_name_who_shares_the_gpu(library: Path, monkeypatch: pytest.MonkeyPatch):
    """An engine of another account is named with the account."""
    owner_name = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    with Owner(library, "0") as owner, pytest.raises(GpuTaken) as refused:
        GpuLock(library, GPUS)
    assert f"is shared by {owner_name}'s engine, pid {owner.process.pid} (since " in str(refused.value)
    assert f"ask {owner_name} to end it (aliquot down)" in str(refused.value)


def test_a_lock_over_the_whole_file_leaves_no_gpu_to_two_engines(library: Path):
    """What somebody else locked in another way takes the GPUs from all, and hides no owner."""
    with library.open("rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        done = subprocess.run(
            [sys.executable, "-c", OWNER, str(library), "0"], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    assert "GpuTaken: GPU 0" in done.stderr


def test_a_program_of_an_engine_does_not_share_its_gpus_once_more(library: Path):
    """In a tenant's view our library stands for the driver's: it has no lock, and is refused with its engine."""
    library.chmod(0o644)
    slot = CONF_MARK + b"/run/aliquot/tenants/7/tenant.conf"
    library.write_bytes(b"\x7fELF" + slot.ljust(CONF_SLOT_BYTES, b"\0") + b"more")
    with pytest.raises(GpuTaken, match="a share that the engine at /run/aliquot gives to this program; use that one"):
        GpuLock(library, GPUS)
