"""A node without kubelet: an emulated machine, a real arbiter, and one tenant's seat."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.requests import Slice
from aliquot.node.checkpoint import PodKey
from aliquot.node.machine import find_machine
from aliquot.node.seating import Seat, Seating

NODE = "node-1"


class Room:
    """`seat` is that of a container with 0.3 of the first GPU and 256 MiB."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.machine = find_machine("v100x2", self.folder / "emulated")
        (self.folder / "tenants").mkdir()
        command = [sys.executable, "-m", "aliquot.arbiter", "--runtime-dir", str(self.folder)]
        self.arbiter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        assert self.arbiter.stdout and self.arbiter.stdout.readline() == "ready\n"
        self.seating = Seating(NODE, self.machine, self.folder / "tenants", self.folder)
        piece = Slice(self.machine.gpus[0].uuid, 300, 1000, 256)  # type: ignore[arg-type]
        plan = PodPlan(NODE, {"main": ContainerPlan((piece,))})
        self.seat: Seat = self.seating.take(PodKey("uid-a", "team", "train"), "main", plan)

    @property
    def library(self) -> Path:
        """The tenant's own copy of the hook."""
        return Path(self.seat.record.socket).parent / "lib" / "libaliquot.so"

    def kill_arbiter(self) -> None:
        """As a crash does."""
        self.arbiter.kill()
        self.arbiter.wait()

    def close(self) -> None:
        """Ends everything."""
        self.kill_arbiter()
        assert self.arbiter.stdout
        self.arbiter.stdout.close()
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)
