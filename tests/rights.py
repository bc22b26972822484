"""What tests may do on this machine: some lay out rooms of their own, which root in a plain container may not."""

import os
import shutil
import subprocess

import pytest

ROOMS = ("unshare", "--mount", "--pid", "--cgroup", "--fork")


def _may_make_rooms() -> bool:
    """Tried, not guessed: root alone says nothing inside a container."""
    if os.geteuid() != 0 or not shutil.which(ROOMS[0]):
        return False
    return not subprocess.run([*ROOMS, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode


rooms = pytest.mark.skipif(
    not _may_make_rooms(), reason="namespaces and mounts need root with CAP_SYS_ADMIN; a container needs --privileged"
)
"""For tests that make namespaces or mounts."""
