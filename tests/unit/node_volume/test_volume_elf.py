"""What a library file says of itself, however damaged."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from volume_scenes import library

from aliquot.node.volume.elf import NotElf, read_library

LOOKS = """
import os, pathlib, sys, threading
from aliquot.node.volume.elf import NotElf, read_library
sys.setswitchinterval(1e-6)
path = pathlib.Path(sys.argv[1])
whole, file = path.read_bytes(), os.open(path, os.O_RDWR)
def replace():
    while True:
        os.ftruncate(file, 0)
        os.pwrite(file, whole, 0)
threading.Thread(target=replace, daemon=True).start()
for _ in range(3000):
    try:
        read_library(path)
    except NotElf:
        pass
os._exit(0)
"""


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


@pytest.mark.parametrize("bits", [64, 32])
def test_a_library_whose_numbers_make_no_sense_is_refused(tmp_path: Path, bits: int):
    """Wherever a number stands that leads out of the file, the answer is the facts or a refusal, and soon."""
    whole = library("libcuda.so.1", bits=bits)
    for at in range(16, len(whole) - 8):
        for number in (0, 2**31, 2**62, 2**63, 2**64 - 1):
            (tmp_path / "file").write_bytes(whole[:at] + number.to_bytes(8, "little") + whole[at + 8 :])
            with contextlib.suppress(NotElf):
                assert bits == read_library(tmp_path / "file").bits


@pytest.mark.parametrize("soname", ["../../../../tmp/libcuda.so.1", "/libcuda.so.1", ".."])
def test_a_library_that_names_a_path_is_refused(tmp_path: Path, soname: str):
    """A mirror makes files of these names, and makes them in its own folder only."""
    (tmp_path / "file").write_bytes(library(soname))

    with pytest.raises(NotElf):
        read_library(tmp_path / "file")


def test_a_library_that_is_cut_short_while_it_is_read_does_no_harm(tmp_path: Path):
    """A driver is looked at while it is being replaced; the looker lives on."""
    (tmp_path / "file").write_bytes(library("libcuda.so.1") + bytes(1 << 16))

    done = subprocess.run([sys.executable, "-c", LOOKS, tmp_path / "file"], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)
