"""The trees of a driver: found in any root, mirrored with all its names, ours before it in the shared one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from volume_scenes import install, library, new_cache

from aliquot.driver.native import STANDS_FOR
from aliquot.driver.volume.names import SUBSTITUTED, BadLibrary, stem, wanted
from aliquot.driver.volume.source import (
    Cached,
    NoDriverFiles,
    find_source,
    from_libraries,
    from_root,
    read_library,
    within,
)
from aliquot.driver.volume.volume import DriverVolume, Generation, VolumeError


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    for name, part in STANDS_FOR.items():
        (tmp_path / part).write_bytes(library(name, content=f"our {stem(name)}"))
    path = tmp_path / "libaliquot.so"
    path.write_bytes(library(""))
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


def test_programs_find_every_name_in_the_origin(volume: DriverVolume, root: Path):
    """Beside each file stand its soname and its bare name, all leading to the driver."""
    found = volume.refresh(from_root(root))
    names = {f"{stem}.so{end}" for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
             for end in ("", ".1", ".570.124.06")}  # fmt: skip

    assert dict.fromkeys(names, b"570.124.06") == seen(found.origin / "lib64")


@pytest.mark.parametrize("name", ["libnvidia-nvvm70.so.4", "libnvidia-tileiras.so.570.124.06"])
def test_compilers_that_newer_drivers_load_later_come_along(volume: DriverVolume, root: Path, name: str):
    """A program that has its kernels compiled by the driver finds them missing only then."""
    (root / "usr/lib/x86_64-linux-gnu" / name).write_bytes(library(name))

    assert name in seen(volume.refresh(from_root(root)).shared / "lib64")


def test_ours_stands_for_both_libraries_in_the_shared_tree(volume: DriverVolume, root: Path):
    """Each under all of its names; the rest of the driver is the driver's."""
    folder = volume.refresh(from_root(root)).shared / "lib64"

    for name in SUBSTITUTED:
        ours = {path.name for path in folder.iterdir() if path.read_bytes().endswith(f"our {name}".encode())}
        assert {f"{name}{end}" for end in ("", ".1", ".570.124.06")} == ours


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


def test_links_of_a_drivers_root_lead_nowhere_else(tmp_path: Path):
    """Its cache and its folders are its own also where they are absolute links, as in an image made by hand."""
    root = tmp_path / "driver"
    install(root, "570.124.06", folder="opt/lib")
    install(root, "570.124.06", folder="opt/cached")
    (root / "opt/cached/libnvidia-nvvm.so.570.124.06").write_bytes(library("libnvidia-nvvm.so.4"))
    (root / "usr/lib64").symlink_to("/opt/lib")
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").symlink_to("/opt/cache")
    entry = Cached("libnvidia-nvvm.so.4", "/opt/cached/libnvidia-nvvm.so.570.124.06", 64)
    (root / "opt/cache").write_bytes(new_cache([entry]))

    found = {library.file.relative_to(root).as_posix() for library in from_root(root).libraries}

    names = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    assert {"opt/cached/libnvidia-nvvm.so.570.124.06", *(f"opt/lib/{n}.so.570.124.06" for n in names)} == found


def test_of_two_files_with_one_name_the_loaders_first_counts(tmp_path: Path, volume: DriverVolume):
    """As where an installer and a package put the same version into two folders."""
    root = tmp_path / "root"
    install(root, "570.124.06", folder="usr/lib64")
    install(root, "570.124.06", folder="opt/nv")
    (root / "opt/nv/libcuda.so.570.124.06").write_bytes(library("libcuda.so.1", content="the loader's"))
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").write_bytes(new_cache([Cached("libcuda.so.1", "/opt/nv/libcuda.so.1", 64)]))

    assert volume.refresh(from_root(root)).libcuda.read_bytes().endswith(b"the loader's")


def test_a_link_that_goes_while_it_is_followed_leads_nowhere(root: Path, monkeypatch: pytest.MonkeyPatch):
    """A driver that is being replaced is no error of whoever looks at it."""

    def gone(self: Path) -> Path:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "readlink", gone)

    assert within(root, "usr/lib/x86_64-linux-gnu/libcuda.so.1") is None
    assert "570.124.06" == from_root(root).version


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

    monkeypatch.setattr("aliquot.driver.volume.volume.os.link", full)
    with pytest.raises(VolumeError, match="No space left on device"):
        volume.refresh(from_root(root))

    assert (before, [before]) == (volume.current, volume.generations())
    assert {before.name, "current"} == {path.name for path in before.folder.parent.iterdir()}


def test_what_a_crash_left_makes_room_before_the_next_is_made(
    volume: DriverVolume, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Half a driver of another version would else keep a full disk full, and the agent from ever starting."""
    left = tmp_path / "volume/.making-535"
    left.mkdir(parents=True)
    link = os.link

    def on_a_full_disk(file: Path, target: Path) -> None:
        if left.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        link(file, target)

    monkeypatch.setattr("aliquot.driver.volume.volume.os.link", on_a_full_disk)

    assert "570.124.06" == volume.refresh(from_root(root)).version


def test_what_a_crash_left_is_swept(volume: DriverVolume, root: Path):
    """A tree that was never finished is no generation and goes at the next pruning."""
    now = volume.refresh(from_root(root))
    (now.folder.parent / ".making-575").mkdir()
    (now.folder.parent / ".making-current").symlink_to(now.name)

    assert [now] == volume.generations()
    assert [".making-575", ".making-current"] == volume.prune(())
    assert [now] == volume.generations()


def targets(generation: Generation, ours: Path) -> dict[str, Path]:
    return {str(mount.inside): mount.host for mount in generation.edits(ours).mounts}


@pytest.mark.parametrize(
    "folder", ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64"], ids=["debian", "redhat", "cuda"]
)
def test_every_image_finds_the_tenants_library_and_the_rest_of_the_driver(
    volume: DriverVolume, root: Path, tmp_path: Path, folder: str
):
    """Where its loader looks by itself, or where images made for CUDA point it."""
    shown = targets(volume.refresh(from_root(root)), tmp_path / "tenant")
    ours = {
        f"{folder}/{name}{end}": tmp_path / "tenant" / f"{name}.1"
        for name in SUBSTITUTED
        for end in ("", ".1", ".570.124.06")
    }

    assert ours == {at: host for at, host in shown.items() if host.parent.name == "tenant" and at.startswith(folder)}
    assert "/usr/local/nvidia" in shown if "local" in folder else f"{folder}/libnvidia-ptxjitcompiler.so.1" in shown


def test_nothing_of_the_driver_can_be_written_by_a_container(volume: DriverVolume, root: Path, tmp_path: Path):
    """Hard links lead to the node's own driver, so every mount is read-only."""
    edits = volume.refresh(from_root(root)).edits(tmp_path / "tenant")

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


@pytest.fixture
def graphics(root: Path) -> Path:
    """The same driver with libraries of graphics, and the file by which EGL finds them."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    for name in ("libGLX_nvidia.so.570.124.06", "libEGL_nvidia.so.570.124.06", "libnvidia-fbc.so.570.124.06"):
        (folder / name).write_bytes(library(f"{stem(name)}.0"))
    told = root / "usr/share/glvnd/egl_vendor.d/10_nvidia.json"
    told.parent.mkdir(parents=True)
    told.write_text("{}")
    return root


def test_graphics_is_mirrored_where_it_is_asked_for(graphics: Path, volume: DriverVolume, tmp_path: Path):
    """With the name by which libGL asks where it knows of no vendor, and the files that name the libraries."""
    shown = targets(volume.refresh(from_root(graphics, wanted("graphics"))), tmp_path / "tenant")

    assert "libGLX_nvidia.so.570.124.06" == shown["/usr/lib64/libGLX_indirect.so.0"].name
    assert "libEGL_nvidia.so.570.124.06" == shown["/usr/lib64/libEGL_nvidia.so.0"].name
    assert "{}" == shown["/usr/share/glvnd/egl_vendor.d/10_nvidia.json"].read_text()
    plain = targets(volume.refresh(from_root(graphics)), tmp_path / "tenant")
    assert not [path for path in plain if "GL" in path or "json" in path]


def test_single_libraries_are_asked_for_by_name(graphics: Path, volume: DriverVolume):
    """One library that nothing else brings along."""
    found = volume.refresh(from_root(graphics, wanted("libnvidia-fbc.so"))).shared / "lib64"

    assert (found / "libnvidia-fbc.so.0").exists()
    assert not (found / "libEGL_nvidia.so.0").exists()


def test_a_word_that_is_no_library_is_refused():
    """Paths and other words are told what is allowed."""
    with pytest.raises(BadLibrary, match=r"'/usr/lib/libx\.so' is not a library; write graphics, or names"):
        wanted("graphics, /usr/lib/libx.so")


def test_programs_stand_where_images_for_cuda_look(root: Path, volume: DriverVolume, tmp_path: Path):
    """The driver's own programs, MPS among them, are in /usr/local/nvidia/bin and in /usr/bin."""
    for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "not-nvidias"):
        (root / "usr/bin" / name).write_text("#!/bin/sh\n")
        (root / "usr/bin" / name).chmod(0o755)

    made = volume.refresh(from_root(root))

    names = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-smi"]
    assert names == sorted(path.name for path in (made.shared / "bin").iterdir())
    shown = targets(made, tmp_path / "tenant")
    assert made.shared == shown["/usr/local/nvidia"]
    assert set(names) <= {path.rpartition("/")[2] for path in shown if path.startswith("/usr/bin/")}
