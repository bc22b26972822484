"""Make a base for the container image from Debian packages, where no image registry can be reached.

    tools/image_base.py build/base.tar && docker import build/base.tar aliquot-base
    make image ARGS='--image aliquot-base --build-image aliquot-base'

The file is a root file system: Python and the few programs that the Dockerfile calls, without manuals and translations.
It needs mmdebstrap and root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SUITE = "bookworm"
# CMake and numpy are written in C++.
PACKAGES = ["libstdc++6", "python3-venv"]
NOT_WANTED = [f"/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info", "lintian")]
LICENCES = "/usr/share/doc/*/copyright"
# What only an installation leaves behind: package lists, logs, caches.
LEFTOVERS = 'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt "$1"/var/log/* "$1"/var/cache/debconf "$1"/tmp/*'


def command(target: Path) -> list[str]:
    """How mmdebstrap is called. The variant has what Debian calls essential, without apt."""
    paths = [f"path-exclude={path}" for path in NOT_WANTED] + [f"path-include={LICENCES}"]
    return [
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=essential",
        f"--include={','.join(PACKAGES)}",
        *(f"--dpkgopt={option}" for option in ("force-unsafe-io", *paths)),
        f"--customize-hook={LEFTOVERS}",
        SUITE,
        str(target),
    ]


def main() -> int:
    """Make the file; status 1 with a sentence when it cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path, help="the file to write, ending in .tar")
    chosen = parser.parse_args()
    if os.geteuid() or not shutil.which("mmdebstrap"):
        print("aliquot: no base: it is made by root with mmdebstrap (apt-get install mmdebstrap)", file=sys.stderr)
        return 1
    if chosen.target.suffix != ".tar":
        parser.error(f"the target is {chosen.target.name}; its name ends in .tar, which is what mmdebstrap goes by")
    chosen.target.parent.mkdir(parents=True, exist_ok=True)
    whole = chosen.target.with_name(f"new-{chosen.target.name}")
    if done := subprocess.run(command(whole)).returncode:
        whole.unlink(missing_ok=True)
        print(f"aliquot: no base: mmdebstrap ended with status {done}; what it said stands above", file=sys.stderr)
        return 1
    whole.replace(chosen.target)
    print(f"{chosen.target}: {chosen.target.stat().st_size / 2**20:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
