"""A process is read from /proc whatever it calls itself, and only the one that was meant is ended."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aliquot.driver.modules import MAX_FILES
from aliquot.node.processes import end_program, read_program


def process(folder: Path, *, name: str = "train", state: str = "S", opened: str = "/dev/null") -> Path:
    """A /proc with process 7 in it."""
    made = folder / "7"
    (made / "fd").mkdir(parents=True)
    (made / "stat").write_text(f"7 ({name}) {state} " + " ".join(str(field) for field in range(4, 53)))
    (made / "cgroup").write_text("0::/kubepods/pod1\n")
    (made / "fd" / "3").symlink_to(opened)
    return folder


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        ("/dev/nvidia0", True),
        ("/dev/nvidia-uvm", True),
        ("/run/aliquot/emulated/engine.shm", True),
        ("/dev/null", False),
    ],
)
def test_who_has_the_driver_open_is_seen_by_its_files(tmp_path: Path, opened: str, expected: bool):
    """A device of the driver, or the shared state of an emulated machine."""
    program = read_program(7, process(tmp_path, opened=opened))

    assert program is not None
    assert (expected, "0::/kubepods/pod1\n") == (program.drives, program.cgroup)


@pytest.mark.parametrize(("listed", "expected"), [("  1 nvidia-frontend", True), ("  1 mem\n195 nvidia", False)])
def test_a_device_of_the_driver_is_known_by_its_number_under_any_name(tmp_path: Path, listed: str, expected: bool):
    """A container that made itself the same device under another name has the driver open all the same."""
    proc = process(tmp_path, opened="/dev/null")
    (proc / "devices").write_text(f"Character devices:\n{listed}\n\nBlock devices:\n  1 nvidia\n")

    program = read_program(7, proc)

    assert program is not None
    assert expected == program.drives


def test_who_has_more_open_than_is_looked_through_is_not_vouched_for(tmp_path: Path):
    """Files in plenty hide no device."""
    proc = process(tmp_path)
    for number in range(4, MAX_FILES + 3):
        (proc / f"7/fd/{number}").symlink_to("/dev/null")
    before = read_program(7, proc)
    (proc / f"7/fd/{MAX_FILES + 3}").symlink_to("/dev/null")
    after = read_program(7, proc)

    assert before is not None
    assert after is not None
    assert (False, None) == (before.drives, after.drives)


def test_where_files_may_not_be_seen_nothing_is_claimed(tmp_path: Path):
    """As without CAP_SYS_PTRACE."""
    proc = process(tmp_path)
    (proc / "7/fd/3").unlink()
    (proc / "7/fd").rmdir()
    program = read_program(7, proc)

    assert program is not None
    assert program.drives is None


@pytest.mark.parametrize("name", ["a) R 1 2", "(sd-pam)", "x y", "ends\nhere\x1b[2J"])
def test_a_name_that_looks_like_something_else_changes_nothing(tmp_path: Path, name: str):
    """Brackets, fields and control signs in a name stay in the name, and a log stays in its line."""
    program = read_program(7, process(tmp_path, name=name))

    assert program is not None
    assert ("22", False, True) == (program.began, program.stopped, program.name.isprintable())


def test_only_processes_that_run_are_read(tmp_path: Path):
    """A zombie is gone, a stopped one is told as such, another number is nobody's."""
    assert read_program(7, process(tmp_path / "zombie", state="Z")) is None
    stopped = read_program(7, process(tmp_path / "stopped", state="T"))
    assert stopped is not None
    assert stopped.stopped
    assert read_program(8, tmp_path / "stopped") is None


def test_a_later_process_of_the_same_number_is_not_ended():
    """The moment at which it began has to be the same; a process that is gone is no error."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        meant = read_program(child.pid)
        assert meant is not None
        assert not end_program(replace(meant, began="1"))
        assert child.poll() is None
        assert end_program(meant)
        assert -9 == child.wait(10)
        assert not end_program(meant)
    finally:
        child.kill()
        child.communicate()
