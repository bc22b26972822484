"""`nvidia-smi` for emulated GPUs: prints what NVML tells this process, in the forms that scripts read.

Started as a script of its own in a tenant's environment, where NVML is the hook's view: the tenant's memory and
processes. Of the machine's GPUs it shows those in CUDA_VISIBLE_DEVICES, by the same numbers: NVML's on this machine, as
nvidia-smi has them outside containers, so `-i $CUDA_VISIBLE_DEVICES` is the program's GPU. It takes those of
nvidia-smi's options that people and programs look with; nothing can be set. Imports only NVML's bindings and the
standard library, for it starts wherever a tenant's program does.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import pynvml as nvml

NOT_AVAILABLE: Final = "[N/A]"
_MIB: Final = 1 << 20
_LAYOUT: Final = tomllib.loads(Path(__file__).with_name("nvidia_smi.toml").read_text("utf-8"))


def _memory(handle: Any, part: str) -> int:
    return int(getattr(nvml.nvmlDeviceGetMemoryInfo(handle), part)) // _MIB


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.2f}"


def _clock(handle: Any, kind: int) -> int:
    return int(nvml.nvmlDeviceGetClockInfo(handle, kind))


def _visible() -> list[Any]:
    """The GPUs that CUDA shows this program, by number: the list ends at a wrong entry, and one twice voids it."""
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return handles
    uuids = [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    chosen: list[int] = []
    for word in words.split(","):
        named = [n for n, uuid in enumerate(uuids) if word == str(n) or (word[:4] == "GPU-" and uuid.startswith(word))]
        if len(named) != 1:
            break
        chosen += named
    return [handles[n] for n in sorted(chosen)] if len({*chosen}) == len(chosen) else []


Field: TypeAlias = tuple[str, Callable[..., Any]]
"""The unit of a field, and how it is read: of a GPU in --query-gpu, of a GPU and a process in --query-compute-apps."""
FIELDS: Final[dict[str, Field]] = {
    "timestamp": ("", lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": ("", lambda _: nvml.nvmlSystemGetDriverVersion()),
    "count": ("", lambda _: len(_visible())),
    "index": ("", lambda h: nvml.nvmlDeviceGetIndex(h)),
    "name": ("", lambda h: nvml.nvmlDeviceGetName(h)),
    "gpu_name": ("", lambda h: nvml.nvmlDeviceGetName(h)),
    "uuid": ("", lambda h: nvml.nvmlDeviceGetUUID(h)),
    "gpu_uuid": ("", lambda h: nvml.nvmlDeviceGetUUID(h)),
    "pci.bus_id": ("", lambda h: nvml.nvmlDeviceGetPciInfo(h).busId),
    "gpu_bus_id": ("", lambda h: nvml.nvmlDeviceGetPciInfo(h).busId),
    "compute_cap": ("", lambda h: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(h))),
    "mig.mode.current": ("", lambda h: "Enabled" if nvml.nvmlDeviceGetMigMode(h)[0] else "Disabled"),
    "memory.total": ("MiB", lambda h: _memory(h, "total")),
    "memory.used": ("MiB", lambda h: _memory(h, "used")),
    "memory.free": ("MiB", lambda h: _memory(h, "free")),
    "utilization.gpu": ("%", lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu),
    "utilization.memory": ("%", lambda h: nvml.nvmlDeviceGetUtilizationRates(h).memory),
    "temperature.gpu": ("", lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
    "power.draw": ("W", lambda h: _watts(nvml.nvmlDeviceGetPowerUsage(h))),
    "power.limit": ("W", lambda h: _watts(nvml.nvmlDeviceGetEnforcedPowerLimit(h))),
    "enforced.power.limit": ("W", lambda h: _watts(nvml.nvmlDeviceGetEnforcedPowerLimit(h))),
    "clocks.sm": ("MHz", lambda h: _clock(h, nvml.NVML_CLOCK_SM)),
    "clocks.mem": ("MHz", lambda h: _clock(h, nvml.NVML_CLOCK_MEM)),
    "clocks.gr": ("MHz", lambda h: _clock(h, nvml.NVML_CLOCK_GRAPHICS)),
    "pstate": ("", lambda h: f"P{nvml.nvmlDeviceGetPerformanceState(h)}"),
    "fan.speed": ("%", lambda h: nvml.nvmlDeviceGetFanSpeed(h)),
    "persistence_mode": ("", lambda h: "Enabled" if nvml.nvmlDeviceGetPersistenceMode(h) else "Disabled"),
}
APP_FIELDS: Final[dict[str, Field]] = {
    "timestamp": ("", lambda h, _: FIELDS["timestamp"][1](h)),
    "gpu_name": ("", lambda h, _: FIELDS["name"][1](h)),
    "gpu_uuid": ("", lambda h, _: FIELDS["uuid"][1](h)),
    "gpu_bus_id": ("", lambda h, _: FIELDS["pci.bus_id"][1](h)),
    "pid": ("", lambda _, process: process.pid),
    "process_name": ("", lambda _, process: nvml.nvmlSystemGetProcessName(process.pid)),
    "name": ("", lambda _, process: nvml.nvmlSystemGetProcessName(process.pid)),
    "used_memory": ("MiB", lambda _, process: (process.usedGpuMemory or 0) // _MIB),
    "used_gpu_memory": ("MiB", lambda _, process: (process.usedGpuMemory or 0) // _MIB),
}


class _Facts:
    """The fields of a subject, a GPU or a GPU and a process, as text and read when they are shown.

    `facts["power.draw W"]` is a value with a unit; NOT_AVAILABLE is one that NVML does not answer.
    """

    def __init__(self, known: Mapping[str, Field], *subject: Any) -> None:
        self._known, self.subject = known, subject

    def __getitem__(self, name: str) -> str:
        field, _, unit = name.partition(" ")
        try:
            value = str(self._known[field][1](*self.subject))
        except nvml.NVMLError:
            return NOT_AVAILABLE
        return f"{value} {unit}" if unit else value


def _processes(gpu: _Facts) -> list[_Facts]:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(*gpu.subject)
    except nvml.NVMLError:
        return []
    return [_Facts(APP_FIELDS, *gpu.subject, process) for process in sorted(running, key=lambda process: process.pid)]


def _end(text: str) -> NoReturn:
    sys.stderr.write(f"nvidia-smi: {text}\n")
    raise SystemExit(2)


def _query(known: Mapping[str, Field], query: str, subjects: Sequence[_Facts], form: str) -> list[str]:
    """The fields of a query, one line for each subject."""
    fields = [field.strip() for field in query.split(",") if field.strip()]
    for field in fields:
        if field not in known:
            _end(f'Field "{field}" is not a valid field to query; this emulated nvidia-smi knows {", ".join(known)}')
    options, units = set(form.replace(" ", "").split(",")), {field: known[field][0] for field in fields}
    heads = [f"{field} [{units[field]}]" if units[field] else field for field in fields]
    names = fields if "nounits" in options else [f"{field} {units[field]}".strip() for field in fields]
    lines = [] if "noheader" in options else [", ".join(heads)]
    return lines + [", ".join(subject[name] for name in names) for subject in subjects]


def _details(gpus: Sequence[_Facts], about: Mapping[str, Any]) -> list[str]:
    parts = _LAYOUT["query"]
    lines = [parts["head"].format(gpus[0], **about)]
    for gpu in gpus:
        lines.append(parts["gpu"].format(gpu))
        lines += [parts["process"].format(process) for process in _processes(gpu)]
    return lines


def _table(gpus: Sequence[_Facts], about: Mapping[str, Any]) -> list[str]:
    """The table that nvidia-smi prints without options; it says that the GPUs are emulated."""
    parts = _LAYOUT["table"]
    lines = [parts["head"].format(gpus[0], **about)]
    for gpu in gpus:
        power = f"{_whole(gpu['power.draw'])}W / {_whole(gpu['power.limit']):>4}W"
        memory = f"{gpu['memory.used']}MiB / {gpu['memory.total']:>6}MiB"
        state = f"{gpu['temperature.gpu']:>3}C    P0   {power:>19}"
        lines.append(parts["gpu"].format(gpu, state=state, memory=memory))
    rows = [parts["process"].format(process, gpu=gpu) for gpu in gpus for process in _processes(gpu)]
    return [*lines, parts["processes"], *(rows or [parts["none"]]), parts["foot"]]


def _whole(number: str) -> str:
    return number if number == NOT_AVAILABLE else f"{float(number):.0f}"


def _lines(chosen: argparse.Namespace) -> list[str]:
    gpus = [_Facts(FIELDS, handle) for handle in _visible()]
    if not gpus:
        _end("No devices were found")
    if chosen.id:
        names = {gpu[field]: gpu for gpu in gpus for field in ("index", "uuid", "pci.bus_id")}
        for name in chosen.id.split(","):
            if name not in names:
                _end(f'no GPU is called "{name}"; there are {", ".join(names)}')
        gpus = [names[name] for name in chosen.id.split(",")]
    version, time_now = nvml.nvmlSystemGetCudaDriverVersion_v2(), time.strftime("%a %b %d %H:%M:%S %Y")
    about = {"cuda": f"{version // 1000}.{version % 1000 // 10}", "time": time_now, "count": len(gpus)}
    if chosen.version:
        return [_LAYOUT["version"].format(gpus[0], **about)]
    if chosen.list_gpus:
        return [_LAYOUT["list"].format(gpu) for gpu in gpus]
    if chosen.query_gpu:
        return _query(FIELDS, chosen.query_gpu, gpus, chosen.format)
    if chosen.query_compute_apps:
        programs = [process for gpu in gpus for process in _processes(gpu)]
        return _query(APP_FIELDS, chosen.query_compute_apps, programs, chosen.format)
    return _details(gpus, about) if chosen.query else _table(gpus, about)


def main(words: Sequence[str]) -> int:
    """Print once, or again and again with `-l`; 9 where NVML does not answer, as nvidia-smi has it."""
    parser = argparse.ArgumentParser(prog="nvidia-smi", description=__doc__, allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-i", "--id", default="")
    parser.add_argument("--query-gpu", default="")
    parser.add_argument("--query-compute-apps", default="")
    parser.add_argument("--format", default="")
    parser.add_argument("-l", "--loop", nargs="?", const=5.0, type=float)
    parser.add_argument("-lms", "--loop-ms", nargs="?", const=5000.0, type=float)
    parser.add_argument("--version", action="store_true")
    chosen = parser.parse_args(words)
    if (chosen.query_gpu or chosen.query_compute_apps) and not chosen.format.startswith("csv"):
        _end("a query needs its format: --format=csv[,noheader][,nounits]")
    every_s = chosen.loop_ms / 1000 if chosen.loop_ms else chosen.loop
    try:
        nvml.nvmlInit()
        while True:
            print("\n".join(_lines(chosen)), flush=True)  # noqa: T201 (it is what this program does)
            if every_s is None:
                return 0
            time.sleep(max(0.01, every_s))
    except nvml.NVMLError as error:
        sys.stderr.write(f"nvidia-smi: NVML does not answer: {error}\n")
        return 9
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
