"""Emulated GPUs for containers of the real node, and the Python packages that use them."""

import sys
import sysconfig
from typing import Any

from aliquot.driver.emulation import EmulatedMachine, prepare

from .kubelet_node import KubeletNode

DRIVER = "/usr/local/emulated"
"""Where a container finds the emulated driver's libraries; `LD_LIBRARY_PATH` names it."""


def emulated_gpus(node: KubeletNode, spec: str = "v100x2") -> EmulatedMachine:
    """Gives the node emulated GPUs such as `v100x2`; all containers that mount them share one clock and one ledger."""
    return prepare(node.control_plane.rooms.state / "gpus", spec)


def driver_edits(machine: EmulatedMachine) -> dict[str, Any]:
    """What a CDI device adds to a container that is to have all GPUs of the machine."""
    mount = {"hostPath": str(machine.directory), "containerPath": DRIVER, "options": ["rw", "nosuid", "nodev", "bind"]}
    return {"env": [f"LD_LIBRARY_PATH={DRIVER}"], "mounts": [mount]}


def with_packages(container: dict[str, Any]) -> dict[str, Any]:
    """Fields of a pod's spec whose container imports the packages of this Python environment (numba, cuda).

    They are shown where the Python of the image has its own, for some (numba-cuda) do things at Python's start and look
    for libraries beside themselves there.
    """
    own = f"/usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    volume = {"name": "packages", "hostPath": {"path": sysconfig.get_path("purelib"), "type": "Directory"}}
    mount = {"name": "packages", "mountPath": own, "readOnly": True}
    container = {**container, "volumeMounts": [*container.get("volumeMounts", ()), mount]}
    return {"container": container, "volumes": [volume]}
