"""Everything a cluster is started from, in one value."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from . import packages, programs
from .cache import Unavailable


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
    return f"util-linux is missing here: {', '.join(missing)}" if missing else ""


def prepare() -> Parts:
    """Builds and fetches what is missing.

    Raises:
        Unavailable: not root on Linux, or something cannot be built or fetched.
    """
    if reason := why_not():
        raise Unavailable(reason)
    return Parts(built=programs.folder(), unpacked=packages.folder())
