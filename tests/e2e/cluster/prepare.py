"""Everything a cluster is started from, in one value.

`python -m cluster.prepare` builds and fetches what is missing, helm too, so that a test run finds it there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, packages, programs
from .cache import Unavailable
from .namespaces import ROOMS


@dataclass(frozen=True)
class Parts:
    """Where the programs are: `built` from Go, `unpacked` from the distribution's packages."""

    built: Path
    unpacked: Path

    def program(self, name: str) -> str:
        """The absolute path of a program, wherever it came from.

        Raises:
            KeyError: no part has this program.
        """
        for place in (self.built / "bin", self.unpacked / "usr/bin", self.unpacked / "usr/sbin"):
            if (place / name).exists():
                return str(place / name)
        raise KeyError(name)

    @property
    def stages(self) -> Path:
        """What kwok does to its nodes and pods, as its own module ships it."""
        return self.built / "stages.yaml"


def why_not() -> str:
    """Why no cluster can be started by this user on this machine; empty if it can."""
    if sys.platform != "linux":
        return "it needs Linux namespaces and cgroups"
    if os.geteuid() != 0:
        return "it needs root (namespaces, cgroups, mounts)"
    missing = [name for name in ("unshare", "nsenter", "mount") if not shutil.which(name)]
    if missing:
        return f"util-linux is missing here: {', '.join(missing)}"
    trial = subprocess.run([*ROOMS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True)
    if trial.returncode:
        why = trial.stderr.strip().splitlines()[-1:] or ["no reason told"]
        return f"root may make no namespaces here ({why[0]}); a container needs --privileged for it"
    if closed := [str(place) for place in cgroups.hierarchies() if not os.access(place, os.W_OK)]:
        return f"no cgroup can be made in {closed[0]}, it is read-only; a container needs --privileged for it"
    return ""


def prepare() -> Parts:
    """Builds and fetches what is missing.

    Raises:
        Unavailable: not root on Linux, or something cannot be built or fetched.
    """
    if reason := why_not():
        raise Unavailable(reason)
    return Parts(built=programs.folder(), unpacked=packages.folder())


def main() -> None:
    """Leaves everything in the cache."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores Ctrl-C
    if os.environ.get("ALIQUOT_E2E") == "skip":
        return
    try:
        prepare()
        programs.helm()
    except Unavailable as error:
        sys.exit(f"test cluster: {error}")


if __name__ == "__main__":
    main()
