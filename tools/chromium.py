#!/usr/bin/env python3
"""Where a Chromium is that tests can drive: the system's, or the distribution's package unpacked into a cache.

Prints one JSON line: {"executable": ..., "env": {...}}. Unpacking needs apt-get and the distribution's packages,
installs nothing, and lands in $XDG_CACHE_HOME/aliquot/chromium (or ~/.cache/...). Exit status 1 and a sentence where
none can be had.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")


def cache() -> Path:
    """The folder of the unpacked packages."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "aliquot" / "chromium"


def unpacked(root: Path) -> dict[str, object] | None:
    """An unpacked Chromium with the libraries that came along, if it is there and starts."""
    executable = root / "usr/lib/chromium/chromium"
    libraries = sorted({str(path.parent) for path in root.glob("usr/lib/*-linux-gnu/**/*.so*")})
    env = {"LD_LIBRARY_PATH": ":".join(libraries), "XDG_DATA_HOME": str(root / "usr/share")}
    if not executable.exists():
        return None
    started = subprocess.run([executable, "--version"], env=os.environ | env, capture_output=True, check=False)
    return {"executable": str(executable), "env": env} if started.returncode == 0 else None


def unpack(target: Path) -> None:
    """Fetch the packages that are missing here and unpack them, without installing any."""
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    debs = fresh / "debs"
    (debs / "partial").mkdir(parents=True)
    quiet = ("--reinstall", "--download-only", "-y", "-q", "--no-install-recommends")
    fetch = ["apt-get", "install", *quiet, "-o", "Debug::NoLocking=1", "-o", f"Dir::Cache::archives={debs}", *PACKAGES]
    try:
        if subprocess.run(fetch, capture_output=True, check=False).returncode != 0:
            subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=True)
            subprocess.run(fetch, capture_output=True, check=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", deb, fresh / "root"], check=True, capture_output=True)
        shutil.rmtree(debs)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def main() -> int:
    """Find or fetch, then say where."""
    for name in NAMES:
        if found := shutil.which(name):
            print(json.dumps({"executable": found, "env": {}}))
            return 0
    root = cache() / "root"
    answer = unpacked(root)
    if answer is None and "--no-fetch" not in sys.argv:
        try:
            unpack(cache())
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", b"") or b"").decode().strip() or str(error)
            print(f"no Chromium here and its package cannot be fetched: {said.splitlines()[-1]}", file=sys.stderr)
            return 1
        answer = unpacked(root)
    if answer is None:
        print("no Chromium here; install one: apt-get install chromium", file=sys.stderr)
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
