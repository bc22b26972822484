"""What `aliquot top` shows, as text: bars, sparklines and rows. No terminal and no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from aliquot.standalone.wire import RunProcess
from aliquot.status import Gpu, Share, Workload
from aliquot.status.sensors import Sensors

_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_SPARKS: Final = "▁▂▃▄▅▆▇█"
UNKNOWN: Final = "-"
SORTS: Final = ("name", "busy", "free", "memory")


class Look(NamedTuple):
    """Everything at one moment."""

    title: str
    window_s: float
    gpus: Sequence[Gpu]
    workloads: Sequence[Workload]
    silent: Mapping[str, str] = MappingProxyType({})
    """Why a node tells nothing of what is used there, by its name."""
    processes: Mapping[str, Sequence[RunProcess]] = MappingProxyType({})
    """The processes of each tenant, where they are known."""
    sensors: Mapping[str, str] = MappingProxyType({})
    """Temperature and power of GPUs by UUID, as text, where NVML answers."""

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of a UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def workload(self, name: str) -> Workload | None:
        """The workload of a name."""
        return next((each for each in self.workloads if each.name == name), None)


def in_words(sensors: Mapping[str, Sensors]) -> dict[str, str]:
    """`43 °C  120 W` of each GPU, without what its NVML does not answer."""
    return {uuid: "  ".join(_parts(found)) for uuid, found in sensors.items()}


def _parts(found: Sensors) -> list[str]:
    celsius = [] if found.celsius is None else [f"{found.celsius} °C"]
    return celsius if found.watts is None else [*celsius, f"{found.watts:.0f} W"]


def bar(milli: int, cells: int, limit_milli: int = 1000) -> str:
    """Thousandths as a bar that is always so many cells wide, with a stroke at a limit below the whole."""
    eighths = max(0, min(milli, 1000)) * cells * 8 // 1000
    full, rest = divmod(eighths, 8)
    drawn = list("█" * full + (_BLOCKS[rest] if rest else ""))
    drawn += ["░"] * (cells - len(drawn))
    if limit_milli < 1000:
        drawn[min(cells - 1, limit_milli * cells // 1000)] = "│"
    return "".join(drawn)


def spark(values: Iterable[float], most: float, cells: int) -> str:
    """The last values as columns of up to eight heights, right-aligned in so many cells."""
    last = list(values)[-cells:]
    scale = most or 1.0
    drawn = "".join(_SPARKS[max(0, min(7, int(value * 8 / scale)))] for value in last)
    return drawn.rjust(cells)


def gib(mib: float) -> str:
    """`6144` -> `6.0`."""
    return f"{mib / 1024:.1f}"


def shares_bar(gpu: Gpu, cells: int) -> str:
    """Who holds what of a GPU: one letter a tenant for its request, dots for what is free."""
    drawn, promised = "", 0
    for number, share in enumerate(gpu.shares):
        promised += share.request_milli
        end = round(promised * cells / 1000)
        drawn += chr(ord("a") + number % 26) * (max(len(drawn), end) - len(drawn))
    return drawn[:cells].ljust(cells, "·")


def head(look: Look) -> str:
    """The whole in one line."""
    gpus = look.gpus
    measured = sum(gpu.measured for gpu in gpus)
    used, free = f"{sum(gpu.busy_milli for gpu in gpus) / 1000:.2f}", sum(gpu.free_milli for gpu in gpus)
    memory_used = gib(sum(gpu.memory_used_mib for gpu in gpus))
    if measured < len(gpus):
        used = f"{used} on {measured}" if measured else UNKNOWN
        memory_used = memory_used if measured else UNKNOWN
    memory = f"{memory_used} / {gib(sum(gpu.memory_mib for gpu in gpus))} GiB"
    waiting = sum(workload.state == "Pending" for workload in look.workloads)
    waits = f"{waiting} waiting   " if waiting else ""
    return f"{waits}{len(gpus)} GPUs   busy {used}   promised {len(gpus) - free / 1000:.2f}   memory {memory}"


def found(gpus: Iterable[Gpu], text: str) -> list[Gpu]:
    """GPUs whose node, model, UUID, state or a tenant contains the text."""
    wanted = text.lower()
    return [
        gpu
        for gpu in gpus
        if wanted in f"{gpu.node} gpu {gpu.index} {gpu.model} {gpu.uuid} {gpu.state} {gpu.vgpu}".lower()
        or any(wanted in share.tenant.lower() for share in gpu.shares)
    ]


def ordered(gpus: Iterable[Gpu], sort: str) -> list[Gpu]:
    """By node and index, or the most used, the most free compute, the most free memory first."""
    keys: dict[str, Callable[[Gpu], int]] = {
        "busy": lambda gpu: -gpu.busy_milli,
        "free": lambda gpu: -gpu.free_milli,
        "memory": lambda gpu: -gpu.free_mib,
    }
    rank: Callable[[Gpu], int] = keys.get(sort, lambda gpu: 0)
    return sorted(gpus, key=lambda gpu: (rank(gpu), gpu.node, gpu.index))


def kept(percent: float | None) -> str:
    """`99.95` -> `99.9 %`, never rounded up."""
    if percent is None:
        return "-"
    return "100 %" if percent >= 100 else f"{int(percent * 10) / 10:.1f} %"


def usage_text(milli: int, cells: int, limit_milli: int = 1000, *, measured: bool = True) -> str:
    """A bar and its number, as wide where nothing is known."""
    if not measured:
        return UNKNOWN.ljust(cells + 5)
    return f"{bar(milli, cells, limit_milli)} {milli / 1000:.2f}"


def memory_text(used_mib: int, max_mib: int, *, measured: bool = True) -> str:
    """Used and whole, in GiB."""
    return f"{gib(used_mib) if measured else UNKNOWN:>5} / {gib(max_mib)}"


def state_of(gpu: Gpu, share: Share) -> str:
    """What a tenant does on a GPU now."""
    if share.hidden or not gpu.measured:
        return UNKNOWN
    if share.enforce != "all":
        return "bare driver" if share.enforce == "never" else "memory only"
    if gpu.holder == share.tenant:
        return "runs"
    if share.waiting:
        return "waits"
    return "idle" if share.processes else "no process"


def wait_text(gpu: Gpu, share: Share) -> str:
    """How long it waits for a grant."""
    return f"{share.wait_ms:.0f} ms" if gpu.measured and not share.hidden else UNKNOWN
