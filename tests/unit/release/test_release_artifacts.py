"""What a release hands out is whole and of its version."""

import subprocess
from pathlib import Path

import pytest
from release_scene import IN_SDIST, Tree, elf, image, sdist, wheel

import release  # isort: skip - the scene shows where it is

X86 = "aliquot_gpu-1.2.0-py3-none-manylinux_2_17_x86_64.whl"
ARM = "aliquot_gpu-1.2.0-py3-none-manylinux_2_17_aarch64.whl"
LAB = tuple(name.replace("_gpu", "_lab") for name in (ARM, X86))


@pytest.fixture
def ready(tree: Tree) -> Tree:
    """A tree with everything built."""
    tree.built()
    return tree


def faults(tree: Tree) -> list[str]:
    """What is wrong with its artifacts."""
    return release.artifact_faults(tree.root, tree.dist)


def test_artifacts_as_they_must_be_have_no_fault(ready: Tree):
    """All wheels, the sdist, and an image of this version: nothing is said."""
    image(ready, "1.2.0")

    assert [] == faults(ready)


def test_each_missing_artifact_is_named(tree: Tree):
    """Nothing built is a sentence for each wheel and one for the sdist."""
    tree.dist.mkdir()

    assert [
        "dist/aliquot_gpu-1.2.0-py3-none-manylinux_2_17_aarch64.whl: the wheel of aliquot_gpu for aarch64 is missing; "
        "build it with make release",
        "dist/aliquot_gpu-1.2.0-py3-none-manylinux_2_17_x86_64.whl: the wheel of aliquot_gpu for x86_64 is missing; "
        "build it with make release",
        "dist/aliquot_gpu-1.2.0.tar.gz: the sdist is missing; build it with make release",
        "dist/aliquot_lab-1.2.0-py3-none-manylinux_2_17_aarch64.whl: the wheel of aliquot_lab for aarch64 is missing; "
        "build it with make release",
        "dist/aliquot_lab-1.2.0-py3-none-manylinux_2_17_x86_64.whl: the wheel of aliquot_lab for x86_64 is missing; "
        "build it with make release",
    ] == faults(tree)


def test_what_is_of_another_version_is_not_handed_out(ready: Tree):
    """A file left by an earlier release, and an image of one, are named."""
    (ready.dist / "aliquot_gpu-1.1.0.tar.gz").touch()
    image(ready, "1.1.0")

    assert [
        "build/aliquot-image.tar: it is of version 1.1.0, the tree is 1.2.0; make image builds it anew",
        "dist/aliquot_gpu-1.1.0.tar.gz: it does not belong to 1.2.0; remove it",
    ] == faults(ready)


@pytest.mark.parametrize(
    ("native", "sentence"),
    [
        (
            elf(183, "GLIBC_2.2.5 GLIBC_2.34"),
            "asks for glibc 2.34, 2.17 is the newest allowed; build it with make wheel",
        ),
        (elf(62), "is not for aarch64"),
    ],
)
def test_native_parts_fit_the_wheels_name(ready: Tree, native: bytes, sentence: str):
    """A native part for another processor, or one that asks for a newer glibc than the name says, is a fault."""
    wheel(ready.dist, "aarch64", {"libaliquot_kernels.so": native})

    assert [f"{ARM}: aliquot/native/libaliquot_kernels.so {sentence}"] == faults(ready)


def test_the_laboratorys_wheel_has_its_programs(ready: Tree):
    """A program of the benchmarks that is missing is named with its wheel."""
    wheel(ready.dist, "x86_64", {"bench/aliquot-bench-client": elf(62)}, package="aliquot_lab")

    assert [
        f"{LAB[1]}: aliquot_lab/native/bench/aliquot-bench-{name} is missing" for name in ("driver", "storm", "token")
    ] == faults(ready)


def test_a_wheel_is_whole(ready: Tree):
    """A wheel without a native part, without its licence, or with another version inside is a fault each."""
    wheel(ready.dist, "aarch64", {}, version="1.1.0", licence=False)

    assert [
        f"{ARM}: aliquot/native/libaliquot_kernels.so is missing",
        f"{ARM}: its metadata says another version",
        f"{ARM}: the licence is missing",
    ] == faults(ready)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"dist/{ARM}", "there is no such wheel, or it is not an archive; build it with make wheel"),
        ("build/aliquot-image.tar", "it is not a whole archive of an image; make image builds it anew"),
    ],
)
def test_a_torn_file_is_not_handed_out(ready: Tree, name: str, sentence: str):
    """A wheel or an image of which only a piece was written is named, with how to make it anew."""
    ready.write(name, "half of", commit=False)

    (fault,) = faults(ready)
    assert (True, sentence) == (name in fault, fault.partition(": ")[2])


def test_nothing_is_added_when_helm_fails(ready: Tree):
    """A chart that helm does not pack is one sentence, and there are no sums of a part of the release."""
    with pytest.raises(release.NoChart, match="`false package` ends with status 1: it says nothing"):
        release.gather(ready.root, ready.dist, "false")

    assert {ARM, X86, *LAB, "aliquot_gpu-1.2.0.tar.gz"} == {path.name for path in ready.dist.iterdir()}


def test_the_sdist_has_sources_and_nothing_else(ready: Tree):
    """Sources that are missing and folders that are none are named."""
    sdist(ready.dist, (*(name for name in IN_SDIST if name != "native/hook/work/gate.c"), "build/x.o"))

    assert [
        "aliquot_gpu-1.2.0.tar.gz: it has build/x.o, which is no source",
        "aliquot_gpu-1.2.0.tar.gz: native/hook/work/gate.c is missing",
    ] == faults(ready)


def test_the_sums_are_those_of_the_files(ready: Tree, tmp_path: Path):
    """What is handed out is listed with sums that sha256sum takes, and may be gathered again; a change is noticed."""
    helm = tmp_path / "helm"
    helm.write_text('#!/bin/sh\n[ "$1" = package ] && echo chart > "$4/aliquot-1.2.0.tgz"\n')
    helm.chmod(0o755)
    image(ready, "1.2.0")
    gathered = release.gather(ready.root, ready.dist, str(helm))
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]

    made = {f"aliquot-1.2.0{end}" for end in (".tgz", ".yaml", "-image.tar")}
    names = {ARM, X86, *LAB, "aliquot_gpu-1.2.0.tar.gz", *made}
    assert names == {path.name for path in gathered}
    assert ([], 0) == (faults(ready), subprocess.run(check, cwd=ready.dist).returncode)
    (ready.dist / X86).write_bytes(b"other")
    assert 1 == subprocess.run(check, cwd=ready.dist, capture_output=True).returncode
