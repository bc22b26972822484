"""What the release wheels must be: which parts they have, for which processor, and how new a glibc those ask for."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

NEWEST = (2, 17)
WANTED = re.compile(rb"GLIBC_(\d+)\.(\d+)")
HOOK = tuple(f"aliquot/native/libaliquot{part}.so" for part in ("", "_cuda", "_nvml"))
HANDOVER = "aliquot/native/libaliquot_handover.so"
KERNELS = "aliquot/native/libaliquot_kernels.so"
EMULATOR = ("aliquot/native/emulator/libcuda.so.1", "aliquot/native/emulator/libnvidia-ml.so.1")
PROGRAMS = tuple(f"aliquot_lab/native/bench/aliquot-bench-{name}" for name in ("client", "driver", "storm", "token"))
# ELF's e_machine by processor.
ARCHITECTURES = {"x86_64": 62, "aarch64": 183}
# The parts by distribution and processor: hook, emulated driver and benchmarks are written for x86-64.
PARTS = {
    "aliquot_gpu": {"x86_64": (*HOOK, HANDOVER, KERNELS, *EMULATOR), "aarch64": (KERNELS,)},
    "aliquot_lab": {"x86_64": PROGRAMS, "aarch64": ()},
}


def needed(library: bytes) -> tuple[int, int]:
    """The highest GLIBC_x.y in an ELF image, as a text anywhere in it; (0, 0) when there is none."""
    return max(((int(major), int(minor)) for major, minor in WANTED.findall(library)), default=(0, 0))


def architecture(wheel: Path) -> str:
    """The processor that a wheel's name says, empty where none is known."""
    return next((arch for arch in ARCHITECTURES if wheel.stem.endswith(f"_{arch}")), "")


def native(wheel: Path) -> dict[str, bytes]:
    """Every ELF file of a wheel by its name in it."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    return {name: content for name, content in contents.items() if content[:4] == b"\x7fELF"}


def readable(wheel: Path) -> bool:
    """Whether there is such a file, and it is an archive."""
    return zipfile.is_zipfile(wheel)


def faults(wheel: Path) -> list[str]:
    """One sentence for each thing that is wrong."""
    if not readable(wheel):
        return [f"{wheel}: there is no such wheel, or it is not an archive; build it with make wheel"]
    arch = architecture(wheel)
    if not arch:
        return [f"{wheel.name}: its name says none of the processors {', '.join(ARCHITECTURES)}"]
    distribution = wheel.name.partition("-")[0]
    if distribution not in PARTS:
        return [f"{wheel.name}: its name says none of the distributions {', '.join(PARTS)}"]
    elves = native(wheel)
    found = [f"{wheel.name}: {part} is missing" for part in PARTS[distribution][arch] if part not in elves]
    for name, content in elves.items():
        if int.from_bytes(content[18:20], "little") != ARCHITECTURES[arch]:
            found.append(f"{wheel.name}: {name} is not for {arch}")
        if (version := needed(content)) > NEWEST:
            found.append(
                f"{wheel.name}: {name} asks for glibc {version[0]}.{version[1]}, {NEWEST[0]}.{NEWEST[1]} is the newest "
                "allowed; build it with make wheel"
            )
    with zipfile.ZipFile(wheel) as archive:
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist()):
            found.append(f"{wheel.name}: the licence is missing")
    return found


def report(wheel: Path) -> str:
    """A line for the wheel and one for each native part: its size and the glibc that it asks for."""
    lines = [f"{wheel.name}  {wheel.stat().st_size / 1e6:.1f} MB"]
    for name, content in sorted(native(wheel).items()):
        version = needed(content)
        asks = f"glibc {version[0]}.{version[1]}" if version > (0, 0) else "no glibc"
        lines.append(f"  {name}  {len(content) / 1e3:.0f} kB  {asks}")
    return "\n".join(lines)
