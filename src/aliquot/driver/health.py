"""Is every GPU well? Asked of NVML in a process of its own, which prints a line of JSON for each change.

A GPU is sick when it is lost, or after a critical XID. XIDs that only say that an application erred do not count.
Source of these: NVIDIA's XID catalogue and the list that NVIDIA's own device plugin passes over.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from typing import Any, Final

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics engine exception, page fault, stopped processing, preemptive cleanup, video processor, switch time-out."""
WAIT_MS: Final = 2000


def xid_reason(xid: int) -> str:
    """Why a GPU with that XID is sick; empty when it is not."""
    return "" if xid in APPLICATION_XIDS else f"XID {xid}"


def _watch(libnvml: str) -> None:
    # Loaded by path first: pynvml then asks for the bare name, and the loader answers with the one already here.
    ctypes.CDLL(libnvml, mode=ctypes.RTLD_GLOBAL)
    import pynvml

    pynvml.nvmlInit()
    handles: dict[str, Any] = {}
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        handles[uuid.decode() if isinstance(uuid, bytes) else uuid] = handle
    events = _listen(pynvml, handles)
    _tell(note=f"watching {len(handles)} GPUs")
    lost: set[str] = set()
    while True:
        if events is None:
            time.sleep(WAIT_MS / 1000)
        else:
            with contextlib.suppress(pynvml.NVMLError_Timeout):
                _tell_xid(pynvml, pynvml.nvmlEventSetWait_v2(events, WAIT_MS))
        for uuid, handle in handles.items():
            _tell_presence(pynvml, uuid, handle, lost)


def _listen(nvml: Any, handles: dict[str, Any]) -> Any:
    """The set of events that tells of XIDs; None where the driver has none, so that only loss is seen."""
    try:
        events = nvml.nvmlEventSetCreate()
    except nvml.NVMLError as error:
        _tell(note=f"no XIDs are told here: {error}")
        return None
    for uuid, handle in handles.items():
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            _tell(note=f"{uuid} does not tell of XIDs: {error}")
    return events


def _tell_xid(nvml: Any, event: Any) -> None:
    reason = xid_reason(int(event.eventData))
    if reason:
        uuid = nvml.nvmlDeviceGetUUID(event.device)
        _tell(uuid=uuid.decode() if isinstance(uuid, bytes) else uuid, why=reason)


def _tell_presence(nvml: Any, uuid: str, handle: Any, lost: set[str]) -> None:
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError as error:
        if uuid not in lost:
            lost.add(uuid)
            _tell(uuid=uuid, why=f"does not answer ({error})")


def _tell(**facts: str) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _watch(sys.argv[1])
