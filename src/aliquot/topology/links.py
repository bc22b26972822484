"""What a link between two GPUs costs, by the label that `nvidia-smi topo -m` gives it.

The order is NVIDIA's: bonded NVLinks, then one PCIe switch (PIX), several switches (PXB), the host bridge (PHB), two
host bridges of one NUMA node (NODE), two NUMA nodes (SYS, in old drivers SOC). The Gaia paper's text puts PXB above
PHB, its figures and NVIDIA the other way round; NVIDIA's order is taken, with NODE and NVLink added.

A machine that hides its switches (all pairs SYS on a server of eight RTX 4090, all PHB in a virtual machine) still has
two sockets: GPUs known to be on different ones cost a little more than the label says, never as much as a worse label.
"""

from __future__ import annotations

import re
from typing import Final

SELF: Final = "X"
PCIE_COST: Final = {"PIX": 2000, "PXB": 3000, "PHB": 4000, "NODE": 5000, "SYS": 6000}
"""Cost of a pair that talks over PCIe."""
NVLINK_COST: Final = 1000
"""Cost of a pair with one NVLink; with k links it is divided by k and rounded."""
APART_COST: Final = 500
"""Added to a PCIe pair on different NUMA nodes."""
APART_NVLINK_COST: Final = 1
"""The same for an NVLink pair, whose traffic does not pass the sockets: only a tie-break."""
MAX_NVLINKS: Final = 36
LABELS: Final = "a link is one of NV1 to NV36, PIX, PXB, PHB, NODE, SYS (or the old SOC), and X on the diagonal"
"""For errors."""

_NVLINK: Final = re.compile(r"NV([1-9][0-9]?)")
_SAME: Final = {"SOC": "SYS"}
# Effective GB/s a direction, by NCCL's table (graph/topo.h) for one generation of machine: NVLink of a V100, PCIe Gen3
# x16, a Broadwell socket link; what passes an Intel host bridge is slowed by 6/5 there.
_NVLINK_GBPS: Final = 20.0
_PCIE_GBPS: Final = {"PIX": 12.0, "PXB": 12.0, "PHB": 10.0, "NODE": 10.0, "SYS": 5.0}


def nvlinks(label: str) -> int:
    """Number of bonded NVLinks that a label such as `NV12` tells; 0 for any other."""
    found = _NVLINK.fullmatch(label)
    return int(found.group(1)) if found else 0


def known_label(text: str) -> str | None:
    """The label in today's spelling (`SOC` is `SYS`), or None when no version of nvidia-smi prints it."""
    label = _SAME.get(text, text)
    if label == SELF or label in PCIE_COST or 0 < nvlinks(label) <= MAX_NVLINKS:
        return label
    return None


def link_cost(label: str, *, apart: bool = False) -> int:
    """What a pair costs, lower is nearer, in hundredths of the paper's rank (PIX 2000); `apart` = other NUMA node.

    Raises:
        KeyError: no such label.
    """
    if label == SELF:
        return 0
    links = nvlinks(label)
    if links:
        return round(NVLINK_COST / links) + APART_NVLINK_COST * apart
    return PCIE_COST[label] + APART_COST * apart


def bandwidth_gbps(label: str) -> float:
    """Modelled bandwidth of a pair in GB/s a direction, the same generation of hardware for all machines.

    It compares sets on one machine; it predicts no machine's measured figure.

    Raises:
        KeyError: no such label.
    """
    links = nvlinks(label)
    return _NVLINK_GBPS * links if links else _PCIE_GBPS[label]
