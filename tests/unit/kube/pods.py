"""Pods in one line each."""

from typing import Any

import msgspec

from aliquot.kube.objects import Pod


def limits(name: str, values: dict[str, Any], *, always: bool = False) -> dict[str, Any]:
    """A container with these limits."""
    made: dict[str, Any] = {"name": name, "resources": {"limits": values}}
    if always:
        made["restartPolicy"] = "Always"
    return made


def pod(
    *containers: dict[str, Any],
    init: list[dict[str, Any]] | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    name: str = "a",
    uid: str = "",
    **spec: Any,
) -> Pod:
    """A pod of namespace default."""
    document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "spec": {"containers": list(containers), "initContainers": init or [], **spec},
    }
    return msgspec.convert(document, Pod)


def gpu(percent: int, memory: str | None = None) -> dict[str, Any]:
    """Limits in Aliquot's words."""
    return {"aliquot.dev/gpu-percent": percent} | ({"aliquot.dev/gpu-memory": memory} if memory else {})
