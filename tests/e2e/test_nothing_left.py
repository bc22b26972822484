"""A cluster leaves nothing behind, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import cgroups
from cluster.control_plane import ControlPlane
from cluster.images import BUSYBOX
from cluster.kubelet_node import KubeletNode
from cluster.namespaces import PREFIX, sweep
from cluster.parts import until
from cluster.prepare import Parts

HERE = Path(__file__).resolve().parent
MOUNTED = re.compile(f"{PREFIX}|/kubelet|/containerd")
SYSCTLS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
OWNER = """
import sys, time
from cluster.control_plane import ControlPlane
from cluster.kubelet_node import KubeletNode
from cluster.prepare import prepare
plane = ControlPlane(prepare())
plane.start()
KubeletNode(plane).start()
print(plane.rooms.state, flush=True)
time.sleep(1000)
"""


def machine() -> dict[str, object]:
    """What a cluster could change on a machine for everybody: interfaces and kernel settings."""
    return {
        "interfaces": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in SYSCTLS},
    }


def traces(state: Path) -> list[str]:
    """What is there of the cluster of this folder: itself, its cgroups, its mounts, its processes."""
    own = state.name.replace(PREFIX, "aliquot-")
    places = [state, *(place / own for place in cgroups.hierarchies())]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if MOUNTED.search(line)]
    return [*(str(path) for path in places if path.exists()), *mounts, *processes_naming(str(state))]


def processes_naming(text: str) -> list[str]:
    """Command lines of living processes that mention a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


@dataclass
class Second:
    """A cluster beside the shared one, with a real node; `before` is how the machine was without it."""

    plane: ControlPlane
    node: KubeletNode
    before: dict[str, object]


@pytest.fixture(scope="module")
def second(control_plane: ControlPlane, cluster_parts: Parts) -> Iterator[Second]:
    """Started once for this file; the last test on it ends it."""
    before = machine()
    plane = ControlPlane(cluster_parts)
    plane.start()
    node = KubeletNode(plane)
    try:
        node.start()
        yield Second(plane, node, before)
    finally:
        plane.close()


def test_all_is_gone_after_a_cluster(control_plane: ControlPlane, second: Second):
    """A cluster with a real node and a running pod, beside another cluster, disappears without a trace."""
    state = second.plane.rooms.state
    second.plane.create_pod("default", "runs", BUSYBOX, "/bin/sleep", "1000")
    second.plane.wait_running("default", "runs")
    assert len(cgroups.hierarchies()) <= len(traces(state))

    second.plane.close()

    assert [] == traces(state)
    assert second.before == machine()
    assert "ok" == control_plane.api.get("/readyz")


def test_a_cluster_ends_with_its_owner(control_plane: ControlPlane):
    """When the process that holds a cluster is killed, the cluster's processes end and the next one clears the rest."""
    before = machine()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment)
    assert owner.stdout
    with owner.stdout:
        state = Path(owner.stdout.readline().strip())
    assert processes_naming(str(state))

    owner.send_signal(signal.SIGKILL)
    owner.wait()

    until(lambda: not processes_naming(str(state)), "the end of the cluster's processes")
    sweep()
    assert [] == traces(state)
    assert before == machine()


def test_the_owner_of_a_folder_is_known(control_plane: ControlPlane):
    """A living cluster is not swept away by the next one: its folder says who owns it and since when."""
    sweep()

    owner = json.loads((control_plane.rooms.state / "owner.json").read_text())
    assert os.getpid() == owner["pid"]
