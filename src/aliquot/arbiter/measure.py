"""What contexts and modules really cost, read from NVML by a slow thread beside the loop.

A process's use that its leases do not explain is context and module memory. A larger measurement always corrects the
allowance; a smaller one only while nothing is leased, because a lease may be partly unused and would hide in the sum.
Memory that was in use when NVML was queried may have been returned since: a sample is compared with the maximum leased
in the meantime, and is discarded if a context has ended in the meantime.

A process that has one context and has leased nothing since the sample before last uses its context alone. What that
takes is the allowance of later contexts on this GPU, in place of the one in the tenant's record, which is a guess.
Contexts differ, and a process may hide memory, so the least that was seen counts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aliquot.driver.nvml import load_nvml

from .engine import Dispatcher
from .grants import GrantState, Seen
from .leases import Earlier
from .linux import start_ticks
from .pages import memfd_name
from .records import EventRing
from .server import Server

_PERIOD_S: Final = 1.0
_WORTH_TELLING_BYTES: Final = 32 << 20

Used = dict[tuple[str, int], int | None]
Busy = dict[str, float]
"""The part of the time in which each GPU, by UUID, ran anything."""


class MemoryMeasure:
    """Samples per-process memory once a second; `apply` corrects the ledger by the last sample."""

    def __init__(self, libnvml: Path, sample: Callable[[], tuple[Used, Busy]] | None = None) -> None:
        """Start sampling. A library given by its path may appear later, as on an emulated machine.

        Raises:
            OSError: the library cannot be loaded.
        """
        self._libnvml = libnvml
        late = libnvml.is_absolute() and not libnvml.exists()
        self._sample = sample or (None if late else _nvml_sampler(libnvml))
        self._latest: tuple[Used, Busy] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="aliquot-nvml", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join(timeout=2 * _PERIOD_S)

    def apply(self, engine: Dispatcher, events: EventRing, now_ns: int) -> None:
        """Correct contexts by the last sample; each sample is used once."""
        latest, self._latest = self._latest, None
        if latest is None:
            return
        used, busy = latest
        engine.seen = Seen(used, now_ns)
        for tenant in engine.tenants.values():
            for grant in tenant.grants:
                if grant.ungated and grant.gpu.uuid in busy:
                    grant.note_use(busy[grant.gpu.uuid], now_ns, engine.policy.config.window_ns)
                before = grant.context_bytes
                note_contexts(engine, grant, used)
                correct(grant, used)
                correct_absent(grant, used)
                if abs(grant.context_bytes - before) >= _WORTH_TELLING_BYTES:
                    mib = grant.context_bytes >> 20
                    events.emit("context-measured", now_ns, tenant=tenant.name, gpu=grant.gpu.uuid, mib=mib)

    def _run(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            try:
                if self._sample is None:
                    self._sample = _nvml_sampler(self._libnvml)
                self._latest = self._sample()
            except Exception:  # a driver that fails to answer costs accuracy, never the arbiter
                self._latest = None


def correct(grant: GrantState, used: Used) -> None:
    """Correct the memory ledger of a tenant on one GPU by one sample; what NVML does not report changes nothing.

    A process that has memory on the GPU but no context that the hook reported bypassed the hook: it is charged what is
    measured for as long as it exists.
    """
    for process in grant.attached:
        lease, key = process.leases[grant.slot], (grant.gpu.uuid, process.pid)
        total, leased = used.get(key), lease.take_max_bytes()
        if lease.unsettled:
            lease.unsettled -= 1
            continue
        if total is None and (lease.contexts or key in used):
            continue
        # NVML may count shared memory for this process or for another that holds it.
        most = max(0, (total or 0) - leased)
        measured = min(most, max(lease.context_bytes, most - grant.shared.held_bytes(process)))
        if measured > lease.context_bytes or not leased or not lease.contexts:
            grant.add(lease, context=measured - lease.context_bytes)


def correct_absent(grant: GrantState, used: Used) -> None:
    """Correct what is charged for processes that are not connected.

    One that NVML does not show holds nothing, as after exec; where it shows none of those that are connected and have a
    context, its numbers are of another pid namespace and say nothing.
    """
    told = any((grant.gpu.uuid, p.pid) in used for p in grant.attached if p.leases[grant.slot].contexts)
    for pid, lease in list(grant.absent.items()):
        key = (grant.gpu.uuid, pid)
        if lease.unsettled:
            lease.unsettled -= 1
        elif key in used:
            grant.add(lease, max(0, (used[key] or 0) - lease.leased_bytes))
        elif told:
            grant.release(pid)


def note_contexts(engine: Dispatcher, grant: GrantState, used: Used) -> None:
    """Learn what one context takes from a tenant's processes on a GPU that have one and nothing else."""
    for process in grant.attached:
        lease, total = process.leases[grant.slot], used.get((grant.gpu.uuid, process.pid))
        held = max(lease.max_bytes, lease.earlier_max_bytes) or grant.shared.held_bytes(process)
        if total and lease.contexts == 1 and not lease.unsettled and not held:
            engine.context_bytes[grant.gpu.uuid] = min(total, engine.context_bytes.get(grant.gpu.uuid, total))


def hold_unreported(server: Server, libnvml: Path) -> int:
    """Charge tenants what NVML shows for processes that are not connected and have a tenant's grant page; in bytes.

    For a start after an arbiter whose records are lost. NVML does not know tenants, but every process that was attached
    still maps its tenant's page, whose name says whose it is.

    Raises:
        OSError: NVML cannot be loaded.
        pynvml.NVMLError: it does not answer.
    """
    used, _ = _nvml_sampler(libnvml)()
    held_bytes = 0
    for tenant in server.engine.tenants.values():
        name = memfd_name(tenant.name).encode()
        for grant in tenant.grants:
            for pid, size in ((pid, size) for (uuid, pid), size in used.items() if uuid == grant.gpu.uuid and size):
                if pid in grant.absent:
                    continue
                try:
                    if name not in Path(f"/proc/{pid}/maps").read_bytes():
                        continue
                except OSError:  # it is not to be seen
                    continue
                uuid = grant.gpu.uuid_bytes()
                record = server.engine.leases.take(tenant.name, uuid, pid)
                if record and server.hold(tenant, grant, Earlier(b"", uuid, pid, start_ticks(pid), size, record)):
                    held_bytes += size
    return held_bytes


def _nvml_sampler(libnvml: Path) -> Callable[[], tuple[Used, Busy]]:
    """A function that reads from NVML each process's memory by GPU UUID and host pid, and how busy each GPU is."""
    pynvml = load_nvml(libnvml)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"NVML of {libnvml} does not start: {error}") from error

    gone = tuple(getattr(pynvml, f"NVMLError_{name}") for name in ("GpuIsLost", "ResetRequired", "Unknown"))
    lost = False

    def sample() -> tuple[Used, Busy]:
        nonlocal lost
        if lost:  # a handle from before a reset never works again
            pynvml.nvmlShutdown()
            pynvml.nvmlInit()
        used: Used = {}
        busy: Busy = {}
        lost = False
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid = str(pynvml.nvmlDeviceGetUUID(handle))
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    memory = process.usedGpuMemory  # None where the driver does not report it, as on some vGPUs
                    used[uuid, int(process.pid)] = None if memory is None else int(memory)
                with contextlib.suppress(pynvml.NVMLError):  # not every GPU measures it, such as MIG devices
                    busy[uuid] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except gone:  # a lost GPU does not affect the others; a driver that cannot report at all ends the sample
                lost = True
        return used, busy

    return sample
