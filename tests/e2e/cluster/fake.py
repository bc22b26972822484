"""Nodes with GPUs that nobody has: what a node's agent would have written, with the topology of a real machine.

kwok keeps such a node Ready and plays its pods. It proves scheduling and never allocation.
"""

import json
import re
import uuid
from typing import Any

from aliquot.driver.emulation import PROFILES, profile_topology
from aliquot.driver.gpu import core_list
from aliquot.kube import names

MIB = 1 << 20
BOARD = 8
TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
"""On fake nodes beside a real one, so that a program that shall run goes where it can."""
_UUIDS = uuid.UUID("5d3f2c3e-2f0a-5d0c-8b57-0b6f6a1c9c11")


def gpu_uuid(node: str, index: int) -> str:
    """The UUID of a fake node's GPU: the same in every run."""
    return f"GPU-{uuid.uuid5(_UUIDS, f'{node}/{index}')}"


def fake_node(name: str, profile: str, gpus: int = 0, *, apart: bool = False) -> dict[str, Any]:
    """A Node object with `gpus` GPUs of an emulated profile (0: a full board of 8); 0 GPUs with profile `none`.

    `apart` is for pods that tolerate `TAINT` only.
    """
    devices, labels, annotations, capacity = [], {}, {}, {"cpu": "64", "memory": "256Gi", "pods": "250"}
    if profile != "none":
        made = PROFILES[profile]
        count = gpus or BOARD
        topology = profile_topology(made, count)
        devices = [
            {"index": i, "uuid": gpu_uuid(name, i), "model": made.model, "memory_mib": made.memory_mib}
            for i in range(count)
        ]
        described = {
            "devices": devices,
            "links": [list(row) for row in topology.links],
            "numa": list(topology.numa),
            "cores": [core_list(list(cores)) for cores in topology.cores],
        }
        annotations = {names.GPUS: json.dumps(described, separators=(",", ":"))}
        labels = {
            names.GPU_MODEL: re.sub(r"[^A-Za-z0-9.-]+", "-", made.model),
            f"{names.PREFIX}gpu-count": str(count),
            f"{names.PREFIX}gpu-memory-mib": str(made.memory_mib),
            f"{names.PREFIX}driver": made.driver,
        }
        cores = {core for per_gpu in topology.cores for core in per_gpu}
        capacity |= {
            "cpu": str(len(cores) or 64),
            names.GPU_PERCENT: str(100 * count),
            names.GPU_MEMORY: str(count * made.memory_mib * MIB),
        }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "type": "kwok", **labels},
            "annotations": {"kwok.x-k8s.io/node": "fake", **annotations},
        },
        "spec": {"taints": [TAINT]} if apart else {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            # Born ready, so that a thousand nodes do not wait for kwok one after the other.
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "nobody is there"}],
        },
    }
