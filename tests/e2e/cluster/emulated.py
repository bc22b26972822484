"""The Python packages of this environment for containers of the real node."""

import sys
import sysconfig
from typing import Any


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
