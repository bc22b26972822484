"""The kernel lengths that nodes publish, kept in the ledger for tenants with a promised wake."""

from __future__ import annotations

from aliquot.kube.kernels import read_kernels
from aliquot.kube.names import GPU_KERNELS, GPUS
from aliquot.kube.objects import Node
from aliquot.placement.entries import MeasuredKernels


class KernelLengthTracker:
    """Reads the annotation of each node; a node is trusted only for the GPUs of its own inventory."""

    def __init__(self, measured: MeasuredKernels) -> None:
        self._measured = measured
        self._texts: dict[str, str] = {}
        self._gpus: dict[str, tuple[str, ...]] = {}

    def take(self, node: Node, *, gone: bool) -> None:
        """Replace the node's earlier values."""
        name, notes = node.metadata.name, node.metadata.annotations
        text = "" if gone else notes.get(GPU_KERNELS, "")
        if self._texts.get(name, "") == text:
            return
        self._texts[name] = text
        said = read_kernels({GPU_KERNELS: text} if text else {})
        self._measured.turns.pop(name, None)
        if said.turns:
            self._measured.turns[name] = said.turns
        for uuid in self._gpus.pop(name, ()):
            self._measured.kernels.pop(uuid, None)
        own = {uuid: kernels for uuid, kernels in said.gpus.items() if f'"{uuid}"' in notes.get(GPUS, "")}
        self._measured.kernels.update(own)
        self._gpus[name] = tuple(own)
