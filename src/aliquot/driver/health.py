"""GPU health: NVML is queried in a separate process, which prints a line of JSON at every change.

A GPU is unhealthy when it does not answer, when the driver asks for a recovery action, or after an XID that is more
than an error of a program. Each ends in its own way: a lost GPU answers again, a recovery action is done, and an XID
ends with the programs that it hit or with a reset of the GPU (`ends_with`). A reset is seen by the recovery action,
where the driver knows that, or by a GPU that did not answer and answers again. What cannot be observed is written by
the process that reads the lines: `{"well": ["GPU-..."]}` on stdin forgets a GPU's XIDs, `{"known": {"GPU-...": "XID
79"}}` tells what an earlier watcher saw. The process ends when stdin is closed.

Sources: NVIDIA, XID errors (immediate action of each); NVIDIA's device plugin for Kubernetes (XIDs it passes over).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aliquot.driver.nvml import load_nvml

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Graphics engine exception, page fault, stopped processing, preemptive cleanup, video processor, switch time-out."""
CONTAINED_XIDS: Final = frozenset({94})
"""A memory error that hit only the programs that were on the GPU."""
WAIT_MS: Final = 1000
REOPEN_S: Final = 5.0
SETTLED_S: Final = 10.0
"""How long after an XID a driver that requires no recovery action is trusted."""
ACTIONS: Final = {1: "a reset of the GPU", 2: "a reboot of the node", 3: "peer-to-peer traffic to end",
                  4: "a reset of the GPU when it is empty", 7: "a reboot of the system"}  # fmt: skip

Ending = Literal["nothing", "program", "reset"]


def ends_with(xid: int) -> Ending:
    """What ends the problem that an XID reports; `nothing` if the GPU has none."""
    if xid in APPLICATION_XIDS:
        return "nothing"
    return "program" if xid in CONTAINED_XIDS else "reset"


@dataclass
class _Trouble:
    """An XID of a GPU: its time, and the programs whose end clears it (None: a reset does)."""

    since_s: float
    pids: set[int] | None = None


@dataclass
class _Gpu:
    handle: Any
    lost: str = ""
    action: int | None = None
    xids: dict[str, _Trouble] = field(default_factory=dict)

    @property
    def why(self) -> str:
        """Why it is unhealthy; empty if it is healthy."""
        if self.lost:
            return f"does not answer ({self.lost})"
        if self.xids:
            return ", ".join(self.xids)
        return f"the driver asks for {ACTIONS.get(self.action, 'recovery')}" if self.action else ""


class Watch:
    """The health of all GPUs, brought up to date by `update`. `nvml` is pynvml; its calls may block for a second."""

    def __init__(self, nvml: Any, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._note = note
        self._clock = clock
        self._gpus: dict[str, _Gpu] = {}
        self._silent: dict[int, str] = {}
        self._events: Any = None
        self._open()
        note(f"watching {len(self._gpus)} GPUs")

    @property
    def gpus(self) -> list[str]:
        """All GPUs that answer."""
        return sorted(uuid for uuid, gpu in self._gpus.items() if not gpu.lost)

    @property
    def unhealthy(self) -> dict[str, str]:
        """The unhealthy GPUs, by UUID, with the reason."""
        return {uuid: gpu.why for uuid, gpu in sorted(self._gpus.items()) if gpu.why}

    def know(self, unhealthy: Mapping[str, str]) -> None:
        """Take over what an earlier watcher saw and this one cannot: GPUs that wait for a reset."""
        for uuid, why in unhealthy.items():
            if uuid in self._gpus and why.startswith("XID"):
                self._gpus[uuid].xids |= {xid: _Trouble(self._clock()) for xid in why.split(", ")}

    def well(self, uuids: Iterable[str]) -> None:
        """Forget the XIDs of these GPUs; what the driver reports still stays."""
        for uuid in uuids:
            if uuid in self._gpus:
                self._gpus[uuid].xids.clear()

    def wait(self) -> None:
        """Wait for the next XID, a second at most."""
        if self._events is None:
            time.sleep(WAIT_MS / 1000)
            return
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, WAIT_MS)
            uuid = self._nvml.nvmlDeviceGetUUID(event.device)
        except self._nvml.NVMLError_Timeout:
            return
        except self._nvml.NVMLError as error:
            # As when a GPU falls off the bus: it is found by `update`, and the set is made anew with the others.
            self._note(f"no XIDs can be waited for: {error}")
            time.sleep(WAIT_MS / 1000)
            self._open()
            return
        xid = int(event.eventData)
        ending = ends_with(xid)
        if ending != "nothing" and uuid in self._gpus:
            gpu = self._gpus[uuid]
            pids = self._pids(gpu) if ending == "program" else None
            gpu.xids[f"XID {xid}"] = _Trouble(self._clock(), pids)

    def update(self) -> None:
        """Query the health of every GPU."""
        nvml = self._nvml
        for gpu in self._gpus.values():
            try:
                nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
            except nvml.NVMLError as error:
                gpu.lost = str(error)
                continue
            before, gpu.action = gpu.action, None  # which stays where the driver reports none at all, not even 0
            with contextlib.suppress(nvml.NVMLError):
                (value,) = nvml.nvmlDeviceGetFieldValues(gpu.handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
                gpu.action = int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None
            reset = bool(gpu.lost) or (bool(before) and gpu.action == 0)
            gpu.lost = ""
            running = self._pids(gpu) if any(trouble.pids is not None for trouble in gpu.xids.values()) else set()
            for xid, trouble in list(gpu.xids.items()):
                settled = gpu.action == 0 and self._clock() - trouble.since_s > SETTLED_S
                ended = trouble.pids is not None and not (trouble.pids & running)
                if reset or settled or ended:
                    del gpu.xids[xid]

    def reopen(self) -> None:
        """Ask for new handles where a GPU is silent: those of before a reset never answer again."""
        if self._silent or any(gpu.lost for gpu in self._gpus.values()):
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()
            self._open()

    def _open(self) -> None:
        self._nvml.nvmlInit()
        silent: dict[int, str] = {}
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
            except self._nvml.NVMLError as error:
                silent[index] = str(error)
                if index not in self._silent:
                    self._note(f"GPU {index} does not answer: {error}")
            else:
                self._gpus.setdefault(uuid, _Gpu(handle)).handle = handle
        self._silent = silent
        self._events = None
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:  # then only loss is detected
            self._note(f"no XIDs are reported here: {error}")
            return
        for uuid, gpu in self._gpus.items():
            try:
                nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                self._note(f"{uuid} does not tell of XIDs: {error}")
        self._events = events

    def _pids(self, gpu: _Gpu) -> set[int]:
        """The programs on a GPU; none where the driver does not say."""
        try:
            return {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)}
        except self._nvml.NVMLError:
            return set()


def _print(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(libnvml: str) -> None:
    """Print the health at every change, until stdin is closed."""
    watch = Watch(load_nvml(libnvml), lambda note: _print(note=note))
    printed: object = None
    reopened_s = time.monotonic()
    while True:
        while select.select([0], [], [], 0)[0]:
            orders = os.read(0, 1 << 16)
            if not orders:
                return
            for line in orders.splitlines():
                order = json.loads(line)
                watch.know(order.get("known", {}))
                watch.well(order.get("well", ()))
        watch.update()
        if printed != (printed := (watch.unhealthy, watch.gpus)):
            _print(unhealthy=watch.unhealthy, gpus=watch.gpus)
        watch.wait()
        if time.monotonic() - reopened_s > REOPEN_S:
            watch.reopen()
            reopened_s = time.monotonic()


if __name__ == "__main__":
    main(sys.argv[1])
