"""The node's driver is replaced, or comes from a driver container, while containers run on the real node."""

import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from container_kinds import Kind, start, with_images
from node_scene import Scene, running

from aliquot.driver.native import EMULATED_CUDA, EMULATED_NVML, native_part

pytestmark = pytest.mark.slow
NEW = "599.11.22"
STAYS = Kind("debian", ["/client", "stay"])
VOLUME = "/var/lib/aliquot/driver"
CONTAINER = "/run/nvidia/driver"
CLOCK = "/run/emulated-clock"
# What the emulated driver says of itself when nothing tells it who it is.
BARE = "580.95.05"


def put(folder: Path, name: str, content: bytes) -> None:
    """A file that takes the place of the one that was there, as packages do it: whoever has that open keeps it."""
    fresh = folder / f".{name}.new"
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.replace(folder / name)


def generations(scene: Scene) -> set[str]:
    """The versions of the drivers that the node keeps."""
    folder = scene.node.path(VOLUME)
    return {path.name.partition("-")[0] for path in folder.iterdir() if not path.is_symlink()}


def label(scene: Scene) -> str:
    """The driver's version as the node tells it."""
    labels = scene.plane.api.get(f"/api/v1/nodes/{scene.node.name}")["metadata"]["labels"]
    return labels.get("aliquot.dev/driver", "")


def shown(scene: Scene, pod: str) -> str:
    """The version of the driver that a running container was given, by the runtime's own specification."""
    mounts = scene.node.container_spec(scene.namespace, pod, "main")["mounts"]
    (name,) = {Path(m["source"]).relative_to(VOLUME).parts[0] for m in mounts if m["source"].startswith(f"{VOLUME}/")}
    return name.partition("-")[0]


def loaded(scene: Scene, pod: str) -> str:
    """The version of the mirrored driver that a pod's program has open."""
    (library,) = [path for path in scene.told(pod)["libraries"] if path.startswith(f"{VOLUME}/")]
    return Path(library).relative_to(VOLUME).parts[0].partition("-")[0]


def charged(scene: Scene, pod: str) -> int:
    """Nanoseconds of GPU time that a pod's tenant was ever charged."""
    every = [tenant for gpu in scene.status().gpus for tenant in gpu.tenants]
    return sum(tenant.charged_ns for tenant in every if tenant.name == f"{scene.namespace}/{pod}/main")


def computes(scene: Scene, pod: str) -> bool:
    """Whether the pod's program uses the GPU now."""
    before = charged(scene, pod)
    return bool(until(lambda: charged(scene, pod) > before, f"{pod} to compute"))


def restarts(scene: Scene, pod: str) -> int:
    """How often the pod's container was started anew."""
    return scene.plane.pod(scene.namespace, pod)["status"]["containerStatuses"][0]["restartCount"]


def end_program(scene: Scene, pod: str) -> None:
    """Ends the pod's program as a crash does, and waits for its next life."""
    before = restarts(scene, pod)
    number = scene.plane.pod(scene.namespace, pod)["status"]["containerStatuses"][0]["containerID"]
    scene.node.ctr("tasks", "kill", "--signal", "KILL", number.removeprefix("containerd://"), check=False)
    until(lambda: restarts(scene, pod) > before, f"another life of {pod}", 60)


@pytest.fixture
def node(kubelet_node: KubeletNode) -> KubeletNode:
    """The node with the images."""
    return with_images(kubelet_node)


def agent(node: KubeletNode, spec: str) -> Iterator[Scene]:
    """An agent in a namespace of its own, and afterwards no trace of its pods."""
    name = f"driver-{uuid.uuid4().hex[:8]}"
    node.control_plane.make_namespace(name)
    try:
        with running(node, name, spec) as scene:
            yield scene
            scene.clear()
    finally:
        node.control_plane.remove_namespace(name)


@pytest.fixture
def emulated(node: KubeletNode) -> Iterator[Scene]:
    """An agent with an emulated machine."""
    yield from agent(node, "v100x2")


def test_running_containers_keep_their_driver_through_an_upgrade(emulated: Scene):
    """New ones get the new driver; an old one computes on, also in its next life; the old driver goes with the last
    container that has it."""
    scene = emulated
    old = label(scene)
    start(scene, "before", {"main": STAYS}, restartPolicy="Always")
    scene.told("before")

    machine = scene.node.path(scene.emulated)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        put(machine, name, (machine / name).read_bytes())
    put(machine, "emulator.conf", (machine / "emulator.conf").read_bytes().replace(old.encode(), NEW.encode()))
    until(lambda: label(scene) == NEW, "the new driver's label")
    start(scene, "after", {"main": STAYS})
    scene.told("after")

    assert [old, NEW] == [shown(scene, pod) for pod in ("before", "after")]
    assert f"version={NEW}" in scene.agent.log.read_text()
    end_program(scene, "before")
    assert computes(scene, "before")
    assert computes(scene, "after")
    assert old == shown(scene, "before")
    scene.delete("before")
    until(lambda: old not in generations(scene), "the old driver to go")
    assert computes(scene, "after")


class DriverContainer:
    """NVIDIA's driver container as the node sees it: a root with the driver's files and devices.

    The files are those of the emulated driver. Mirrored it finds no clock beside itself, so it is given one, and pods
    mount it; a real driver needs neither.
    """

    def __init__(self, node: KubeletNode) -> None:
        self.root = node.path(CONTAINER)
        self.node = node
        (self.root / "dev").mkdir(parents=True)
        (self.root / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
        for name in ("nvidiactl", "nvidia0"):
            os.mknod(self.root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        node.path(CLOCK).mkdir()
        self.install(BARE)

    def install(self, version: str) -> None:
        """The container of another version shows its files; those of the one before are gone."""
        place = self.root / "usr/lib/x86_64-linux-gnu"
        before = set(place.iterdir())
        for part, stem in ((EMULATED_CUDA, "libcuda.so"), (EMULATED_NVML, "libnvidia-ml.so")):
            put(place, f"{stem}.{version}", native_part(part).read_bytes())
        for path in before:
            path.unlink()

    def give_clock(self) -> None:
        """To every generation of the volume."""
        for place in self.node.path(VOLUME).glob("*/origin/lib64"):
            if not place.parents[1].is_symlink() and not (place / "engine.shm").is_symlink():
                (place / "engine.shm").unlink(missing_ok=True)
                (place / "engine.shm").symlink_to(f"{CLOCK}/engine.shm")


@pytest.fixture
def driver_container(node: KubeletNode) -> Iterator[tuple[DriverContainer, Scene]]:
    """An agent without an emulated machine, on a node with a driver container."""
    made = DriverContainer(node)
    for scene in agent(node, ""):
        made.give_clock()
        yield made, scene


def clocked(scene: Scene, pod: str) -> None:
    """A pod with the clock that the emulated driver needs."""
    volume = {"name": "clock", "hostPath": {"path": CLOCK}}
    mount = {"name": "clock", "mountPath": CLOCK}
    start(scene, pod, {"main": STAYS}, mounts=[mount], volumes=[volume], restartPolicy="Always")


def test_a_driver_container_is_the_nodes_driver(driver_container: tuple[DriverContainer, Scene]):
    """Its files are mirrored and its devices shown; with its next version new containers get that, old ones go on with
    files that are nowhere else any more, also in their next life, with another agent."""
    container, scene = driver_container
    assert BARE == label(scene)
    clocked(scene, "before")
    assert BARE == loaded(scene, "before")
    devices = scene.node.container_spec(scene.namespace, "before", "main")["linux"]["devices"]
    assert {"/dev/nvidiactl", "/dev/nvidia0"} <= {device["path"] for device in devices}

    container.install(NEW)
    until(lambda: label(scene) == NEW, "the new driver's label")
    container.give_clock()
    clocked(scene, "after")

    assert NEW == loaded(scene, "after")
    assert computes(scene, "before")
    scene.agent.kill()
    scene.agent.start()
    end_program(scene, "before")
    assert computes(scene, "before")
    assert BARE == shown(scene, "before")
    assert {BARE, NEW} == generations(scene)
    scene.delete("before")
    until(lambda: generations(scene) == {NEW}, "the old driver to go")
    assert computes(scene, "after")
