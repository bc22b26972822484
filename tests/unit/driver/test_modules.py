"""Kernel modules and device nodes, made by NVIDIA's own program where it is installed."""

import os
from pathlib import Path

import pytest

from aliquot.driver import modules

MODPROBE = """#!/bin/sh
echo "$@" >> {log}
case "$1" in
-u) touch {dev}/nvidiactl {dev}/nvidia-uvm {dev}/nvidia0 ;;
-c=*) touch {dev}/nvidia${{1#-c=}} ;;
esac
"""


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """A root's `dev` without any node."""
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


@pytest.fixture
def modprobe(tmp_path: Path, devices: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-modprobe that notes how it was called, installed in that root."""
    log, program = tmp_path / "log", tmp_path / "usr/bin/nvidia-modprobe"
    program.parent.mkdir(parents=True)
    program.write_text(MODPROBE.format(log=log, dev=devices))
    program.chmod(0o755)
    chroot = tmp_path / "bin/chroot"  # as chroot(8), without the rights that it needs
    chroot.parent.mkdir()
    chroot.write_text(f'#!/bin/sh\nshift; exec {program.parent}/"$@"\n')
    chroot.chmod(0o755)
    monkeypatch.setenv("PATH", f"{chroot.parent}:{os.environ['PATH']}")
    return log


def test_missing_nodes_are_made(devices: Path, modprobe: Path):
    """The driver's own first, with the modules, then those of GPUs by minor number; nothing is missing then."""
    assert [] == modules.make_nodes(devices, [0, 3])
    assert ["-u -c=0", "-c=3"] == [line for line in modprobe.read_text().splitlines() if line != "-c=0"]


def test_nothing_is_run_where_nothing_is_missing(devices: Path, modprobe: Path):
    """A node that is set up is left alone."""
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0"):
        (devices / name).touch()

    assert [] == modules.make_nodes(devices, [0])
    assert not modprobe.exists()


def test_what_cannot_be_made_is_named(devices: Path):
    """Without the program every missing node is told."""
    (devices / "nvidiactl").touch()

    assert [devices / "nvidia-uvm", devices / "nvidia2"] == modules.make_nodes(devices, [2])


def test_the_kernels_files_are_read(tmp_path: Path):
    """Loaded modules by name, and the minor number of each GPU by its PCI address."""
    (tmp_path / "modules").write_text(
        "nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\next4 3 1 - Live 0x0\n"
    )
    for address, minor in (("0000:07:00.0", 2), ("0000:0f:00.0", 0)):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(f"Model: \t A100\nDevice Minor: \t {minor}\n")

    assert {"nvidia", "nvidia_uvm"} == modules.loaded(tmp_path / "modules")
    assert frozenset() == modules.loaded(tmp_path / "none")
    assert {"0000:07:00.0": 2, "0000:0f:00.0": 0} == modules.minors(tmp_path)
