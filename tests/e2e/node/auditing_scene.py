"""A node whose arbiter compares NVML's processes with those that registered, and pods with further mounts."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import node_scene
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from node_scene import Scene, running

from aliquot.kube.plan import ContainerPlan, PodPlan
from aliquot.model.requests import Slice

EMULATED = "/run/aliquot/emulated"


@contextmanager
def audited(node: KubeletNode, *flags: str) -> Iterator[Scene]:
    """A scene with further flags of the agent; its arbiter knows the emulated NVML, which the agent makes first."""
    name = f"audit-{uuid.uuid4().hex[:8]}"
    plane = node.control_plane
    plane.make_namespace(name)
    try:
        with running(node, name) as made:
            made.agent.stop()
            made.arbiter.stop()
            made.flags += flags
            made._arbiter_flags += ["--libnvml", f"{EMULATED}/libnvidia-ml.so.1"]
            made.arbiter.start()
            made.agent.start()
            until(made.fit, "a fit agent")
            yield made
            plane.remove_namespace(name)
    finally:
        plane.remove_namespace(name)


def create(
    scene: Scene, name: str, piece: Slice | None, command: Sequence[str], mounts: Mapping[str, str] | None = None
) -> None:
    """A pod of one container with folders of the node mounted; without a slice it asks for no GPU."""
    container: dict[str, Any] = scene._container("main", piece.request_milli // 10 if piece else 1, list(command))
    volumes = node_scene.volumes()
    for number, (inside, host) in enumerate((mounts or {}).items()):
        volumes.append({"name": f"more-{number}", "hostPath": {"path": host}})
        container["volumeMounts"].append({"name": f"more-{number}", "mountPath": inside})
    if piece is None:
        del container["resources"]
    spec = {
        "schedulerName": "nobody", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
        "containers": [container], "volumes": volumes,
    }  # fmt: skip
    if piece is None:
        spec["nodeName"] = scene.node.name
    made = scene.plane.api.create(
        f"/api/v1/namespaces/{scene.namespace}/pods", {"metadata": {"name": name}, "spec": spec}
    )[0]
    if piece is not None:
        scene.bind(name, made["metadata"]["uid"], PodPlan(scene.node.name, {"main": ContainerPlan((piece,))}))
