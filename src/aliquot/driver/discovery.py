"""Discovery of GPUs: NVML is queried in a separate process.

pynvml loads one library for the life of a process and keeps it, while an engine may drive a real machine and the next
one, in the same process, an emulated one. A child that answers once and ends has no such memory, and a driver that
crashes takes only the child along.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.driver.cores import read_core_list
from aliquot.driver.gpu import Gpu
from aliquot.driver.modules import GPUS, minors
from aliquot.driver.mounts import CUDA, NVML, candidates
from aliquot.driver.nvml import load_nvml
from aliquot.driver.nvml_links import nvml_places, topology_of
from aliquot.model.errors import AliquotError
from aliquot.topology import Topology

PROC: Final = GPUS


class NoDriver(AliquotError):
    """This machine has no NVIDIA driver, or it does not answer."""


@dataclass(frozen=True)
class DriverLibraries:
    """The two libraries of one driver, real or emulated, by absolute path."""

    libcuda: Path
    libnvml: Path


class Found(msgspec.Struct, frozen=True):
    """What a driver shows: the GPUs that answer, and the others with what they said (`GPU 3: GPU is lost`)."""

    gpus: list[Gpu]
    silent: list[str] = []

    @property
    def all_seen(self) -> tuple[Gpu, ...]:
        """All GPUs of the machine; none where one does not answer."""
        return () if self.silent else tuple(self.gpus)


def find_driver() -> DriverLibraries:
    """The driver that this machine's loader would choose.

    Raises:
        NoDriver: one of the two libraries is missing.
    """
    for name in (CUDA, NVML):
        if not candidates(name):
            raise NoDriver(f"no NVIDIA driver here ({name} not found). An emulated GPU stands in with: --emulate h100")
    return DriverLibraries(candidates(CUDA)[0], candidates(NVML)[0])


def list_gpus(libnvml: Path) -> list[Gpu]:
    """All GPUs that a driver shows and that answer, by index.

    Raises:
        NoDriver: the library is there but does not answer, as when the kernel module is not loaded.
    """
    return find_gpus(libnvml).gpus


def find_gpus(libnvml: Path) -> Found:
    """The GPUs of a driver, by index; one that does not answer is named, and the others are still listed.

    Raises:
        NoDriver: the library is there but does not answer, as when the kernel module is not loaded.
    """
    done = subprocess.run(
        [sys.executable, "-m", "aliquot.driver.discovery", str(libnvml)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        raise NoDriver(f"{libnvml} does not answer ({reason}). Look with: nvidia-smi; or use --emulate h100")
    return msgspec.json.decode(done.stdout, type=Found)


def gpu_topology(gpus: Sequence[Gpu]) -> Topology:
    """How these GPUs, all of one machine by index, are connected; SYS apart where that is not known.

    Raises:
        HalfKnown: some of them have links to all others and some have not.
    """
    return topology_of([gpu.links for gpu in gpus], [gpu.numa for gpu in gpus], [gpu.near_cores for gpu in gpus])


def _near_cores(bus_id: str) -> list[int]:
    """The CPU cores on the GPU's own memory node, by its PCI address as NVML writes it; none when unknown."""
    domain, _, rest = bus_id.lower().partition(":")
    listed = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/local_cpulist")
    return read_core_list(listed.read_text()) if listed.exists() else []


def _minor(nvml: Any, handle: Any, bus_id: str) -> int | None:
    """The number of the GPU's device node: by NVML, else by what the kernel module says of the GPU at that address."""
    try:
        return int(nvml.nvmlDeviceGetMinorNumber(handle))
    except nvml.NVMLError:
        pass
    domain, _, rest = bus_id.lower().partition(":")
    return minors(PROC).get(f"{domain[-4:]}:{rest}")


def _mig(nvml: Any, handle: Any) -> bool:
    """Whether MIG is on; GPUs that know no MIG do not answer."""
    try:
        return int(nvml.nvmlDeviceGetMigMode(handle)[0]) == int(nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError:
        return False


def _facts(nvml: Any, handle: Any) -> dict[str, object]:
    """NVML's description of one GPU.

    Raises:
        NVMLError: it does not answer.
    """
    bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    return {
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "model": nvml.nvmlDeviceGetName(handle),
        "memory_mib": int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
        "pci": bus_id,
        "near_cores": _near_cores(bus_id),
        "minor": _minor(nvml, handle, bus_id),
        "mig": _mig(nvml, handle),
    }


def _ask(libnvml: str) -> dict[str, object]:
    pynvml = load_nvml(libnvml)
    pynvml.nvmlInit()
    version = pynvml.nvmlSystemGetDriverVersion()
    gpus: list[dict[str, object]] = []
    handles, silent = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append({"index": index, "driver": version} | _facts(pynvml, handle))
        except pynvml.NVMLError as error:
            silent.append(f"GPU {index}: {error}")
        else:
            handles.append(handle)
    for gpu, place in zip(gpus, nvml_places(handles), strict=True):
        gpu |= {"links": place.links, "numa": place.numa}
        gpu["near_cores"] = place.cores or gpu["near_cores"]
    pynvml.nvmlShutdown()
    return {"gpus": gpus, "silent": silent}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ask(sys.argv[1])))
