"""SharePods that wait for a GPU of the stock plugin (coexist): a vGPU is created for those that fit on no vGPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aliquot.kube.custom import VGPU, SharePod
from aliquot.kube.requests import PodAsk
from aliquot.model.quantities import MILLI, BadQuantity, parse_milli
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.operator.status import Told, waiting
from aliquot.scheduler.pool.pool import VgpuPool
from aliquot.scheduler.verdicts import fits_now


@dataclass
class Demand:
    """`naming` gives the SharePods whose spec or status names a vGPU."""

    ledger: Ledger
    pool: VgpuPool
    naming: Callable[[str], Iterable[SharePod]]

    async def meet(self, sharepod: SharePod, ask: PodAsk, vgpu: VGPU | None) -> Told | None:
        """Make sure that a GPU exists for it; None if so, else what it waits for; `vgpu` is the vGPU that it names."""
        gpu_id, node = sharepod.spec.gpu.gpu_id, sharepod.spec.node_name
        if vgpu is not None:
            return None if vgpu.status.uuid else _made_for(vgpu)
        if not gpu_id and fits_now(self.ledger, ask, node):
            return None
        units = ask.units()
        if any(unit.ask.devices > 1 for unit in units):
            return waiting(
                "TooMany", "a SharePod takes one GPU here; several whole ones are the stock plugin's (nvidia.com/gpu)"
            )
        waited = self._under_way(sharepod, ask)
        if waited is None:
            waited = await self.pool.one_more(gpu_id, node, units[0].ask.models if units else ())
        if waited is None:
            where = f'node "{node}" has' if node else "no node has"
            return waiting("NoGPU", f"{where} no GPU that the stock plugin could give, and no vGPU has room")
        return _made_for(waited)

    def waits_for(self, name: str) -> bool:
        """Whether a SharePod waits for the vGPU of that name."""
        return any(not _ended(s) for s in self.naming(name))

    def _under_way(self, sharepod: SharePod, ask: PodAsk) -> VGPU | None:
        """A vGPU that is being created and has room for one more, besides those that wait for it already.

        Only SharePods without labels share one before it exists: only the ledger can evaluate labels together.
        """
        mine = self.pool.known.get(sharepod.status.gpu_id) if sharepod.status.gpu_id else None
        if mine is not None and mine.status.phase in (None, "Creating"):
            return mine
        if sharepod.spec.gpu.gpu_id or not all(unit.ask.plain and not unit.ask.models for unit in ask.units()):
            return None
        for vgpu in self.pool.known:
            if vgpu.status.phase not in (None, "Creating"):
                continue
            name, node = vgpu.metadata.name, sharepod.spec.node_name
            on_it = [s for s in self.naming(name) if s.status.gpu_id == name and not _ended(s)]
            near = not node or node == vgpu.spec.node_name
            plain = all(not (s.spec.gpu.affinity or s.spec.gpu.anti_affinity or s.spec.gpu.exclusion) for s in on_it)
            total = sum(c.total_milli for c in ask.containers) + sum(_milli(s) for s in on_it)
            if near and plain and total <= MILLI:
                return vgpu
        return None


def _made_for(vgpu: VGPU) -> Told:
    message = f'vGPU "{vgpu.metadata.name}" is being made on node {vgpu.spec.node_name}'
    return waiting("CreatingVGPU", message, gpu_id=vgpu.metadata.name)


def _ended(sharepod: SharePod) -> bool:
    return sharepod.status.phase in ("Succeeded", "Failed")


def _milli(sharepod: SharePod) -> int:
    try:
        return parse_milli(sharepod.spec.gpu.request)
    except BadQuantity:
        return 0
