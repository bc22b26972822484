"""The links between GPUs as NVML reports them: NVLinks, PCIe ancestors, memory nodes and near cores.

What `nvidia-smi topo -m` prints comes from the same questions. Two GPUs that both hang on NVSwitches are joined by as
many links as the one with fewer has. Every question may go unanswered (old drivers, virtual machines): then the pair
counts as far apart (SYS) and the node or the cores as unknown, which costs placement some knowledge and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot.model.errors import AliquotError
from aliquot.topology import Topology

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


def nvml_places(handles: Sequence[Any]) -> list[NvmlPlace]:
    """The place of every GPU; pynvml is initialised and `handles` are the devices that answer, by index."""
    import pynvml

    peers = [_peers(pynvml, handle) for handle in handles]
    addresses = [_address(_tried(pynvml, pynvml.nvmlDeviceGetPciInfo, handle)) for handle in handles]
    places = []
    for i, handle in enumerate(handles):
        links = [
            "X" if i == j else _label(pynvml, (handle, other), (peers[i], peers[j]), addresses[j])
            for j, other in enumerate(handles)
        ]
        places.append(NvmlPlace(links, _numa(pynvml, handle), _cores(pynvml, handle)))
    return _both_ways(places)


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


def _label(pynvml: Any, pair: tuple[Any, Any], peers: tuple[Counter[object], Counter[object]], address: object) -> str:
    one, other = pair
    bonded = peers[0][address]
    if not bonded and peers[0][_SWITCH] and peers[1][_SWITCH]:
        index = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        status = _tried(pynvml, pynvml.nvmlDeviceGetP2PStatus, one, other, index)
        # A switch fabric can be split between machines: links to a switch alone do not make a pair.
        bonded = min(peers[0][_SWITCH], peers[1][_SWITCH]) if status in (None, pynvml.NVML_P2P_STATUS_OK) else 0
    if bonded:
        return f"NV{bonded}"
    level = _tried(pynvml, pynvml.nvmlDeviceGetTopologyCommonAncestor, one, other)
    return FAR if level is None else _PCIE.get(level, FAR)


def _both_ways(places: list[NvmlPlace]) -> list[NvmlPlace]:
    """A link that only one end reports (the other's query failed) counts for both, by the end that knows more."""
    for i, place in enumerate(places):
        for j in range(i):
            mine, theirs = place.links[j], places[j].links[i]
            if mine != theirs:
                chosen = mine if mine.startswith("NV") else theirs
                place.links[j] = places[j].links[i] = chosen
    return places


def _numa(pynvml: Any, handle: Any) -> int | None:
    words = -(-NODES_MAX // _WORD)
    found = _tried(pynvml, pynvml.nvmlDeviceGetMemoryAffinity, handle, words, pynvml.NVML_AFFINITY_SCOPE_NODE)
    nodes = _set_bits(found)
    return nodes[0] if len(nodes) == 1 else None


def _cores(pynvml: Any, handle: Any) -> list[int]:
    return _set_bits(_tried(pynvml, pynvml.nvmlDeviceGetCpuAffinity, handle, CORES_MAX // _WORD))


def _set_bits(words: Sequence[int] | None) -> list[int]:
    return [at * _WORD + bit for at, word in enumerate(words or ()) for bit in range(_WORD) if word >> bit & 1]
