"""Says which glibc each native part of a wheel needs, and fails when one needs more than 2.17."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

NEWEST = (2, 17)
WANTED = re.compile(rb"GLIBC_(\d+)\.(\d+)")


def needed(library: bytes) -> tuple[int, int]:
    """The highest GLIBC_x.y version string in an ELF image; (0, 0) when there is none."""
    return max(((int(major), int(minor)) for major, minor in WANTED.findall(library)), default=(0, 0))


def main(wheels: list[str]) -> int:
    """Check every shared object of every wheel."""
    worst = (0, 0)
    for wheel in wheels:
        with zipfile.ZipFile(Path(wheel)) as archive:
            for name in archive.namelist():
                if ".so" in name:
                    version = needed(archive.read(name))
                    worst = max(worst, version)
                    print(f"{name}: GLIBC_{version[0]}.{version[1]}")
    return 0 if worst <= NEWEST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
