"""A driver that is replaced while containers run: who is shown which generation, and when."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from volume_scenes import install, library

from aliquot.driver.native import STANDS_FOR
from aliquot.driver.volume.source import find_source, loaded_version
from aliquot.driver.volume.volume import DriverVolume, VolumeError
from aliquot.node.driver import NodeDriver
from aliquot.node.settings import NodeSettings
from aliquot.node.status import NodeAdvertiser

OLD, NEW = "570.124.06", "575.57.08"


class Node:
    """A node with driver OLD; `module` is the loaded kernel module's version, empty where that cannot be told."""

    def __init__(self, folder: Path) -> None:
        self.root, self.container = folder / "root", folder / "root/run/nvidia/driver"
        self.module = ""
        self.hook = folder / "libaliquot.so"
        for part in (self.hook.name, *STANDS_FOR.values()):
            (folder / part).write_bytes(library("", content="ours"))
        self.volume = DriverVolume(folder / "volume", self.hook)
        install(self.root, OLD)
        self.driver = self.agent()

    def agent(self) -> NodeDriver:
        volume = DriverVolume(self.hook.parent / "volume", self.hook)
        return NodeDriver(volume, lambda: find_source(self.root, self.container), lambda: self.module)

    def look(self) -> str:
        """The version that new containers are shown after two looks, empty where that did not change."""
        return next(
            (found.version for found in (self.driver.refresh(), self.driver.refresh()) if found is not None), ""
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_upgrade_is_for_new_containers(node: Node):
    """A container that was there keeps its generation, also when it starts again; a new one gets the new driver."""
    had = node.driver.current.name
    install(node.root, NEW)

    assert NEW == node.look()

    shown = [node.driver.shown(name, again=False).version for name in (had, "", "gone-1-2")]
    assert [OLD, NEW, NEW] == shown
    assert b"570.124.06" == node.driver.shown(had, again=True).libcuda.read_bytes()[-10:]


def test_a_driver_that_is_being_replaced_is_waited_for(node: Node):
    """File by file it is another one at each look; what two looks saw alike is taken."""
    install(node.root, NEW)
    assert node.driver.refresh() is None
    (node.root / "usr/lib/x86_64-linux-gnu" / f"libnvidia-nvvm.so.{NEW}").write_bytes(library("libnvidia-nvvm.so.4"))
    assert node.driver.refresh() is None

    found = node.driver.refresh()

    assert found is not None
    assert (found.origin / "lib64/libnvidia-nvvm.so.4").exists()
    assert node.driver.refresh() is None


def test_the_same_version_installed_again_is_another_driver(node: Node):
    """Other files of the same version are another generation: a link to the old files would keep them alive unseen."""
    before = node.driver.current.name
    for path in (node.root / "usr/lib/x86_64-linux-gnu").glob("*.so.*"):
        fresh = path.with_name("fresh")
        shutil.copyfile(path, fresh)
        fresh.replace(path.resolve())

    assert OLD == node.look()

    assert before != node.driver.current.name


def test_a_driver_that_is_away_changes_nothing(node: Node):
    """Between two driver containers there is none; containers go on starting with what was mirrored."""
    before = node.driver.current
    shutil.rmtree(node.root / "usr")

    assert "" == node.look()

    assert (before, b"570.124.06") == (node.driver.current, before.libcuda.read_bytes()[-10:])


def test_a_driver_container_takes_over_from_the_nodes_own_driver(node: Node):
    """As soon as it shows its root, and its devices are then looked for there."""
    install(node.container, NEW)

    assert NEW == node.look()

    assert node.container == node.driver.source.root


def test_new_libraries_wait_for_their_kernel_module(node: Node):
    """The loaded module refuses libraries of another version, so new containers get the old ones until it is loaded."""
    node.module = OLD
    had = node.driver.current.name
    install(node.root, NEW)
    assert "" == node.look()
    assert OLD == node.driver.shown("", again=False).version

    node.module = NEW

    assert NEW == node.look()
    assert [OLD, NEW] == [node.driver.shown(had, again=again).version for again in (True, False)]


def test_an_agent_that_starts_between_libraries_and_module_finds_the_old_ones(node: Node):
    """Which generation fits the loaded module is seen at the start as well."""
    node.module = OLD
    install(node.root, NEW)

    assert OLD == node.agent().current.version


def test_what_a_container_has_is_never_pruned(node: Node):
    """Only what is neither current nor named goes, whatever else lies there."""
    had = node.driver.current.name
    install(node.root, NEW)
    node.look()

    assert [] == node.driver.prune({had})
    assert [had] == node.driver.prune(())
    assert NEW == node.driver.shown(had, again=True).version


def test_a_full_disk_is_told_and_tried_again(node: Node, monkeypatch: pytest.MonkeyPatch):
    """The current driver stays until there is room."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    install(node.root, NEW)
    with monkeypatch.context() as patch:
        patch.setattr("aliquot.driver.volume.volume.os.link", full)
        with pytest.raises(VolumeError, match="No space left on device"):
            node.look()
    assert OLD == node.driver.current.version

    assert NEW == node.look()


def test_a_driver_that_can_not_be_mirrored_is_tried_ever_more_seldom(node: Node, monkeypatch: pytest.MonkeyPatch):
    """Each try may copy all of it to a disk that is full. Another driver is tried as soon as it is seen."""
    looks, tries = 0, []

    def full(*_: object) -> None:
        tries.append(looks)
        raise OSError(errno.ENOSPC, "No space left on device")

    install(node.root, NEW)
    with monkeypatch.context() as patch:
        patch.setattr("aliquot.driver.volume.volume.mirror", full)
        while looks < 200:
            with contextlib.suppress(VolumeError):
                node.driver.refresh()
            looks += 1
        assert [1, 3, 6, 11, 20, 37, 70, 135] == tries
        install(node.root, "580.10")
        with pytest.raises(VolumeError):
            node.look()

    install(node.root, "580.20")
    assert "580.20" == node.look()


async def test_what_nobody_needs_goes_also_while_a_driver_can_not_be_mirrored():
    """It may be what fills the disk."""

    class Tenants:
        """Of a node whose disk is full; `driver` is its driver too."""

        def __init__(self) -> None:
            self.driver = self.offer = self
            self.pruned = asyncio.Event()

        def refresh(self) -> None:
            raise VolumeError("no room")

        def prune(self, named: list[str]) -> list[str]:
            self.pruned.set()
            return []

    tenants = Tenants()
    parts: Any = (tenants, (), None, None, None, None)
    task = asyncio.create_task(NodeAdvertiser(NodeSettings(), *parts).follow_driver(0.01))
    try:
        await asyncio.wait_for(tenants.pruned.wait(), 10)
    finally:
        task.cancel()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:06:53 UTC 2025\nGCC", "570.124.06"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (b@c)", "575.57.08"),
        ("NVRM version: something else", ""),
        (None, ""),
    ],
    ids=["closed", "open", "other", "none"],
)
def test_the_loaded_module_tells_its_version(tmp_path: Path, text: str | None, version: str):
    """In both forms that NVIDIA's modules have; where nothing is loaded nothing is told."""
    if text is not None:
        (tmp_path / "version").write_text(text)

    assert version == loaded_version(tmp_path / "version")


def dies_after(lines: int, work: Callable[[], object]) -> bool:
    """Runs `work` in a child that is gone after so many lines of the volume's code; whether it came to the end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    import sys

    left = lines

    def at(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.endswith("volume/volume.py"):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os._exit(9)
        return at

    try:
        sys.settrace(at)
        work()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_between_any_two_lines_of_a_refresh_leaves_whole_drivers_only(node: Node, step: int):
    """The old driver is there whatever happened, the next agent makes the new one whole, and nothing is left over."""
    had = node.driver.current.name
    install(node.root, NEW)
    wanted = {path.name for path in (node.driver.current.origin / "lib64").iterdir()}
    wanted = {name.replace(OLD, NEW) for name in wanted}
    lines, done = 0, False
    while not done:
        done = dies_after(lines, node.agent)
        volume = node.agent().volume
        assert {had} <= {each.name for each in volume.generations()}
        assert volume.current is not None
        for tree in (volume.current.origin, volume.current.shared):
            assert wanted == {path.name for path in (tree / "lib64").iterdir()}
        assert b"575.57.08" == (volume.link / "origin/lib64/libcuda.so.1").read_bytes()[-9:]
        volume.prune({had})
        assert {had, volume.current.name, "current"} == {path.name for path in volume.link.parent.iterdir()}
        # As before the upgrade, for the next crash a few lines later.
        shutil.rmtree(volume.current.folder)
        volume.link.unlink()
        lines += step
    assert lines > 100


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_between_any_two_lines_of_a_pruning_leaves_nothing_that_looks_whole(node: Node, step: int):
    """What was to go is gone after the next one, and is never half of a driver to anybody."""
    had = node.driver.current.name
    install(node.root, NEW)
    node.look()
    kept = node.hook.parent / "kept"
    shutil.copytree(node.volume.link.parent / had, kept, symlinks=True)
    lines, done = 0, False
    while not done:
        done = dies_after(lines, lambda: node.driver.prune(()))
        for each in node.volume.generations():
            assert each.libcuda.exists()
            assert 9 == len(list((each.shared / "lib64").iterdir()))
        node.driver.prune(())
        assert [node.driver.current.name] == [each.name for each in node.volume.generations()]
        shutil.copytree(kept, node.volume.link.parent / had, symlinks=True)
        lines += step
