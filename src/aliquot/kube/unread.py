"""Words for GPUs that no dialect reads: those of other plugins and schedulers, and what to write in their place.

They are left as they are, since a plugin of theirs may serve them beside Aliquot; a pod that relies on Aliquot would
wait for ever, or run without a GPU, so its author is told.

Facts: NVIDIA/KAI-Scheduler docs/gpu-sharing; volcano-sh/devices README.md; koordinator.sh docs,
device-scheduling-gpu-share; Alibaba Cloud ACK and Tencent Cloud TKE user guides; elastic-gpu README.md.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import Any, Final

from aliquot.kube import names
from aliquot.kube.dialects import FOREIGN
from aliquot.kube.requests import MAX_FAULTS

_MODEL: Final = "gaia.tencent.com/gpu-model"
_SHARE: Final = f"for a share of Aliquot's write {names.GPU_PERCENT} and {names.GPU_MEMORY} in resources.limits"
_UNKNOWN: Final = "it is not known here"
_WHOLE: Final = f"for whole GPUs of Aliquot's write {names.GPU_PERCENT}: 100 for each in resources.limits"
RESOURCES: Final = {
    "volcano.sh/vgpu-": _SHARE,
    "volcano.sh/gpu-": _SHARE,
    "koordinator.sh/gpu": _SHARE,
    "aliyun.com/gpu-core": f"write {names.GPU_PERCENT}",
    "aliyun.com/gpu-count": _WHOLE,
    "aliyun.com/gpu": _SHARE,
    "tke.cloud.tencent.com/qgpu-": _SHARE,
    "elasticgpu.io/": _SHARE,
    "4pd.io/": _SHARE,
    "metax-tech.com/": "Aliquot shares NVIDIA's GPUs",
    "nvidia.com/mig-": f"Aliquot gives no MIG instances; {_SHARE}",
    "nvidia.com/vgpu": _SHARE,
    "nvidia.com/gpu.shared": _SHARE,
    "alpha.kubernetes.io/nvidia-gpu": _WHOLE,
}
"""How names of resources begin, and the way out; the first that fits counts."""

READ: Final = tuple(sorted({name for dialect in FOREIGN.values() for name in dialect.owned.resources}))
"""Resources that are read. Others that begin like one of them request a GPU in words that are not known here."""

ANNOTATIONS: Final = {
    "gpu-fraction": f"write {names.GPU_PERCENT}, hundredths of a GPU, in resources.limits",
    "gpu-memory": f"write {names.GPU_MEMORY}, as in 4Gi, beside {names.GPU_PERCENT} in resources.limits",
}
"""Whole names, of run.ai and KAI."""


def way_out(name: str) -> str:
    """What to write in place of a resource; empty for one that is read, or that requests no GPU."""
    if name in READ:
        return ""
    way = next((way for start, way in RESOURCES.items() if name.startswith(start)), "")
    return way or (_UNKNOWN if name.startswith(READ) else "")


def model_affinity(pod: dict[str, Any]) -> dict[str, str]:
    """gpu-manager's label for the model where it is not read, with the way out, by its path."""
    path = "spec.affinity.nodeAffinity"
    affinity = ((pod.get("spec") or {}).get("affinity") or {}).get("nodeAffinity") or {}
    if _MODEL not in json.dumps(affinity):
        return {}
    return {f'{path}["{_MODEL}"]': f"write it in spec.nodeSelector, or {names.GPU_MODEL} in metadata.annotations"}


def unread(pod: dict[str, Any]) -> list[str]:
    """A sentence for each such word of a pod, with its path; for the first sixteen."""
    notes = (pod.get("metadata") or {}).get("annotations") or {}
    found = {f'metadata.annotations["{key}"]': way for key, way in ANNOTATIONS.items() if key in notes}
    found |= model_affinity(pod)
    spec = pod.get("spec") or {}
    for place in ("initContainers", "containers"):
        for container in spec.get(place) or []:
            resources = container.get("resources") or {}
            for name in (*(resources.get("limits") or {}), *(resources.get("requests") or {})):
                if way := way_out(name):
                    found[f'spec.{place}[{container.get("name", "?")}].resources.limits["{name}"]'] = way
    return [
        f"{where} is not {'known' if way == _UNKNOWN else 'read'} here and is left as it is"
        f"{'' if way == _UNKNOWN else f'; {way}'}"
        for where, way in islice(found.items(), MAX_FAULTS)
    ]
