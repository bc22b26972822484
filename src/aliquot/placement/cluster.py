"""The ledger of a cluster and, kept with it, the columns that deciding needs.

The one place where devices are given away. Every change touches what changed and nothing else: the cells of the
devices, the sums of the node, its version. Labels on devices are derived from the residents; an index counts them, so
that a tenant that leaves takes its labels along. Each change ends with assertions about all that it touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask, model_matches
from aliquot.placement.entries import (
    GONE,
    Holding,
    LabelIndex,
    LedgerError,
    MeasuredKernels,
    NodeSpec,
    Placement,
    Resident,
    UndoLog,
    kind_of,
)
from aliquot.topology.machine import MAX_GPUS

__all__ = ["Cluster", "Holding", "LedgerError", "NodeSpec", "Placement", "Resident"]


@dataclass(slots=True)
class NodeRow:
    """One node's residents, by device and by tenant; `column` finds a device by UUID."""

    spec: NodeSpec
    column: dict[str, int]
    residents: list[dict[str, Resident]]
    tenants: set[str] = field(default_factory=set)
    kinds: dict[int, int] = field(default_factory=dict)


class Cluster:
    """Nodes, their devices and their tenants; columns are by node index [N] and device index [N, G].

    Arrays are replaced, not resized, when nodes come; `layout` counts that, so the holder of an array checks it. The
    index of a removed node is given to the next new node.
    """

    free_milli: NDArray[np.int32]
    free_mib: NDArray[np.int64]
    size_mib: NDArray[np.int64]
    model: NDArray[np.int16]
    cpu_free: NDArray[np.int64]
    memory_free: NDArray[np.int64]
    rank: NDArray[np.int64]
    version: NDArray[np.int64]
    gpu_count: NDArray[np.int16]
    open: NDArray[np.bool_]
    """Nodes that take pods: here, and not cordoned."""
    free_total: NDArray[np.int64]
    """Milli-GPU unreserved on all devices of a node."""
    idle_count: NDArray[np.int16]
    """Devices of a node without tenants."""
    kinds: NDArray[np.int64]
    """Kinds of GPU pods on a node as bits: bit 0 for pods with a part of one GPU, bit n for those on n devices."""

    def __init__(self, nodes: Sequence[NodeSpec] = ()) -> None:
        self.models: list[str] = []
        self.model_mib: list[int] = []  # the least memory a device of each model has
        self.layout = 0
        self.labels = LabelIndex()
        self.measured = MeasuredKernels()
        self.unhealthy: set[tuple[int, int]] = set()
        self.mixed: set[int] = set()
        """Nodes with GPUs of more than one model."""
        self.index: dict[str, int] = {}
        self.uuids: dict[str, tuple[int, int]] = {}
        self.tenants: dict[str, Holding] = {}
        self.rows: list[NodeRow | None] = []
        self.used: dict[str, dict[int, list[int]]] = {}
        self._clock = 0
        self._undo: UndoLog | None = None
        self._spare: list[int] = []
        self._allocate(len(nodes), max((len(node.gpus) for node in nodes), default=0))
        for node in nodes:
            self.add_node(node)

    # Nodes come and go

    def add_node(self, spec: NodeSpec) -> int:
        """Take a node in, all of it free; its index.

        Raises:
            LedgerError: a node of that name, or a device of that UUID, is here; or the node has too many devices.
        """
        assert self._undo is None, "nodes do not come in a trial"
        if spec.name in self.index:
            raise LedgerError(f'a node "{spec.name}" is here already; remove it first')
        if len(spec.gpus) > MAX_GPUS:
            raise LedgerError(f'node "{spec.name}" has {len(spec.gpus)} GPUs; a machine has {MAX_GPUS} at most')
        for device in spec.gpus:
            if device.uuid in self.uuids:
                raise LedgerError(f'GPU {device.uuid} of node "{spec.name}" is on another node already')
        if spec.topology is not None and spec.topology.count != len(spec.gpus):
            raise LedgerError(f'the topology of node "{spec.name}" has {spec.topology.count} GPUs, the node has others')
        column: dict[str, int] = {device.uuid: g for g, device in enumerate(spec.gpus)}
        if len(column) != len(spec.gpus):
            raise LedgerError(f'node "{spec.name}" names a GPU twice')
        rows, columns = self.free_milli.shape
        if not self._spare or len(spec.gpus) > columns:
            self._allocate(rows if self._spare else max(rows + 1, rows * 5 // 4), max(columns, len(spec.gpus)))
        number = self._spare.pop()
        self.rows[number] = NodeRow(spec, column, [{} for _ in spec.gpus])
        self.index[spec.name] = number
        self.uuids.update({uuid: (number, g) for uuid, g in column.items()})
        self.unhealthy.update((number, g) for uuid, g in column.items() if uuid in spec.unhealthy)
        for g, device in enumerate(spec.gpus):
            self.free_milli[number, g] = MILLI
            self.free_mib[number, g] = self.size_mib[number, g] = device.memory_mib
            if device.model not in self.models:
                self.models.append(device.model)
                self.model_mib.append(device.memory_mib)
            model = self.model[number, g] = self.models.index(device.model)
            self.model_mib[model] = min(self.model_mib[model], device.memory_mib)
        if len({device.model for device in spec.gpus}) > 1:
            self.mixed.add(number)
        self.cpu_free[number], self.memory_free[number] = spec.cpu_milli, spec.memory_mib
        self.rank[number] = spec.rank
        self.gpu_count[number] = self.idle_count[number] = len(spec.gpus)
        self.free_total[number] = MILLI * len(spec.gpus)
        self.open[number] = True
        self.layout += 1
        self._touch(number)
        return number

    def remove_node(self, name: str) -> tuple[str, ...]:
        """Remove a node and its tenants from the ledger; returns the tenants.

        Raises:
            LedgerError: there is no such node.
        """
        assert self._undo is None, "nodes do not leave in a trial"
        number = self.node_index(name)
        node = self._node(number)
        gone = tuple(sorted(node.tenants))
        for tenant in gone:
            self.release(tenant)
        for uuid in node.column:
            self.unhealthy.discard(self.uuids.pop(uuid))
        self.mixed.discard(number)
        del self.index[name]
        self.rows[number] = None
        self._spare.append(number)
        for row in (self.free_milli, self.free_mib, self.size_mib, self.model):
            row[number] = GONE
        self.cpu_free[number] = self.memory_free[number] = GONE
        self.gpu_count[number] = self.idle_count[number] = self.free_total[number] = self.kinds[number] = 0
        self.open[number] = False
        self.layout += 1
        self._touch(number)
        return gone

    def set_cordoned(self, name: str, cordoned: bool = True) -> None:
        """Let a node take no more pods, or let it take them again; those on it stay.

        Raises:
            LedgerError: there is no such node.
        """
        number = self.node_index(name)
        if self._undo is not None:
            self._undo.steps.append(partial(self.set_cordoned, name, not self.open[number]))
        self.open[number] = not cordoned
        self._touch(number)

    def node_index(self, name: str) -> int:
        """The index of a node.

        Raises:
            LedgerError: there is no such node.
        """
        if name not in self.index:
            raise LedgerError(f'there is no node "{name}" in the ledger')
        return self.index[name]

    def spec(self, node: int) -> NodeSpec:
        """The node of an index."""
        return self._node(node).spec

    @property
    def nodes(self) -> list[NodeSpec]:
        """All nodes, by index."""
        return [node.spec for node in self.rows if node is not None]

    @property
    def clock(self) -> int:
        """Equal for two moments between which nothing has changed."""
        return self._clock

    def model_mask(self, models: Iterable[str]) -> NDArray[np.bool_]:
        """Which models answer to one of these names: bool [number of models + 1], the last one (no device) never."""
        names = tuple(models)
        found = [not names or any(model_matches(name, model) for name in names) for model in self.models]
        return np.array([*found, False])

    # Tenants come and go

    def reserve(self, tenant: str, placement: Placement, ask: Ask) -> None:
        """Write a placement into the ledger, all of it or nothing.

        Raises:
            LedgerError: the tenant holds something already, or the placement does not fit (any more).
        """
        if tenant in self.tenants:
            raise LedgerError(f'a tenant "{tenant}" is running already; choose another name or end it first')
        number = self.node_index(placement.node)
        node = self._node(number)
        for piece in placement.slices:
            if piece.gpu not in node.column:
                raise LedgerError(f'the plan of "{tenant}" names {piece.gpu}, which is not on node "{placement.node}"')
        cells = tuple(node.column[piece.gpu] for piece in placement.slices)
        if len(set(cells)) != len(cells):
            raise LedgerError(f'the plan of "{tenant}" names a GPU twice')
        self._require_room(tenant, number, cells, placement, ask)
        self.tenants[tenant] = Holding(placement, ask, number, cells)
        node.tenants.add(tenant)
        self.cpu_free[number] -= ask.cpu_milli
        self.memory_free[number] -= ask.memory_mib
        for g, piece in zip(cells, placement.slices, strict=True):
            resident = Resident(tenant, piece, ask.labels, ask.gpu_id)
            self._count(number, node, g, resident, 1)
            node.residents[g][tenant] = resident
            self.labels.add((number, g), ask.labels, ask.gpu_id)
        self._count_kind(number, node, ask, 1)
        if self._undo is not None:
            self._undo.steps.append(partial(self.release, tenant))
        self._touch(number)
        self.recount(number, cells)

    def release(self, tenant: str) -> Holding | None:
        """Remove a tenant from the ledger; returns what it held, None for one that is not in it."""
        holding = self.tenants.pop(tenant, None)
        if holding is None:
            return None
        number, node = holding.node, self._node(holding.node)
        node.tenants.discard(tenant)
        self.cpu_free[number] += holding.ask.cpu_milli
        self.memory_free[number] += holding.ask.memory_mib
        for g in holding.cells:
            resident = node.residents[g].pop(tenant)
            self._count(number, node, g, resident, -1)
            self.labels.drop((number, g), resident.labels, resident.gpu_id)
        self._count_kind(number, node, holding.ask, -1)
        if self._undo is not None:
            self._undo.steps.append(partial(self.reserve, tenant, holding.placement, holding.ask))
        self._touch(number)
        self.recount(number, holding.cells)
        return holding

    def residents(self, node: int, gpu: int) -> list[Resident]:
        """Who is on a device, in the order of arrival."""
        return list(self._node(node).residents[gpu].values())

    def holds(self, namespace: str, node: int, gpu: int) -> bool:
        """Whether a tenant of the namespace is on a device."""
        return any(split_key(tenant)[0] == namespace for tenant in self._node(node).residents[gpu])

    def tenants_on(self, node: int) -> list[str]:
        """Who is on a node, sorted."""
        return sorted(self._node(node).tenants)

    def usage(self, namespace: str) -> Mapping[str, tuple[int, int]]:
        """What a namespace holds of every model: (milli-GPU, MiB of GPU memory); an exclusive device counts whole."""
        used = self.used.get(namespace, {})
        return {self.models[model]: (milli, mib) for model, (milli, mib) in used.items() if milli}

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Take back at its end what is reserved, released and cordoned in a block; no other change is allowed there.

        The nodes then have their versions of before, so what was remembered of them still holds. Versions within the
        block are never used again. Trials nest; nodes neither come nor leave in one, and none spans an `await`, for the
        watch changes the same ledger. A snapshot for each cycle would reserve every tenant again where a filter has
        milliseconds, and a copy of the one node lacks the labels and quotas that are indexed over the cluster.
        """
        log, outer = UndoLog(), self._undo
        self._undo = log
        try:
            yield
        finally:
            self._undo = None
            log.take_back(self.version)
            self._undo = outer

    def copy(self) -> Cluster:
        """A copy of the ledger, to try things in; indices are those of the original as far as it has no gaps."""
        fresh = Cluster(self.nodes)
        for spec in self.nodes:
            fresh.set_cordoned(spec.name, not self.open[self.index[spec.name]])
        for tenant, holding in self.tenants.items():
            fresh.reserve(tenant, holding.placement, holding.ask)
        fresh.measured = self.measured
        return fresh

    # Inside

    def _count(self, number: int, node: NodeRow, g: int, resident: Resident, sign: int) -> None:
        """One resident more (1) or less (-1) on a device; of `residents` there are those without it."""
        milli, mib = sign * resident.piece.request_milli, sign * resident.piece.memory_mib
        self.idle_count[number] -= sign * (not node.residents[g])
        self.free_milli[number, g] -= milli
        self.free_mib[number, g] -= mib
        self.free_total[number] -= milli
        namespace = split_key(resident.tenant)[0]
        if resident.labels.exclusion:  # the GPU is closed to others, so its first tenant of a namespace takes all of it
            first = not self.holds(namespace, number, g)
            milli, mib = sign * first * MILLI, sign * first * self.size_mib.item(number, g)
        used = self.used.setdefault(namespace, {}).setdefault(self.model.item(number, g), [0, 0])
        used[0] += milli
        used[1] += mib

    def _count_kind(self, number: int, node: NodeRow, ask: Ask, change: int) -> None:
        if not ask.devices:
            return
        kind = kind_of(ask)
        node.kinds[kind] = node.kinds.get(kind, 0) + change
        if node.kinds[kind]:
            self.kinds[number] |= 1 << kind
        else:
            self.kinds[number] &= ~(1 << kind)

    def _require_room(self, tenant: str, number: int, cells: tuple[int, ...], placement: Placement, ask: Ask) -> None:
        where = f'the plan of "{tenant}" does not fit on'
        if sum(piece.request_milli for piece in placement.slices) != ask.milli:
            raise LedgerError(f'the plan of "{tenant}" gives another part of GPUs than it asks for')
        if ask.cpu_milli > self.cpu_free.item(number) or ask.memory_mib > self.memory_free.item(number):
            raise LedgerError(f'{where} node "{placement.node}" any more')
        for g, piece in zip(cells, placement.slices, strict=True):
            short = piece.request_milli > self.free_milli.item(number, g)
            if short or piece.memory_mib > self.free_mib.item(number, g) or piece.memory_mib < 0:
                raise LedgerError(f"{where} {piece.gpu} any more")
        if not self.labels.allows([(number, g) for g in cells], ask, self.residents):
            raise LedgerError(f'labels on the devices of node "{placement.node}" keep "{tenant}" out')

    def _touch(self, number: int) -> None:
        if self._undo is not None:
            self._undo.versions.setdefault(number, self.version.item(number))
        self._clock += 1
        self.version[number] = self._clock

    def _node(self, number: int) -> NodeRow:
        node = self.rows[number]
        assert node is not None, f"index {number} is of a node that left"
        return node

    def _allocate(self, rows: int, columns: int) -> None:
        """Columns for so many nodes and devices, with what was in them before."""
        shapes = {
            "free_milli": (np.int32, GONE, 2), "free_mib": (np.int64, GONE, 2), "size_mib": (np.int64, GONE, 2),
            "model": (np.int16, GONE, 2), "cpu_free": (np.int64, GONE, 1), "memory_free": (np.int64, GONE, 1),
            "rank": (np.int64, 0, 1), "version": (np.int64, 0, 1), "gpu_count": (np.int16, 0, 1),
            "open": (np.bool_, False, 1), "free_total": (np.int64, 0, 1), "idle_count": (np.int16, 0, 1),
            "kinds": (np.int64, 0, 1),
        }  # fmt: skip
        for name, (kind, empty, dimensions) in shapes.items():
            fresh: NDArray[Any] = np.full((rows, columns)[:dimensions], empty, dtype=kind)
            if self.rows:
                before = getattr(self, name)
                fresh[tuple(slice(n) for n in before.shape)] = before
            setattr(self, name, fresh)
        self._spare = [*range(rows - 1, len(self.rows) - 1, -1), *self._spare]
        self.rows += [None] * (rows - len(self.rows))
        self.layout += 1

    # Invariants

    def recount(self, number: int, cells: Iterable[int]) -> None:
        """Assert that what was just changed is in order: recounts those devices from their residents."""
        node = self._node(number)
        assert self.cpu_free.item(number) >= 0 and self.memory_free.item(number) >= 0
        for g in cells:
            pieces = [resident.piece for resident in node.residents[g].values()]
            milli = MILLI - sum(piece.request_milli for piece in pieces)
            mib = self.size_mib.item(number, g) - sum(piece.memory_mib for piece in pieces)
            assert 0 <= milli == self.free_milli.item(number, g), f"GPU {g} of node {number}: {milli} milli left"
            assert 0 <= mib == self.free_mib.item(number, g), f"GPU {g} of node {number}: {mib} MiB left"
