"""Which container a process is in, by what the kernel shows of it."""

from __future__ import annotations

import pytest

from aliquot.standalone.orphans import container_in

USERS = "/user.slice/user-1000.slice"
STORAGE = "/home/ann/.local/share/containers/storage"
ID = "52d55c959c46" + "0123456789abcdef" * 3 + "0123"


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        (f"0::/system.slice/docker-{ID}.scope\n", "docker 52d55c959c46"),
        (f"4:memory:/docker/{ID}\n0::/\n", "docker 52d55c959c46"),
        (f"0::/jobs/{ID}\n36 1 8:1 /srv/containers/{ID}/hostname /etc/hostname rw\n", "docker 52d55c959c46"),
        (f"0::{USERS}/user@1000.service/user.slice/libpod-{ID}.scope/container\n", "podman 52d55c959c46"),
        (f"9:name=systemd:/libpod_parent/libpod-{ID}\n", "podman 52d55c959c46"),
        (f"0::/\n12 0:2 {STORAGE}/overlay-containers/{ID}/userdata/hosts /etc/hosts rw\n", "podman 52d55c959c46"),
        (f"0::/\n12 11 0:2 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw\n", "docker 52d55c959c46"),
        (f"0::{USERS}/session-1.scope\n", ""),
        (f"0::/\n12 11 0:2 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/{ID}/diff\n", ""),
    ],
)  # fmt: skip
def test_the_tool_and_the_short_id_are_read(facts: str, named: str):
    """From the cgroup where the container has one of its own, else from its files that are mounted."""
    assert named == container_in(facts.encode())
