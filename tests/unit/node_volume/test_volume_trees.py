"""The trees of a driver: found in any root, mirrored with all its names, ours before it in the shared one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from volume_scenes import install, library, new_cache

from aliquot.node.volume.elf import NotElf, read_library
from aliquot.node.volume.ldcache import Cached
from aliquot.node.volume.source import NoDriverFiles, find_source, from_libraries, from_root
from aliquot.node.volume.volume import DriverVolume, Generation, VolumeError


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    path = tmp_path / "libaliquot.so"
    path.write_bytes(library("", content="ours"))
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    install(tmp_path / "root", "570.124.06")
    return tmp_path / "root"


@pytest.fixture
def volume(tmp_path: Path, hook: Path) -> DriverVolume:
    return DriverVolume(tmp_path / "volume", hook)


def seen(folder: Path) -> dict[str, bytes]:
    """The end of each library of a folder, by name, links followed."""
    return {path.name: path.read_bytes()[-10:] for path in folder.iterdir()}


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("soname", ["libcuda.so.1", ""])
def test_a_library_tells_its_word_size_and_name(tmp_path: Path, bits: int, soname: str):
    """Both facts come from the file itself."""
    (tmp_path / "file").write_bytes(library(soname, bits=bits))

    read = read_library(tmp_path / "file")

    assert (bits, soname) == (read.bits, read.soname)


def test_a_damaged_library_is_refused_at_any_length(tmp_path: Path):
    """A file that ends inside its headers or its dynamic segment gives no facts."""
    whole = library("libcuda.so.1")
    for length in range(len(whole)):
        (tmp_path / "file").write_bytes(whole[:length])
        with pytest.raises(NotElf):
            read_library(tmp_path / "file")


def test_programs_find_every_name_in_the_origin(volume: DriverVolume, root: Path):
    """Beside each file stand its soname and its bare name, all leading to the driver."""
    found = volume.refresh(from_root(root))
    names = {f"{stem}.so{end}" for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
             for end in ("", ".1", ".570.124.06")}  # fmt: skip

    assert dict.fromkeys(names, b"570.124.06") == seen(found.origin / "lib64")


def test_ours_stands_for_both_libraries_in_the_shared_tree(volume: DriverVolume, root: Path):
    """Under each of their names; the rest of the driver is the driver's."""
    shared = seen(volume.refresh(from_root(root)).shared / "lib64")

    ours = {name for name, end in shared.items() if end.endswith(b"ours")}

    assert {f"lib{s}.so{e}" for s in ("cuda", "nvidia-ml") for e in ("", ".1", ".570.124.06")} == ours


def test_files_are_shared_by_hard_link_where_that_can_be(volume: DriverVolume, root: Path):
    """A mirror costs no room on the driver's own file system."""
    found = volume.refresh(from_root(root))

    assert found.libcuda.samefile(root / "usr/lib/x86_64-linux-gnu/libcuda.so.570.124.06")


def test_files_are_copied_where_there_can_be_no_link(volume: DriverVolume, root: Path, monkeypatch: pytest.MonkeyPatch):
    """Another file system, or one without hard links, gives the same trees."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "other file system")

    monkeypatch.setattr(os, "link", refuse)
    found = volume.refresh(from_root(root))

    assert b"570.124.06" == found.libcuda.read_bytes()[-10:]


def test_a_driver_container_is_read_inside_its_own_root(tmp_path: Path, volume: DriverVolume):
    """Absolute links of the container lead to its files and its cache counts; the node's own driver does not."""
    install(tmp_path / "host", "535.1.1")
    container = tmp_path / "driver"
    install(container, "570.124.06", folder="opt/nv")
    (container / "usr/libcuda.so.1").symlink_to("/opt/nv/libcuda.so.1")
    (container / "etc").mkdir()
    entries = [Cached(f"lib{n}.so.1", f"/opt/nv/lib{n}.so.1", 64) for n in ("cuda", "nvidia-ml")]
    (container / "etc/ld.so.cache").write_bytes(new_cache(entries))

    source = find_source(tmp_path / "host", container)

    assert "570.124.06" == source.version
    assert container / "opt/nv/libcuda.so.570.124.06" == source.library("libcuda.so").file


def test_the_32_bit_twin_goes_to_a_folder_of_its_own(root: Path, volume: DriverVolume):
    """And a 32-bit program finds no driver in the shared tree, since nothing counts it there."""
    install(root, "570.124.06", folder="usr/lib/i386-linux-gnu", bits=32)

    found = volume.refresh(from_root(root))

    assert 32 == read_library(found.origin / "lib/libcuda.so.1").bits
    assert not (found.shared / "lib/libcuda.so.1").exists()


def test_a_machine_without_a_driver_says_what_is_missing(tmp_path: Path):
    """The sentence names the library and the root."""
    with pytest.raises(NoDriverFiles, match=r"libcuda\.so.*"):
        from_root(tmp_path)


def test_an_upgrade_makes_a_new_generation_and_leaves_the_old(volume: DriverVolume, root: Path):
    """Containers keep the driver they started with for as long as they run."""
    before = volume.refresh(from_root(root))
    install(root, "575.57.08")
    after = volume.refresh(from_root(root))

    assert [] == volume.prune({before.name})
    assert (b"570.124.06", b".575.57.08"[1:]) == (before.libcuda.read_bytes()[-10:], after.libcuda.read_bytes()[-9:])


def test_a_generation_that_nobody_uses_goes(volume: DriverVolume, root: Path):
    """The current one stays in any case."""
    before = volume.refresh(from_root(root))
    install(root, "575.57.08")
    after = volume.refresh(from_root(root))

    assert [before.name] == volume.prune(())
    assert [after] == volume.generations()


def test_the_same_driver_is_mirrored_once(volume: DriverVolume, root: Path, tmp_path: Path, hook: Path):
    """Another look, and another agent, find the generation that is there."""
    first = volume.refresh(from_root(root))

    again = DriverVolume(tmp_path / "volume", hook).refresh(from_root(root))

    assert (first, 1) == (again, len(volume.generations()))


def test_a_full_disk_leaves_the_current_generation(volume: DriverVolume, root: Path, monkeypatch: pytest.MonkeyPatch):
    """What could not be made whole is not there at all, and the sentence says where room is missing."""
    before = volume.refresh(from_root(root))
    install(root, "575.57.08")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("aliquot.node.volume.mirror.os.link", full)
    with pytest.raises(VolumeError, match="No space left on device"):
        volume.refresh(from_root(root))

    assert (before, [before]) == (volume.current, volume.generations())
    assert {before.name, "current"} == {path.name for path in before.folder.parent.iterdir()}


def test_what_a_crash_left_is_swept(volume: DriverVolume, root: Path):
    """A tree that was never finished is no generation and goes at the next pruning."""
    now = volume.refresh(from_root(root))
    (now.folder.parent / ".making-575").mkdir()
    (now.folder.parent / ".making-current").symlink_to(now.name)

    assert [now] == volume.generations()
    assert [".making-575", ".making-current"] == volume.prune(())
    assert [now] == volume.generations()


def targets(generation: Generation, library: Path) -> dict[str, Path]:
    return {str(mount.inside): mount.host for mount in generation.edits(library).mounts}


@pytest.mark.parametrize(
    "folder", ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64"], ids=["debian", "redhat", "cuda"]
)
def test_every_image_finds_the_tenants_library_and_the_rest_of_the_driver(
    volume: DriverVolume, root: Path, tmp_path: Path, folder: str
):
    """Where its loader looks by itself, or where images made for CUDA point it."""
    shown = targets(volume.refresh(from_root(root)), tmp_path / "tenant.so")
    ours = {f"{folder}/lib{s}.so{e}" for s in ("cuda", "nvidia-ml") for e in ("", ".1", ".570.124.06")}

    assert ours == {inside for inside, host in shown.items() if host.name == "tenant.so" and folder in inside}
    assert "/usr/local/nvidia" in shown if "local" in folder else f"{folder}/libnvidia-ptxjitcompiler.so.1" in shown


def test_nothing_of_the_driver_can_be_written_by_a_container(volume: DriverVolume, root: Path, tmp_path: Path):
    """Hard links lead to the node's own driver, so every mount is read-only."""
    edits = volume.refresh(from_root(root)).edits(tmp_path / "tenant.so")

    assert {"ro"} == {mount.body()["options"][0] for mount in edits.mounts}


def test_an_emulated_driver_stays_where_it_is(tmp_path: Path, volume: DriverVolume):
    """It finds its machine by its own folder, so the hook opens it there."""
    install(tmp_path / "emulated", "1.0", folder="x")
    libraries = [tmp_path / "emulated/x" / f"lib{name}.so.1.0" for name in ("cuda", "nvidia-ml")]

    found = volume.refresh(from_libraries(*libraries, "570.1"))

    assert (libraries, "570.1") == ([found.libcuda, found.libnvml], found.version)


def test_what_an_older_driver_left_does_not_count(tmp_path: Path, volume: DriverVolume):
    """Where files of two versions lie, the driver is the one that the loader's cache prefers."""
    root = tmp_path / "root"
    install(root, "535.1.1", folder="usr/lib64")
    install(root, "570.124.06", folder="opt/nv")
    (root / "etc").mkdir()
    entries = [Cached(f"lib{n}.so.1", f"/opt/nv/lib{n}.so.1", 64) for n in ("cuda", "nvidia-ml")]
    (root / "etc/ld.so.cache").write_bytes(new_cache(entries))

    found = volume.refresh(from_root(root))

    assert ("570.124.06", b"570.124.06") == (found.version, (found.origin / "lib64/libcuda.so.1").read_bytes()[-10:])
