"""Discovery of GPUs: NVML is queried in a separate process.

pynvml loads one library for the life of a process and keeps it, while an engine may drive a real machine and the next
one, in the same process, an emulated one. A child that answers once and ends has no such memory, and a driver that
crashes takes only the child along.

Links are what `nvidia-smi topo -m` prints, from the same questions: NVLinks, PCIe ancestors, memory nodes and near
cores. Two GPUs that both hang on NVSwitches are joined by as many links as the one with fewer has. Every question may
go unanswered (old drivers, virtual machines): then the pair counts as far apart (SYS) and the node or the cores as
unknown, which costs placement some knowledge and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.driver.gpu import Gpu, read_core_list
from aliquot.driver.modules import GPUS, minors
from aliquot.driver.mounts import CUDA, NVML, candidates
from aliquot.driver.nvml import load_nvml
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError
from aliquot.topology import Topology


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
    return decode_json(done.stdout, Found)


def gpu_topology(gpus: Sequence[Gpu]) -> Topology:
    """How these GPUs, all of one machine by index, are connected; SYS apart where that is not known.

    Raises:
        HalfKnown: some of them have links to all others and some have not.
    """
    return topology_of([gpu.links for gpu in gpus], [gpu.numa for gpu in gpus], [gpu.near_cores for gpu in gpus])


FAR: Final = "SYS"
CORES_MAX: Final = 4096
NODES_MAX: Final = 64
_WORD: Final = 64
_PCIE: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SWITCH: Final = "switch"


class HalfKnown(AliquotError):
    """A list of GPUs that does not report all their links."""


@dataclass(frozen=True)
class NvmlPlace:
    """The position of one GPU: `links[j]` its link to GPU j, its NUMA node if it has one, its nearest cores."""

    links: list[str]
    numa: int | None
    cores: list[int]


def read_gpu(nvml: Any, handle: Any, *, index: int, driver: str, proc: Path = GPUS) -> Gpu:
    """NVML's description of one GPU; `proc` is where the kernel module tells what NVML may not.

    Raises:
        NVMLError: it does not answer.
    """
    bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    domain, _, rest = bus_id.lower().partition(":")
    address = f"{domain[-4:]}:{rest}"
    near = Path(f"/sys/bus/pci/devices/{address}/local_cpulist")
    minor = _tried(nvml, nvml.nvmlDeviceGetMinorNumber, handle)
    mig = _tried(nvml, nvml.nvmlDeviceGetMigMode, handle)  # GPUs that know no MIG do not answer
    capability = _tried(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    cuda = _tried(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        model=nvml.nvmlDeviceGetName(handle),
        memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20,
        driver=driver,
        near_cores=read_core_list(near.read_text()) if near.exists() else [],
        minor=minors(proc).get(address) if minor is None else int(minor),
        pci=bus_id,
        capability="{}.{}".format(*capability) if capability is not None else "",
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda is not None else "",
        mig=mig is not None and int(mig[0]) == int(nvml.NVML_DEVICE_MIG_ENABLE),
    )


def nvml_places(handles: Sequence[Any]) -> list[NvmlPlace]:
    """The place of every GPU; pynvml is initialised and `handles` are the devices that answer, by index."""
    import pynvml

    peers = [_peers(pynvml, handle) for handle in handles]
    addresses = [_address(_tried(pynvml, pynvml.nvmlDeviceGetPciInfo, handle)) for handle in handles]
    places = []
    for i, handle in enumerate(handles):
        links = []
        for j, other in enumerate(handles):
            bonded = peers[i][addresses[j]]
            if not bonded and i != j and peers[i][_SWITCH] and peers[j][_SWITCH]:
                index = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
                status = _tried(pynvml, pynvml.nvmlDeviceGetP2PStatus, handle, other, index)
                # A switch fabric can be split between machines: links to a switch alone do not make a pair.
                joined = status in (None, pynvml.NVML_P2P_STATUS_OK)
                bonded = min(peers[i][_SWITCH], peers[j][_SWITCH]) if joined else 0
            if i == j:
                links.append("X")
            elif bonded:
                links.append(f"NV{bonded}")
            else:
                level = _tried(pynvml, pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
                links.append(FAR if level is None else _PCIE.get(level, FAR))
        scope, words = pynvml.NVML_AFFINITY_SCOPE_NODE, -(-NODES_MAX // _WORD)
        nodes = _set_bits(_tried(pynvml, pynvml.nvmlDeviceGetMemoryAffinity, handle, words, scope))
        cores = _set_bits(_tried(pynvml, pynvml.nvmlDeviceGetCpuAffinity, handle, CORES_MAX // _WORD))
        places.append(NvmlPlace(links, nodes[0] if len(nodes) == 1 else None, cores))
    # A link that only one end reports (the other's query failed) counts for both, by the end that knows more.
    for i, place in enumerate(places):
        for j in range(i):
            mine, other_end = place.links[j], places[j].links[i]
            if mine != other_end:
                place.links[j] = places[j].links[i] = mine if mine.startswith("NV") else other_end
    return places


def topology_of(links: Sequence[Sequence[str]], numa: Sequence[int | None], cores: Sequence[Sequence[int]]) -> Topology:
    """The topology of what `nvml_places` found, or of GPUs whose links were not queried (all empty: SYS apart).

    Raises:
        HalfKnown: some GPUs have links to all others and some have not.
    """
    count = len(links)
    if not any(links):
        links = [["X" if i == j else FAR for j in range(count)] for i in range(count)]
    if any(len(row) != count for row in links):
        known = sum(len(row) == count for row in links)
        raise HalfKnown(f"the driver names the links of {known} of {count} GPUs; look with: nvidia-smi topo -m")
    return Topology.of(links, numa=numa, cores=cores)


def _tried(pynvml: Any, question: Callable[..., Any], *about: Any) -> Any:
    """The answer, or None where this driver has none."""
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None


def _address(pci: Any) -> tuple[int, int, int] | None:
    """Where the GPU is on the bus; None for one that was lost a moment ago."""
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _peers(pynvml: Any, handle: Any) -> Counter[object]:
    """Active NVLinks of a GPU by the address at their other end, those to any NVSwitch together."""
    found: Counter[object] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _tried(pynvml, pynvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        kind = _tried(pynvml, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            found[_SWITCH] += 1
            continue
        remote = _tried(pynvml, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is not None:
            found[_address(remote)] += 1
    return found


def _set_bits(words: Sequence[int] | None) -> list[int]:
    return [at * _WORD + bit for at, word in enumerate(words or ()) for bit in range(_WORD) if word >> bit & 1]


def main(libnvml: str) -> None:
    """Print a `Found` of the driver with this library."""
    pynvml = load_nvml(libnvml)
    pynvml.nvmlInit()
    version = pynvml.nvmlSystemGetDriverVersion()
    gpus: list[Gpu] = []
    handles, silent = [], []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = read_gpu(pynvml, handle, index=index, driver=version)
        except pynvml.NVMLError as error:
            silent.append(f"GPU {index}: {error}")
        else:
            handles.append(handle)
            gpus.append(gpu)
    placed = [
        msgspec.structs.replace(gpu, links=place.links, numa=place.numa, near_cores=place.cores or gpu.near_cores)
        for gpu, place in zip(gpus, nvml_places(handles), strict=True)
    ]
    pynvml.nvmlShutdown()
    sys.stdout.write(msgspec.json.encode(Found(placed, silent)).decode())


if __name__ == "__main__":
    main(sys.argv[1])
