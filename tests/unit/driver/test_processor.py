"""Machines that are not x86-64 are told so: at the build, by doctor, and where a native part is asked for."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.doctor import examine
from aliquot.driver.native import HOOK, NativePartMissing, native_part

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def other_machine(monkeypatch, tmp_path):
    """A machine of another processor, where nothing native was built."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr("aliquot.driver.native.files", lambda _package: tmp_path)
    monkeypatch.delenv("ALIQUOT_NATIVE_DIR", raising=False)


def test_doctor_says_that_the_processor_is_another(other_machine):
    """On an aarch64 machine doctor's first finding is a fault that names it and says what works."""
    first = examine()[0]

    assert (first.what, first.state) == ("processor", "fault")
    assert "this machine is aarch64" in first.found
    assert "x86-64 machine" in first.way_out


def test_a_native_part_is_missing_for_that_reason(other_machine):
    """Who asks for the hook there is not sent to build it again."""
    with pytest.raises(NativePartMissing, match=r"written for x86-64, this machine is aarch64") as missing:
        native_part(HOOK)
    assert "make setup" not in str(missing.value)


def test_the_build_says_what_it_leaves_out(tmp_path):
    """Configured for another processor, CMake warns and builds neither hook nor emulated driver."""
    cmake = Path(sys.executable).with_name("cmake")
    if not cmake.exists():
        pytest.skip("cmake is not installed here")
    done = subprocess.run(
        [cmake, "-S", ROOT, "-B", tmp_path, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"],
        capture_output=True,
        text=True,
        check=False,
    )
    targets = subprocess.run([cmake, "--build", tmp_path, "--target", "help"], capture_output=True, text=True).stdout

    assert done.returncode == 0, done.stderr
    assert "written for x86-64" in " ".join(done.stderr.split())
    assert "aliquot_kernels" in targets
    assert "aliquot_hook" not in targets
