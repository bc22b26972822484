"""Pods whose containers are of several kinds: each another image and command."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import container_roots
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from node_scene import Scene

from aliquot.kube.names import GPU_PERCENT
from aliquot.kube.plan import ContainerPlan, PodPlan

DEBIAN, REDHAT = "/usr/lib/x86_64-linux-gnu", "/usr/lib64"
EMPTY = ("/bin/busybox", "env", "-i", "/client")
OUT_OF_MEMORY = 2


class Kind(NamedTuple):
    """A root, what is run in it, and the folder in which its loader finds our library: empty, it never looks."""

    root: str
    command: Sequence[str]
    folder: str = ""


def with_images(node: KubeletNode) -> KubeletNode:
    """The node, with an image of every kind of root."""
    busybox = Path(node.control_plane.programs.program("busybox"))
    for archive in sorted(container_roots.archives(busybox).glob("*.tar")):
        node.import_image(archive)
    return node


def start(
    scene: Scene, pod: str, kinds: Mapping[str, Kind], *, mounts: Sequence[Mapping[str, Any]] = (), **spec: Any
) -> dict[str, int]:
    """A pod with a container of each kind, all with a tenth of GPU 0; each one's own MiB.

    `mounts` are every container's volume mounts, `spec` further fields of the pod's.
    """
    mib = {name: 600 + 8 * place for place, name in enumerate(kinds)}
    containers = [
        {
            "name": name, "image": container_roots.image(kind.root), "imagePullPolicy": "Never",
            "command": list(kind.command), "resources": {"limits": {GPU_PERCENT: "10"}}, "volumeMounts": list(mounts),
        }
        for name, kind in kinds.items()
    ]  # fmt: skip
    body = {
        "metadata": {"name": pod},
        "spec": {
            "schedulerName": "nobody", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": containers, **spec,
        },
    }  # fmt: skip
    made = scene.plane.api.create(f"/api/v1/namespaces/{scene.namespace}/pods", body)[0]
    plan = {name: ContainerPlan((scene.slice(0, 100, mib=mib[name]),)) for name in kinds}
    scene.bind(pod, made["metadata"]["uid"], PodPlan(scene.node.name, plan))
    return mib


def end_of(scene: Scene, pod: str) -> str:
    """The phase in which a pod ends."""

    def ended() -> str:
        phase = scene.phase(pod)
        return phase if phase in ("Succeeded", "Failed") else ""

    return until(ended, f"the end of {pod}", 60)


def right(scene: Scene, kind: Kind, mib: int, seen: dict[str, Any]) -> bool:
    """Whether a client saw its own share of GPU 0, through our library and the driver behind it and nothing else."""
    loaded = {str(Path(path).parent) for path in seen.get("libraries", ())}
    share = (seen.get("total_mib"), f"GPU-{seen.get('uuid')}", seen.get("over"))
    return (mib, scene.gpus[0], OUT_OF_MEMORY) == share and {kind.folder, str(scene.emulated)} == loaded
