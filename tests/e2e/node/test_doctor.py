"""`aliquot doctor --node` on the real node: a fault that breaks pods is named, and its way out mends them."""

import json
import subprocess
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
