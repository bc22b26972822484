"""Builders: loader caches and shared libraries as bytes, and roots with a driver in them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from aliquot.driver.volume.source import NEW_MAGIC, OLD_MAGIC, Cached

FLAGS = {64: 0x0303, 32: 0x0003}


def old_cache(entries: Sequence[Cached]) -> bytes:
    """A cache in the form before glibc 2.2; offsets count from the end of the entries."""
    strings, table = b"", b""
    for entry in entries:
        key = len(strings)
        strings += os.fsencode(entry.name) + b"\0"
        value = len(strings)
        strings += os.fsencode(entry.path) + b"\0"
        table += struct.pack("<iII", FLAGS[entry.bits], key, value)
    return OLD_MAGIC.ljust(12, b"\0") + struct.pack("<I", len(entries)) + table + strings


def new_cache(entries: Sequence[Cached]) -> bytes:
    """A cache in today's form; offsets count from its start."""
    strings, table, start = b"", b"", 48 + 24 * len(entries)
    for entry in entries:
        key = start + len(strings)
        strings += os.fsencode(entry.name) + b"\0"
        value = start + len(strings)
        strings += os.fsencode(entry.path) + b"\0"
        table += struct.pack("<iIIIQ", FLAGS[entry.bits], key, value, 0, 1 << 62 if entry.special else 0)
    header = NEW_MAGIC + struct.pack("<IIB3xI12x", len(entries), len(strings), 2, 0)
    return header + table + strings


def both_caches(old: Sequence[Cached], new: Sequence[Cached]) -> bytes:
    """The old form with the new one after it, as glibc wrote them for years; the old one's strings lie behind both."""
    head = OLD_MAGIC.ljust(12, b"\0") + struct.pack("<I", len(old)) + bytes(12 * len(old))
    return head + bytes(-len(head) % 8) + new_cache(new)


def library(soname: str, *, bits: int = 64, content: str = "") -> bytes:
    """A shared library that has nothing but a soname (none when empty) and, at its end, `content`."""
    wide = bits == 64
    header, segment, base = (64, 56, 0x1000) if wide else (52, 32, 0x1000)
    dynamic = header + 2 * segment
    tags = ([(5, base + dynamic + 3 * (16 if wide else 8)), (14, 1)] if soname else [(5, base)]) + [(0, 0)]
    form = "<qQ" if wide else "<iI"
    body = b"".join(struct.pack(form, *tag) for tag in tags) + b"\0" + soname.encode() + b"\0"
    size = dynamic + len(body)
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1, 1]) + bytes(9)
    if wide:
        head = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
        parts = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096)
        parts += struct.pack("<IIQQQQQQ", 2, 4, dynamic, base + dynamic, 0, 16 * len(tags), 0, 8)
    else:
        head = ident + struct.pack("<HHIIIIIHHHHHH", 3, 3, 1, 0, 52, 0, 0, 52, 32, 2, 0, 0, 0)
        parts = struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 4096)
        parts += struct.pack("<IIIIIIII", 2, dynamic, base + dynamic, 0, 8 * len(tags), 0, 4, 4)
    return head + parts + body + content.encode()


def install(root: Path, version: str, *, folder: str = "usr/lib/x86_64-linux-gnu", bits: int = 64) -> None:
    """A driver of that version in a root, with the links a package makes."""
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for stem in ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"):
        for link in (place / f"{stem}.1", place / stem):
            link.unlink(missing_ok=True)
        for old in place.glob(f"{stem}.*"):
            old.unlink()
        (place / f"{stem}.{version}").write_bytes(library(f"{stem}.1", bits=bits, content=version))
        (place / f"{stem}.1").symlink_to(f"{stem}.{version}")
        (place / stem).symlink_to(f"{stem}.1")
    programs = root / "usr/bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "nvidia-smi").write_text("#!/bin/sh\n")
    (programs / "nvidia-smi").chmod(0o755)
