"""Everything that tests fetch or build, made before the first of them.

`python -m cluster.prepare` leaves all of it in the cache; a run of single tests makes what they use before the first.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import cgroups, images, packages, programs, prometheus
from .cache import Unavailable, say
from .namespaces import ROOMS

CHROMIUM = Path(__file__).resolve().parents[3] / "tools" / "chromium.py"


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
    """What every cluster is started from; builds and fetches what is missing.

    Raises:
        Unavailable: not root on Linux, or something cannot be built or fetched.
    """
    if reason := why_not():
        raise Unavailable(reason)
    parts = Parts(built=programs.folder(), unpacked=packages.folder())
    busybox = Path(parts.program("busybox"))
    images.archives(busybox)
    images.example(busybox)
    return parts


def roots() -> None:
    """The images of tests/e2e/node whose root file systems differ."""
    import container_roots

    container_roots.archives(Path(prepare().program("busybox")))


def release() -> None:
    """The native parts as a release has them."""
    import release_parts

    release_parts.release_parts()


def chromium() -> None:
    """A browser; tests that need one are skipped where there is none, and say so."""
    done = subprocess.run([sys.executable, CHROMIUM], capture_output=True, text=True)
    if done.returncode:
        say(done.stderr.strip())


EXTRAS: Mapping[str, Callable[[], object]] = {
    "helm": programs.helm,
    "kueue": lambda: programs.charted("kueue"),
    "jobset": lambda: programs.charted("jobset"),
    "kserve": lambda: programs.charted("kserve"),
    "lws": lambda: programs.charted("lws"),
    "karpenter": lambda: programs.charted("karpenter"),
    "program": lambda: prometheus.program("prometheus"),
    "with_images": roots,
    "release_parts": release,
    "browser": chromium,
    "podman_tree": packages.podman,
    "docker_tree": packages.docker,
}
"""What only some tests need, by the name of a fixture that they use or a function that their module imports."""


def main() -> None:
    """Leave everything that `make test` uses in the cache, a line for each step."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores Ctrl-C
    steps: dict[str, Callable[[], object]] = {"a browser": chromium}
    reason = "ALIQUOT_E2E=skip" if os.environ.get("ALIQUOT_E2E") == "skip" else why_not()
    if reason:
        say(f"no test cluster, {reason}; tests that need one are skipped")
    else:
        steps |= {
            "the cluster's programs and images": prepare,
            "Prometheus": EXTRAS["program"],
            "images of several kinds": roots,
            "helm": programs.helm,
            "podman": packages.podman,
            "docker": packages.docker,
            "Slurm": packages.slurm,
        }
    for number, (what, make) in enumerate(steps.items(), 1):
        began_s = time.monotonic()
        say(f"{number}/{len(steps)} {what}")
        try:
            make()
        except Unavailable as error:
            sys.exit(f"prepare: {what} could not be prepared: {error}")
        if (took_s := time.monotonic() - began_s) > 1:
            say(f"{number}/{len(steps)} {what}: made in {took_s:.0f} s")


if __name__ == "__main__":
    main()
