"""What the dynamic loader reads: a library's own facts and the cache, whatever its form, however damaged."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from volume_scenes import both_caches, library, new_cache, old_cache

from aliquot.driver.volume.source import BadCache, Cached, NotElf, read_cache, read_library

LOOKS = """
import os, pathlib, sys, threading
from aliquot.driver.volume.source import NotElf, read_library
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
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
PLAIN = st.lists(st.builds(Cached, WORDS, WORDS, st.sampled_from([32, 64])), max_size=8)
ENTRIES = st.lists(st.builds(Cached, WORDS, WORDS, st.sampled_from([32, 64]), st.booleans()), max_size=8)


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


@given(ENTRIES)
@settings(max_examples=60, deadline=None)
def test_the_form_of_today_is_read_whole(entries: list[Cached]):
    """Names, paths, word sizes and processor-bound files come out in the cache's own order."""
    assert tuple(entries) == read_cache(new_cache(entries))


@given(PLAIN)
@settings(max_examples=60, deadline=None)
def test_the_form_of_old_is_read_whole(entries: list[Cached]):
    """A cache from before glibc 2.2 has the same facts."""
    assert tuple(entries) == read_cache(old_cache(entries))


@given(PLAIN, ENTRIES)
@settings(max_examples=60, deadline=None)
def test_of_both_forms_in_one_file_the_new_one_counts(old: list[Cached], new: list[Cached]):
    """glibc up to 2.31 wrote both; loaders of today read the second."""
    assert tuple(new) == read_cache(both_caches(old, new))


@given(ENTRIES.filter(bool), st.data())
@settings(max_examples=60, deadline=None)
def test_a_cache_that_is_cut_short_is_refused(entries: list[Cached], data: st.DataObject):
    """No part of a cache that ends too early is believed."""
    whole = new_cache(entries)
    short = whole[: data.draw(st.integers(0, len(whole) - 1))]

    with pytest.raises(BadCache, match="ldconfig"):
        read_cache(short)


@pytest.mark.parametrize("form", [old_cache, new_cache])
def test_a_name_in_another_encoding_takes_nothing_from_the_others(form: Callable[[list[Cached]], bytes]):
    """File names are bytes; one that is no UTF-8 is read like any other, and means the same file."""
    entries = [Cached("libn\udcf6d.so.1", "/usr/lib/libn\udcf6d.so.1", 64), Cached("libcuda.so.1", "/lib/c.so.1", 64)]

    assert tuple(entries) == read_cache(form(entries))


def test_a_name_without_an_end_is_refused():
    """No path is longer than the kernel takes, so a damaged cache makes nobody read all of it again and again."""
    with pytest.raises(BadCache, match="ldconfig"):
        read_cache(new_cache([Cached("libcuda.so.1", "/" + 4096 * "x", 64)]))


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_noise_after_the_magic_never_breaks_the_reader(noise: bytes):
    """Whatever stands in the file, the answer is a list or a refusal."""
    for magic in (b"ld.so-1.7.0\0", b"glibc-ld.so.cache1.1"):
        try:
            read_cache(magic + noise)
        except BadCache as error:
            assert "\n" not in str(error)


def test_this_machines_cache_reads_as_ldconfig_reads_it():
    """The same names, paths and word sizes in the same order as `ldconfig -p`."""
    tool = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if tool is None or not Path("/etc/ld.so.cache").exists():
        pytest.skip("this machine has no ldconfig or no cache")
    lines = subprocess.run([tool, "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
    printed = [match.groups() for line in lines if (match := re.match(r"\s+(\S+) \((.*?)\) => (.*)$", line))]
    expected = [(name, path, 64 if re.search("64", kind) else 32) for name, kind, path in printed]

    assert expected == [(c.name, c.path, c.bits) for c in read_cache(Path("/etc/ld.so.cache").read_bytes())]
