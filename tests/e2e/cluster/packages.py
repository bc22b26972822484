"""etcd, containerd, runc, the CNI plugins, kubectl and busybox: distribution packages, unpacked and not installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import cache
from .cache import Unavailable, say

# Package and the Debian suite it is taken from: etcd, containerd and kubectl from the suite that has the Kubernetes
# version that tools/go.mod names; what links the C library dynamically from the oldest suite that is served.
PACKAGES = {
    "containerd": "forky",
    "etcd-server": "forky",
    "kubectl": "forky",
    "runc": "bookworm",
    "containernetworking-plugins": "bookworm",
    "busybox-static": "bookworm",
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEEDED = (
    "usr/bin/containerd",
    "usr/bin/containerd-shim-runc-v2",
    "usr/bin/ctr",
    "usr/bin/etcd",
    "usr/bin/kubectl",
    "usr/sbin/runc",
    "usr/lib/cni/bridge",
    "usr/lib/cni/host-local",
    "usr/lib/cni/loopback",
    "usr/bin/busybox",
)

LIBRARIES = "usr/lib/x86_64-linux-gnu"
PODMAN = dict.fromkeys(
    ("podman", "conmon", "runc", "libgpgme11", "libsubid4", "uidmap", "golang-github-containers-common"), "bookworm"
)
PODMAN_NEEDED = ("usr/bin/podman", "usr/bin/conmon", "usr/sbin/runc", f"{LIBRARIES}/libgpgme.so.11")
# The first suite whose docker reads CDI files; it runs with the C library of the oldest that is served.
DOCKER = {**dict.fromkeys(("docker.io", "docker-cli", "containerd"), "trixie"), "runc": "bookworm"}
DOCKER_NEEDED = ("usr/sbin/dockerd", "usr/bin/docker", "usr/bin/containerd", "usr/sbin/runc")
SLURM = dict.fromkeys(
    ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2", "libhwloc15",
     "liblua5.1-0", "libnuma1", "libreadline8"), "bookworm",
)  # fmt: skip
SLURM_NEEDED = ("usr/sbin/slurmctld-wlm", "usr/sbin/slurmd-wlm", "usr/sbin/munged", "usr/bin/srun")


def folder() -> Path:
    """A tree like that of a root file system, with the packages unpacked into it; fetched if it is not there.

    Raises:
        Unavailable: this is no Debian machine, or the archive cannot be reached.
    """
    return unpacked("packages", PACKAGES, NEEDED)


def podman() -> Path:
    """A tree with podman and what it starts containers by.

    Raises:
        Unavailable: see `folder`.
    """
    return unpacked("podman", PODMAN, PODMAN_NEEDED)


def docker() -> Path:
    """A tree with docker and what it starts containers by.

    Raises:
        Unavailable: see `folder`.
    """
    return unpacked("docker", DOCKER, DOCKER_NEEDED)


def slurm() -> Path:
    """A tree with Slurm's two daemons and commands, and munge.

    Raises:
        Unavailable: see `folder`.
    """
    return unpacked("slurm", SLURM, SLURM_NEEDED)


def unpacked(kind: str, packages: Mapping[str, str], needed: Sequence[str] = ()) -> Path:
    """A tree with these packages (name, or name:architecture, to suite), kept as `kind`; `needed` must be in it.

    Raises:
        Unavailable: see `folder`.
    """
    listing = repr(sorted(packages.items())).encode()
    return cache.kept(f"{kind}-{cache.key(listing)}", lambda into: _fetch(into, packages, needed))


def _fetch(into: Path, packages: Mapping[str, str], needed: Sequence[str]) -> None:
    say(f"fetching {', '.join(packages)}, once")
    apt = into / ".apt"
    for name in ("lists/partial", "cache/archives/partial", "deb"):
        (apt / name).mkdir(parents=True)
    archive = _archive()
    suites = sorted(set(packages.values()))
    lines = [f"deb [signed-by={KEYRING}] {archive} {suite} main\n" for suite in suites]
    (apt / "sources.list").write_text("".join(lines))
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    options = [text for name, value in settings.items() for text in ("-o", f"{name}={value}")]
    foreign = {package.partition(":")[2] for package in packages} - {""}
    options += [text for name in sorted(foreign) for text in ("-o", f"APT::Architectures::={name}")]
    _run(["apt-get", *options, "--quiet", "update"], apt)
    # With the suite named, a newer package of the same name from elsewhere is not preferred.
    _run(["apt-get", *options, "--quiet", "download", *(f"{n}/{s}" for n, s in packages.items())], apt / "deb")
    for package in sorted((apt / "deb").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(into)], apt)
        say(f"  {package.name}")
    shutil.rmtree(apt)
    busybox = into / "usr/bin/busybox"
    if "busybox-static" in packages and not busybox.exists():
        busybox.symlink_to("../../bin/busybox")
    if missing := [path for path in needed if not (into / path).exists()]:
        raise Unavailable(f"the distribution's packages no longer have {', '.join(missing)}")


def _archive() -> str:
    """The Debian archive that this machine's own apt uses."""
    if not shutil.which("apt-get") or not KEYRING.exists():
        raise Unavailable("programs are taken from Debian packages here, and this is not a Debian machine")
    for path in (*sorted(Path("/etc/apt/sources.list.d").glob("*")), Path("/etc/apt/sources.list")):
        text = path.read_text() if path.is_file() else ""
        if found := re.search(r"^(?:URIs:|deb\s+(?:\[[^]]*\]\s+)?)\s*(\S+/debian)/?(?:\s|$)", text, re.MULTILINE):
            return found.group(1)
    raise Unavailable("no Debian archive among this machine's apt sources (/etc/apt/sources.list*)")


def _run(command: list[str], cwd: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise Unavailable(f"`{command[0]} {command[-1]}` failed: {done.stderr.strip()[-400:]}")
