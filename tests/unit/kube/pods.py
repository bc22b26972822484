"""Pods in one line each, and those of the files in `tests/data/requests`."""

from pathlib import Path
from typing import Any

import msgspec
import yaml

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


def documents(name: str) -> Any:
    """What a file of `tests/data/requests` holds."""
    return yaml.safe_load((Path(__file__).parents[2] / "data/requests" / f"{name}.yaml").read_text())


def pod_of(row: dict[str, Any]) -> Pod:
    """The pod that a row describes: by the limits of its container `main`, or by the names of its containers."""
    main = limits("main", row["limits"]) if "limits" in row else {"name": "main"}
    containers = [{"name": name} for name in row["containers"]] if "containers" in row else [main]
    return pod(*containers, annotations=row.get("annotations"), labels=row.get("labels"), **row.get("spec", {}))
