"""The wheel for 64-bit ARM on an emulated processor: Python for ARM from Debian, packages for ARM from the registry."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import ROOT, build

sys.path.append(str(ROOT / "tests" / "e2e"))
from cluster import packages
from cluster.cache import Unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
PYTHON = "3.11"
OPENB = ROOT / "tests" / "data" / "openb"
PARTS = (
    "libc6", "libgcc-s1", "libstdc++6", f"python{PYTHON}-minimal", f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib", "libexpat1", "zlib1g", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libcrypt1",
)  # fmt: skip
KERNELS_LOAD = "from aliquot.driver.policies import use_kernels; use_kernels()"


class Arm:
    """A Python of another processor, and the wheel installed for it."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self._emulator = packages.unpacked("qemu", {"qemu-user-static": "bookworm"}, ["usr/bin/qemu-aarch64-static"])
        self._root = packages.unpacked(
            "arm", {f"{name}:arm64": "bookworm" for name in PARTS}, [f"usr/bin/python{PYTHON}"]
        )
        self._site = folder / "site"
        platforms = [part for glibc in ("17", "28") for part in ("--platform", f"manylinux_2_{glibc}_aarch64")]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(self._site)]
        only = ["--only-binary", ":all:", "--python-version", PYTHON, "--implementation", "cp", *platforms]
        subprocess.run([*command, *only, str(wheel)], check=True)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with these arguments."""
        python = self._root / "usr" / "bin" / f"python{PYTHON}"
        command = [str(self._emulator / "usr/bin/qemu-aarch64-static"), "-L", str(self._root), str(python), *words]
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self._site),
            "PYTHONHOME": str(self._root / "usr"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=600)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """With the wheel in it."""
    folder = tmp_path_factory.mktemp("arm")
    try:
        return Arm(build("aarch64", folder), folder)
    except Unavailable as error:
        pytest.skip(f"no ARM here: {error}")


def test_the_placement_kernels_load(arm: Arm):
    """The compiled inner loops of placement can be loaded."""
    done = arm("-c", KERNELS_LOAD)

    assert 0 == done.returncode, done.stderr


def test_the_published_benchmark_comes_out_the_same(arm: Arm, tmp_path: Path):
    """A run of the FGD benchmark has no difference from the published one in any column."""
    trace = (
        "--nodes",
        str(OPENB / "openb_node_list_gpu_node.csv"),
        "--trace",
        str(OPENB / "openb_pod_list_default.csv.gz"),
    )
    wanted = ("--policy", "fgd", "--expected", str(OPENB / "expected_results"), "--out", str(tmp_path), "--jobs", "1")
    done = arm("-m", "aliquot.cli", "sim", "openb", *trace, *wanted)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_what_is_not_there_says_why(arm: Arm):
    """Who asks for the hook, which this wheel does not have, is told that it is written for another processor."""
    done = arm("-c", "from aliquot.driver.native import HOOK, native_part; native_part(HOOK)")

    assert 1 == done.returncode
    assert "written for x86-64, this machine is aarch64" in done.stderr
