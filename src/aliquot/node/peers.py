"""What a container and a pod get in the dialect of the project that they were written for.

Programs of other projects look for variables in their container, and tools for annotations on a pod whose containers
have their devices. Both are written in the pod's own dialect only.

Source: gpushare-device-plugin, pkg/gpu/nvidia/allocate.go; HAMi, pkg/device-plugin/nvidiadevice/nvinternal/plugin.
"""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.kube.dialects import of_origin
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.objects import Pod
from aliquot.kube.plan import PodPlan
from aliquot.model.requests import Device
from aliquot.node.machine import Machine
from aliquot.node.pods import NodePod


def environment(
    pod: NodePod | None, container: str, plan: PodPlan, machine: Machine, dialects: Mapping[str, Dialect]
) -> tuple[str, ...]:
    """`NAME=value` for each variable that the project's device plugin would set in the container."""
    if pod is None:
        return ()
    asking = Pod(pod.metadata, pod.spec)
    dialect = of_origin(asking, dialects)
    if dialect is None:
        return ()
    devices: dict[str, Device] = {device.uuid: device for device in machine.gpus}
    return tuple(f"{name}={value}" for name, value in dialect.environment(asking, container, plan, devices).items())


def started(pod: NodePod | None, dialects: Mapping[str, Dialect]) -> dict[str, str]:
    """The annotations that the project's device plugin writes on a pod when it has given out its devices."""
    if pod is None:
        return {}
    asking = Pod(pod.metadata, pod.spec)
    dialect = of_origin(asking, dialects)
    return dialect.started(asking) if dialect is not None else {}
