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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import pynvml as nvml

NOT_AVAILABLE: Final = "[N/A]"
_MIB: Final = 1 << 20
_WIDTH: Final = 89


def _memory(handle: Any, part: str) -> int:
    return int(getattr(nvml.nvmlDeviceGetMemoryInfo(handle), part)) // _MIB


def _watts(milliwatts: int) -> str:
    return f"{milliwatts / 1000:.2f}"


def _cuda_version() -> str:
    version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{version // 1000}.{version % 1000 // 10}"


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
    "timestamp": ("", lambda h, _: _value(h, "timestamp")),
    "gpu_name": ("", lambda h, _: _value(h, "name")),
    "gpu_uuid": ("", lambda h, _: _value(h, "uuid")),
    "gpu_bus_id": ("", lambda h, _: _value(h, "pci.bus_id")),
    "pid": ("", lambda _, process: process.pid),
    "process_name": ("", lambda _, process: _program(process.pid)),
    "name": ("", lambda _, process: _program(process.pid)),
    "used_memory": ("MiB", lambda _, process: (process.usedGpuMemory or 0) // _MIB),
    "used_gpu_memory": ("MiB", lambda _, process: (process.usedGpuMemory or 0) // _MIB),
}


def _value(handle: Any, field: str) -> str:
    """A field of a GPU; NOT_AVAILABLE where NVML does not answer."""
    try:
        return str(FIELDS[field][1](handle))
    except nvml.NVMLError:
        return NOT_AVAILABLE


def _program(pid: int) -> str:
    try:
        return str(nvml.nvmlSystemGetProcessName(pid))
    except nvml.NVMLError:
        return NOT_AVAILABLE


def _processes(handle: Any) -> list[Any]:
    try:
        return sorted(nvml.nvmlDeviceGetComputeRunningProcesses(handle), key=lambda process: process.pid)
    except nvml.NVMLError:
        return []


def _end(text: str) -> NoReturn:
    sys.stderr.write(f"nvidia-smi: {text}\n")
    raise SystemExit(2)


def _query(known: Mapping[str, Field], query: str, subjects: Sequence[Any], form: str) -> list[str]:
    """The fields of a query, one line for each subject: a GPU, or a GPU and a process."""
    fields = [field.strip() for field in query.split(",") if field.strip()]
    for field in fields:
        if field not in known:
            _end(f'Field "{field}" is not a valid field to query; this emulated nvidia-smi knows {", ".join(known)}')
    options, lines = set(form.replace(" ", "").split(",")), []
    if "noheader" not in options:
        lines.append(", ".join(f"{field} [{known[field][0]}]" if known[field][0] else field for field in fields))
    for subject in subjects:
        cells = []
        for unit, read in (known[field] for field in fields):
            try:
                value = str(read(*subject))
            except nvml.NVMLError:
                value = NOT_AVAILABLE
            cells.append(value if "nounits" in options or not unit or value == NOT_AVAILABLE else f"{value} {unit}")
        lines.append(", ".join(cells))
    return lines


def _details(handles: Sequence[Any]) -> list[str]:
    lines = ["", "==============NVSMI LOG==============", ""]
    rows = [("Timestamp", time.strftime("%a %b %d %H:%M:%S %Y")), ("Driver Version", _driver()),
            ("CUDA Version", _cuda_version()), ("Attached GPUs", str(len(handles)))]  # fmt: skip
    lines += [f"{label:<42}: {value}" for label, value in rows]
    for handle in handles:
        lines.append(f"GPU {_value(handle, 'pci.bus_id')}")
        lines += [_detail(handle, 4, "Product Name", "name"), _detail(handle, 4, "GPU UUID", "uuid")]
        for title, parts in (
            ("FB Memory Usage", (("Total", "memory.total"), ("Used", "memory.used"), ("Free", "memory.free"))),
            ("Utilization", (("Gpu", "utilization.gpu"), ("Memory", "utilization.memory"))),
            ("Temperature", (("GPU Current Temp", "temperature.gpu"),)),
            ("GPU Power Readings", (("Power Draw", "power.draw"), ("Current Power Limit", "power.limit"))),
            ("Clocks", (("SM", "clocks.sm"), ("Memory", "clocks.mem"))),
        ):
            lines.append(f"    {title}")
            lines += [_detail(handle, 8, label, field) for label, field in parts]
        lines.append("    Processes")
        for process in _processes(handle):
            lines.append(f"        {'Process ID':<34}: {process.pid}")
            lines.append(f"            {'Name':<30}: {_program(process.pid)}")
            lines.append(f"            {'Used GPU Memory':<30}: {(process.usedGpuMemory or 0) // _MIB} MiB")
    return lines


def _detail(handle: Any, indent: int, label: str, field: str) -> str:
    value, unit = _value(handle, field), "C" if field == "temperature.gpu" else FIELDS[field][0]
    return f"{' ' * indent}{label:<{42 - indent}}: {value if not unit or value == NOT_AVAILABLE else f'{value} {unit}'}"


def _driver() -> str:
    return str(nvml.nvmlSystemGetDriverVersion())


def _table(handles: Sequence[Any]) -> list[str]:
    """The table that nvidia-smi prints without options; it says that the GPUs are emulated."""
    rule = f"|{'-' * 41}+{'-' * 24}+{'-' * 22}|"
    top = f"| NVIDIA-SMI {_driver():<23}Driver Version: {_driver():<17}CUDA Version: {_cuda_version():<8}|"
    lines = [time.strftime("%a %b %d %H:%M:%S %Y") + "       (emulated by Aliquot)", f"+{'-' * (_WIDTH)}+", top, rule]
    lines += [
        _row("GPU  Name                 Persistence-M", "Bus-Id          Disp.A", "Volatile Uncorr. ECC"),
        _row("Fan  Temp   Perf          Pwr:Usage/Cap", "          Memory-Usage", "GPU-Util  Compute M."),
        f"|{'=' * 41}+{'=' * 24}+{'=' * 22}|",
    ]
    for handle in handles:
        get = {field: _value(handle, field) for field in FIELDS if field not in ("fan.speed", "pstate")}
        power = f"{_whole(get['power.draw'])}W / {_whole(get['power.limit']):>4}W"
        memory = f"{get['memory.used']}MiB / {get['memory.total']:>6}MiB"
        lines += [
            _row(f"{get['index']:>3}  {get['name'][:28]:<28} {'Off':>5}", f"{get['pci.bus_id']:<16} Off", f"{'0':>20}"),
            _row(f"N/A  {get['temperature.gpu']:>3}C    P0   {power:>19}", f"{memory:>22}",
                 f"{get['utilization.gpu']:>6}%      Default"),
            f"+{'-' * 41}+{'-' * 24}+{'-' * 22}+",
        ]  # fmt: skip

    def line(text: str) -> str:
        return f"| {text:<{_WIDTH - 2}} |"

    rows = [
        line(f"{_value(h, 'index'):>3}   N/A  N/A  {p.pid:>10}      C   {_program(p.pid)[:37]:<37} "
             f"{(p.usedGpuMemory or 0) // _MIB:>9}MiB")
        for h in handles for p in _processes(h)
    ]  # fmt: skip
    columns = "GPU   GI   CI         PID   Type   Process name                           GPU Memory"
    edge = f"+{'-' * _WIDTH}+"
    lines += ["", edge, line("Processes:"), line(columns), f"|{'=' * _WIDTH}|"]
    return [*lines, *(rows or [line("No running processes found")]), edge]


def _row(left: str, middle: str, right: str) -> str:
    return f"| {left:<39} | {middle:<22} | {right:<20} |"


def _whole(number: str) -> str:
    return number if number == NOT_AVAILABLE else f"{float(number):.0f}"


def _lines(chosen: argparse.Namespace) -> list[str]:
    handles = _visible()
    if not handles:
        _end("No devices were found")
    if chosen.id:
        names = {name: h for h in handles for name in (_value(h, "index"), _value(h, "uuid"), _value(h, "pci.bus_id"))}
        for name in chosen.id.split(","):
            if name not in names:
                _end(f'no GPU is called "{name}"; there are {", ".join(names)}')
        handles = [names[name] for name in chosen.id.split(",")]
    if chosen.version:
        return [f"NVIDIA-SMI version  : {_driver()} (emulated by Aliquot)", f"DRIVER version      : {_driver()}",
                f"CUDA Version        : {_cuda_version()}"]  # fmt: skip
    if chosen.list_gpus:
        return [f"GPU {_value(h, 'index')}: {_value(h, 'name')} (UUID: {_value(h, 'uuid')})" for h in handles]
    if chosen.query_gpu:
        return _query(FIELDS, chosen.query_gpu, [(handle,) for handle in handles], chosen.format)
    if chosen.query_compute_apps:
        programs = [(handle, process) for handle in handles for process in _processes(handle)]
        return _query(APP_FIELDS, chosen.query_compute_apps, programs, chosen.format)
    return _details(handles) if chosen.query else _table(handles)


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
