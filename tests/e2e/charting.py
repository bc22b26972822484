"""helm, as a person runs it against the test cluster."""

import os
import subprocess

from cluster.control_plane import ControlPlane
from scheduling import ROOT

CHART = ROOT / "deploy" / "chart"


def run(helm: str, *arguments: str, plane: ControlPlane | None = None, status: int = 0) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(plane.rooms.state) if plane else "/nonexistent"}
    if plane:
        environment["KUBECONFIG"] = str(plane.kubeconfig)
    done = subprocess.run([helm, *arguments], capture_output=True, text=True, env=environment, timeout=330)
    assert status == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr
