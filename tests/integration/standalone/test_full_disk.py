"""A disk without room under the engine: what cannot be done waits with the reason, all else runs on."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rights import rooms
from waiting import eventually

from aliquot.arbiter.client import ArbiterClient, ArbiterError, TenantRecord

from .stage import FULL, Aliquot, Cluster, Disk, engine_of, mounted, sharepod

pytestmark = rooms

PRINTS = "while true; do printf 'line %05000d\\n' 0; echo >> {counted}; sleep 0.02; done"
"""Lines longer than a page, which a file on a full disk may have left in its last block."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 16 MiB."""
    with mounted(tmp_path / "d", "16m") as disk:
        yield disk


@pytest.fixture
def up(disk: Disk, tmp_path: Path) -> Iterator[Cluster]:
    """An engine with all its files on that disk, and one SharePod that prints without end."""
    command = Aliquot(disk.folder)
    with engine_of(command, "v100", "--no-web", "--state-dir", str(disk.folder / "state")) as command:
        cluster = Cluster(command, tmp_path)
        cluster.apply(sharepod("early", PRINTS.format(counted=tmp_path / "counted")))
        eventually(lambda: "line" in command("logs", "early").stdout, "it has printed")
        yield cluster


def running(up: Cluster, name: str) -> int:
    """The process of a SharePod that runs."""
    facts = up.pod(name)
    assert ("Running", 0) == (facts["phase"], facts["restarts"])
    return facts["containers"][0]["pid"]


def test_a_sharepod_without_room_on_the_disk_waits_and_the_others_run_on(up: Cluster, disk: Disk):
    """A SharePod whose files cannot be written waits with the reason and starts when there is room; others run on."""
    early = running(up, "early")
    disk.fill()
    answer = up.apply(sharepod("late", PRINTS.format(counted="/dev/null")))
    assert (0, "") == (answer.returncode, answer.stderr)
    assert "created, waits: " in answer.stdout and FULL in answer.stdout
    assert "Pending" == up.pod("late")["phase"]
    disk.free()
    up.wait_phase("late", "Running")
    assert early == running(up, "early")


def test_a_run_on_a_full_disk_ends_with_one_sentence_and_takes_no_share(up: Cluster, disk: Disk):
    """A run that finds no room on the disk says so in one sentence and leaves its share free."""
    disk.fill()
    answer = up.command("run", "--gpu-request", "0.8", "--", "true")
    assert (1, 1) == (answer.returncode, answer.stderr.count("\n")), answer.stderr
    assert FULL in answer.stderr
    disk.free()
    assert 0 == up.command("run", "--gpu-request", "0.8", "--", "true").returncode


def test_a_program_runs_on_when_its_output_cannot_be_kept(up: Cluster, disk: Disk, tmp_path: Path):
    """A log on a full disk loses lines, says how much when it can be written again, and stops no program."""
    early, counted = running(up, "early"), tmp_path / "counted"

    def log() -> str:
        """After more was printed on a full disk, and there was room again for a moment."""
        disk.fill()
        before = counted.stat().st_size
        eventually(lambda: counted.stat().st_size >= before + 3, "it prints")
        disk.free()
        return up.command("logs", "early").stdout

    eventually(lambda: f"not kept: {FULL}" in log(), "the log says what is missing")
    assert early == running(up, "early")


def test_an_arbiter_that_dies_on_a_full_disk_comes_back(up: Cluster, disk: Disk):
    """An arbiter killed on a full disk is there again once there is room, with its tenants."""
    early = running(up, "early")
    disk.fill()
    for pid in _arbiters(disk.folder):
        os.kill(pid, signal.SIGKILL)
    assert early == running(up, "early")
    disk.free()
    eventually(lambda: "default/early" in up.command("top", "--once").stdout, "the arbiter knows its tenants")
    assert early == running(up, "early")


def test_a_tenant_that_the_arbiter_knows_can_be_introduced_again_on_a_full_disk(up: Cluster, disk: Disk):
    """Telling the arbiter again of a tenant writes nothing, so an agent that does so on a full disk loses none."""
    disk.fill()
    (record,) = msgspec.json.decode((disk.folder / "tenants.json").read_bytes(), type=list[TenantRecord])
    with ArbiterClient(disk.folder) as client:
        client.add_tenant(record)
        assert ["default/early"] == [tenant.name for gpu in client.status().gpus for tenant in gpu.tenants]
        other = msgspec.structs.replace(record, name="other", socket=str(disk.folder / "other"))
        with pytest.raises(ArbiterError, match=FULL):
            client.add_tenant(other)


def _arbiters(runtime: Path) -> list[int]:
    found = subprocess.run(["pgrep", "-f", f"aliquot.arbiter --runtime-dir {runtime}"], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def test_an_engine_without_room_on_the_disk_does_not_start(disk: Disk):
    """An engine that finds no room for its files says so in one sentence."""
    disk.fill()
    answer = Aliquot(disk.folder)("up", "--emulate", "v100", "--no-web")
    assert (1, 1) == (answer.returncode, answer.stderr.count("\n")), answer.stderr
    assert FULL in answer.stderr


@pytest.mark.parametrize("size", ["256k", "512k", "700k"])
def test_a_disk_that_is_too_small_is_named(tmp_path: Path, size: str):
    """Whichever file does not fit, the sentence says that the disk is full and names a file or folder on it."""
    with mounted(tmp_path / "d", size) as disk:
        answer = Aliquot(disk.folder)("up", "--emulate", "v100", "--no-web")
    assert (1, 1) == (answer.returncode, answer.stderr.count("\n")), answer.stderr
    assert str(disk.folder) in answer.stderr and FULL in answer.stderr


@pytest.mark.parametrize("size", ["64k", "256k", "512k", "700k"])
def test_a_run_without_room_for_its_engine_ends_with_one_sentence(tmp_path: Path, size: str):
    """A run that has to start an engine on a disk that is too small names a file or folder there, and leaves no engine;
    when there is room it runs."""
    with mounted(tmp_path / "d", size) as disk:
        command = Aliquot(disk.folder)
        answer = command.run("--", "true")
        assert (1, 1) == (answer.returncode, answer.stderr.count("\n")), answer.stderr
        assert str(disk.folder) in answer.stderr and FULL in answer.stderr
        assert not command.engine_is_up and not _arbiters(disk.folder)
        subprocess.run(["mount", "-o", "remount,size=16m", disk.folder], check=True)
        assert 0 == command.run("--", "true").returncode
        command.wait_gone()
