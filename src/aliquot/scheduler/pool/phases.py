"""The phases of a vGPU and the content of its status, from facts alone.

    Creating   it has no device yet, or its device is missing
    Active     its device has a tenant
    Idle       its device is ready and has no tenant
    Deleting   its device is being given back; it accepts no new tenant

Source: KubeShare (HPDC'20), 4.4.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from aliquot.kube.clock import seconds_time
from aliquot.kube.custom import VGPU, Attached, VGPUPhase
from aliquot.model.quantities import format_mib, format_milli
from aliquot.scheduler.operator.status import ConditionState, changed, conditions
from aliquot.status.gpus import Gpu


def phase_of(gpu: Gpu | None, *, leaving: bool = False) -> VGPUPhase:
    """The phase of a vGPU with this device; `leaving` if its deletion was decided."""
    if leaving:
        return "Deleting"
    if gpu is None:
        return "Creating"
    return "Active" if gpu.shares else "Idle"


def why(vgpu: VGPU, gpu: Gpu | None, *, leaving: bool) -> ConditionState:
    """The condition Ready."""
    if leaving:
        return ConditionState("Ready", False, "Deleting", "its GPU is being given back")
    if gpu is None:
        known = f"its GPU {vgpu.status.uuid} is missing" if vgpu.status.uuid else "it has no GPU yet"
        return ConditionState("Ready", False, "NoDevice", known)
    return ConditionState("Ready", True, "DeviceReady")


def idle_s(vgpu: VGPU, now: datetime.datetime) -> float:
    """Seconds since the last one left."""
    text = vgpu.status.idle_since
    if text is None:
        return 0.0
    return max(0.0, (now - datetime.datetime.fromisoformat(text)).total_seconds())


def body(vgpu: VGPU, uuid: str, gpu: Gpu | None, now: datetime.datetime, *, leaving: bool) -> dict[str, Any] | None:
    """The merge patch of the status; None if it is up to date."""
    phase = phase_of(gpu, leaving=leaving)
    generation = vgpu.metadata.generation
    attached = [
        Attached(share.tenant, format_milli(share.request_milli), format_mib(share.memory_mib))
        for share in (gpu.shares if gpu else ())
    ]
    idle = phase in ("Idle", "Deleting")
    made = {
        "phase": phase,
        "uuid": uuid or None,
        "model": gpu.model if gpu else vgpu.status.model or None,
        "memory": format_mib(gpu.memory_mib) if gpu else vgpu.status.memory or None,
        "requested": format_milli(sum(share.request_milli for share in gpu.shares)) if gpu else None,
        "attached": msgspec.to_builtins(attached),
        "idleSince": (vgpu.status.idle_since or seconds_time(now)) if idle else None,
        "observedGeneration": generation,
        "conditions": msgspec.to_builtins(
            conditions(vgpu.status.conditions, [why(vgpu, gpu, leaving=leaving)], now, generation)
        ),
    }
    return changed(made, msgspec.to_builtins(vgpu.status))
