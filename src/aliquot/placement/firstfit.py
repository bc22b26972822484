"""First fit: the lowest GPU that holds the request.

Whole GPUs come first, then the shared rest on the first device that is left. Labels follow KubeShare 4.4 as DESIGN 4
reads it: an empty device takes anything; a busy one is asked for conflicts; an affinity label never splits over two
devices.
"""

from __future__ import annotations

from aliquot.model.errors import AliquotError, UserError
from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.model.requests import Device, GpuRequest, Plan, Slice
from aliquot.placement.ledger import Ledger


class NoRoom(AliquotError):
    """The machine could hold the request, but others hold too much of it now."""


class NeverFits(UserError):
    """No device of this machine could hold the request, even if it were empty."""


def first_fit(ledger: Ledger, request: GpuRequest) -> Plan:
    """A plan that can be reserved at once.

    Raises:
        NeverFits: the request asks for more than the machine has.
        NoRoom: it would fit on an emptier machine; the text says what is missing on each device.
    """
    candidates = _named(ledger, request)
    _require_possible(candidates, request)
    pieces: list[Slice] = []
    reasons: dict[int, str] = {}
    for device in candidates:
        whole = len(pieces) < request.whole
        if len(pieces) == request.whole + (request.rest_milli > 0):
            break
        reason = _obstacle(ledger, device, request, whole=whole)
        if reason:
            reasons[device.index] = reason
        else:
            pieces.append(_slice(device, request, whole=whole))
    if len(pieces) < request.whole + (request.rest_milli > 0):
        raise NoRoom(_explain(reasons))
    return Plan(tuple(pieces))


def _named(ledger: Ledger, request: GpuRequest) -> list[Device]:
    devices = ledger.devices
    if request.gpu:
        found = [d for d in devices if request.gpu in (str(d.index), d.uuid)]
        if not found:
            known = ", ".join(f"{d.index}" for d in devices)
            raise NeverFits(f'there is no GPU "{request.gpu}" here; there are GPU {known} (or their UUIDs)')
        devices = found
    if request.model:
        wanted = request.model.lower()
        fitting = [d for d in devices if wanted in d.model.lower()]
        if not fitting:
            models = ", ".join(sorted({d.model for d in devices}))
            raise NeverFits(f'no GPU of model "{request.model}" here; there is {models}')
        devices = fitting
    return devices


def _require_possible(devices: list[Device], request: GpuRequest) -> None:
    needed = request.whole + (request.rest_milli > 0)
    if needed > len(devices):
        raise NeverFits(
            f"{format_milli(request.request_milli)} GPUs were asked, {len(devices)} can be given; "
            f"ask for at most {len(devices)}.0"
        )
    if request.memory is None:
        return
    largest = max(devices, key=lambda d: d.memory_mib)
    asked = request.memory_on(largest.memory_mib)
    if asked > largest.memory_mib:
        raise NeverFits(
            f"{format_mib(asked)} of GPU memory were asked, GPU {largest.index} has {format_mib(largest.memory_mib)} "
            f"in all; ask for less"
        )


def _slice(device: Device, request: GpuRequest, *, whole: bool) -> Slice:
    if whole:
        memory = request.memory_on(device.memory_mib) if request.request_milli == MILLI else device.memory_mib
        return Slice(device.uuid, MILLI, MILLI, memory)
    limit = request.ceiling_milli - request.whole * MILLI
    return Slice(device.uuid, request.rest_milli, limit, request.memory_on(device.memory_mib))


def _obstacle(ledger: Ledger, device: Device, request: GpuRequest, *, whole: bool) -> str:
    """Why the device can not take the next slice; empty when it can."""
    piece = _slice(device, request, whole=whole)
    free_milli, free_mib = ledger.free_milli(device.uuid), ledger.free_memory_mib(device.uuid)
    if piece.request_milli > free_milli:
        return f"has {format_milli(free_milli)} unreserved, {format_milli(piece.request_milli)} were asked"
    if piece.memory_mib > free_mib:
        return f"has {format_mib(free_mib)} unreserved, {format_mib(piece.memory_mib)} were asked"
    return _label_obstacle(ledger, device, request)


def _label_obstacle(ledger: Ledger, device: Device, request: GpuRequest) -> str:
    labels, here = request.labels, ledger.residents(device.uuid)
    elsewhere = [r for d in ledger.devices if d.uuid != device.uuid for r in ledger.residents(d.uuid)]
    if request.gpu_id and any(r.gpu_id == request.gpu_id for r in elsewhere):
        return f'is not the one that is called "{request.gpu_id}"'
    if request.gpu_id and any(r.gpu_id not in ("", request.gpu_id) for r in here):
        return "is called by another name"
    if labels.affinity and any(r.labels.affinity == labels.affinity for r in elsewhere):
        return f'is not where affinity "{labels.affinity}" is'
    if labels.anti_affinity and any(r.labels.anti_affinity == labels.anti_affinity for r in here):
        return f'has a resident with anti-affinity "{labels.anti_affinity}" too'
    if any(r.labels.exclusion != labels.exclusion for r in here):
        return "is exclusive to others"
    return ""


def _explain(reasons: dict[int, str]) -> str:
    listed = "; ".join(f"GPU {index} {reason}" for index, reason in list(reasons.items())[:4])
    more = f" (and {len(reasons) - 4} more)" if len(reasons) > 4 else ""
    return f"{listed}{more}. Free the rest: aliquot get tenants"
