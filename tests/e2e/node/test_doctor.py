"""`aliquot doctor --node` on the real node: a fault that breaks pods is named, and its way out mends them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.ours import program, surroundings
from cluster.parts import until
from node_scene import LONG, Scene

pytestmark = LONG


@pytest.fixture
def node_root(scene: Scene, tmp_path: Path) -> Iterator[Path]:
    """The node's root as a container would have it mounted; configuration and cgroups lie where machines have them."""
    root = scene.node.path("/")
    links = {"etc/containerd/config.toml": root / "containerd.toml", "sys/fs/cgroup": Path("/sys/fs/cgroup")}
    for name, target in links.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    (root / "doctor.yaml").write_text("emulate: v100x2\n")
    yield root
    for name in links:
        (root / name).unlink()


def faults(root: Path) -> dict[str, tuple[str, str]]:
    """What -> (found, way out), of all that is wrong; the exit status says whether there is something."""
    words = program("doctor", "--node", "--root", str(root), "--config", str(root / "doctor.yaml"), "-o", "json")
    done = subprocess.run(words, capture_output=True, text=True, env=surroundings())
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)["findings"]
    found = {one["what"]: (one["found"], one["way_out"]) for one in told if one["state"] == "fault"}
    assert bool(found) == (done.returncode == 1)
    return found


def test_cdi_that_is_off_breaks_pods_and_its_way_out_mends_them(scene: Scene, node_root: Path):
    """containerd without CDI starts containers without their GPU; with what the doctor says they have it."""
    config = scene.node.path("/containerd.toml")
    right = config.read_text()
    assert {} == faults(node_root)

    config.write_text(right.replace("enable_cdi = true", "enable_cdi = false"))
    scene.plane["containerd"].restart()
    scene.create("blind", {"main": scene.slice(0, 300)})
    until(lambda: scene.phase("blind") == "Failed", "the program's end", 60)
    (found, way_out) = faults(node_root)["container runtime"]

    assert "containerd has CDI off, so a container's GPU is never added to it" == found
    assert "set enable_cdi = true in /etc/containerd/config.toml and restart containerd" == way_out
    config.write_text(right)
    scene.plane["containerd"].restart()
    assert {} == faults(node_root)
    scene.create("sees", {"main": scene.slice(0, 300)})
    assert [scene.gpus[0]] == scene.told("sees")["uuids"]


def test_parts_that_died_are_told(scene: Scene, node_root: Path):
    """An agent and an arbiter that were killed leave their sockets, a kubelet that ended leaves its own."""
    scene.agent.kill()
    scene.arbiter.kill()

    told = faults(node_root)

    assert {"agent", "arbiter"} == set(told)
    assert "is left over: the agent that made it is gone" in told["agent"][0]
    assert "the arbiter does not answer" in told["arbiter"][0]
    scene.arbiter.start()
    scene.agent.start()
    until(lambda: faults(node_root) == {}, "a sound node")
    scene.plane["kubelet"].stop()
    assert {"kubelet"} <= set(faults(node_root))


def test_a_full_disk_is_told(scene: Scene, node_root: Path):
    """As the node has it, seen from inside of it."""
    rooms = scene.plane.rooms
    rooms.run(["/bin/mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/var/lib/aliquot"])
    try:
        rooms.run(["/bin/sh", "-c", "head -c 4096 /dev/zero > /var/lib/aliquot/full; true"])
        code = (
            "from pathlib import Path; from aliquot.node.doctor.reading import folder_state; "
            "print(folder_state(Path('/var/lib/aliquot')))"
        )
        environment = [f"{name}={value}" for name, value in surroundings().items()]
        said = rooms.run(["/usr/bin/env", *environment, sys.executable, "-c", code])
    finally:
        rooms.run(["/bin/umount", "/var/lib/aliquot"])

    assert "full" == said.strip()
    assert {} == faults(node_root)
