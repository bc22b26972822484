"""What the memory of one process costs, as an addition of bytes; and the calls that change both, process and addition.

Linear memory and arrays cost whole pages of 2 MiB, where small pointers share the page that their addresses lie in;
pools and graphs steps of 32 MiB; code what the emulated driver is told that it takes; physical memory, its pages, while
a handle, a mapping or a descriptor is there.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from kit.driver_calls import MIB, PAGE, Graph
from kit.driver_process import DriverProcess
from waiting import eventually

STEP, HEAP, SMALL = 32 * MIB, 8 * MIB, MIB


def whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@dataclass
class Piece:
    """Something that is charged: how it was allocated, its handle, its size, the context that it ends with."""

    kind: str
    handle: int
    size: int
    context: int = 0


@dataclass
class Physical:
    """Physical memory of a process: its bytes, its handles, where it is mapped, descriptors of it."""

    size: int
    handles: list[int]
    mappings: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @property
    def held(self) -> bool:
        return bool(self.handles or self.mappings or self.descriptors)


@dataclass
class Pool:
    """A pool, what it has of the device, and whether it keeps that."""

    handle: int
    keeps: bool
    reserved: int = 0
    alive: bool = True
    pointers: dict[int, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(self.pointers.values())

    def grow(self, size: int) -> int:
        """The bytes that one more allocation makes it reserve."""
        return whole(max(0, self.used + size - self.reserved), STEP)

    def trim(self) -> None:
        self.reserved = min(self.reserved, whole(self.used, STEP))

    def shrink(self) -> None:
        """After a free."""
        if not self.keeps or not self.alive:
            self.trim()


class LivingGraph(NamedTuple):
    """A graph, the memory that it allocates, the context that its executable is of."""

    graph: Graph
    size: int
    context: int


@dataclass
class Graphs:
    """Graphs with memory; of those that are gone, what they have allocated and nobody has freed."""

    living: list[LivingGraph] = field(default_factory=list)
    allocated: dict[int, int] = field(default_factory=dict)  # by those that free nothing, and not freed yet
    lost: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(each.size for each in self.living) + sum(self.lost.values())


class Process:
    """One process, and what the model says it holds."""

    def __init__(self, driver: DriverProcess) -> None:
        self.driver = driver
        eventually(lambda: driver.open() == 0, "a context fits", 10)
        self.primary = driver.context
        self.contexts = {self.primary: driver.stream}
        self.pieces: list[Piece] = []
        self.physical: list[Physical] = []
        self.pools: list[Pool] = []
        self.graphs = Graphs()
        self.heap: dict[int, int] = {}

    @property
    def charge(self) -> int:
        """Bytes without contexts."""
        # Managed pointers of two contexts may lie in one page: the address space is the process's.
        pages = {p.handle // PAGE for p in self.pieces if shares_a_page(p)}
        return (
            len(pages) * PAGE
            + sum(whole(p.size, PAGE) for p in self.pieces if not shares_a_page(p))
            + sum(one.size for one in self.physical)
            + sum(pool.reserved for pool in self.pools)
            + whole(self.graphs.size, STEP)
            + sum(self.heap.values())
        )

    def trim(self) -> None:
        """Memory is scarce: pools give back what they do not use."""
        for pool in self.pools:
            pool.trim()

    def forget(self, context: int) -> None:
        self.pieces = [piece for piece in self.pieces if piece.context != context]
        self.heap.pop(context, None)
        del self.contexts[context]

    def let_go(self) -> None:
        """Physical memory that nothing holds is gone."""
        self.physical = [one for one in self.physical if one.held]

    @property
    def open_pools(self) -> list[Pool]:
        return [pool for pool in self.pools if pool.alive]

    @property
    def pooled(self) -> list[tuple[Pool, int]]:
        return [(pool, pointer) for pool in self.pools for pointer in pool.pointers]

    @property
    def with_handle(self) -> list[Physical]:
        return [one for one in self.physical if one.handles]

    @property
    def mapped(self) -> list[Physical]:
        return [one for one in self.physical if one.mappings]

    @property
    def shown(self) -> list[Physical]:
        return [one for one in self.physical if one.descriptors]

    @property
    def living_graphs(self) -> list[LivingGraph]:
        return self.graphs.living

    @property
    def allocated_by_graphs(self) -> list[int]:
        return [pointer for pointer, size in self.graphs.allocated.items() if size] + list(self.graphs.lost)

    @property
    def own_contexts(self) -> list[int]:
        return [context for context in self.contexts if context != self.primary]

    def make_current(self, context: int) -> None:
        self.driver.ok("cuCtxSetCurrent", context)
        self.driver.context, self.driver.stream = context, self.contexts[context]

    def map_memory(self, size: int, handle: int) -> int:
        """Where physical memory was mapped."""
        address = self.driver.new("cuMemAddressReserve", size, 0, 0, 0)
        self.driver.ok("cuMemMap", address, size, 0, handle, 0)
        return address

    def unmap_memory(self, size: int, address: int) -> None:
        self.driver.ok("cuMemUnmap", address, size)
        self.driver.ok("cuMemAddressFree", address, size)

    def free_piece(self, piece: Piece) -> None:
        self.make_current(piece.context)
        if piece.kind == "module":
            self.driver.ok("cuModuleUnload", piece.handle)
        else:
            assert self.driver.free(piece.kind, piece.handle) == 0
        self.pieces.remove(piece)

    def free_pooled(self, pool: Pool, pointer: int) -> None:
        assert (self.driver.free_async(pointer), self.driver.sync()) == (0, 0)
        del pool.pointers[pointer]
        pool.shrink()

    def destroy_pool(self, pool: Pool) -> None:
        self.driver.ok("cuMemPoolDestroy", pool.handle)
        pool.alive = False
        pool.trim()

    def free_of_graph(self, pointer: int) -> None:
        assert (self.driver.code("cuMemFree_v2", pointer), self.driver.sync()) == (0, 0)
        self.graphs.lost.pop(pointer, 0)
        if pointer in self.graphs.allocated:
            self.graphs.allocated[pointer] = 0

    def destroy_graph(self, living: LivingGraph) -> None:
        self.graphs.living.remove(living)
        graph = living.graph
        assert graph.destroy() == [0, 0]
        if size := self.graphs.allocated.pop(graph.pointer, 0):
            self.graphs.lost[graph.pointer] = size

    def free_all(self) -> None:
        """Everything but the primary context, each by its own call."""
        for piece in list(self.pieces):
            self.free_piece(piece)
        for context in list(self.heap):
            self.make_current(context)
            self.driver.ok("cuCtxSetLimit", 2, HEAP)
            del self.heap[context]
        for pool in self.pools:
            for pointer in list(pool.pointers):
                self.free_pooled(pool, pointer)
            if pool.alive:
                self.destroy_pool(pool)
        while self.graphs.living:
            self.destroy_graph(self.graphs.living[0])
        for pointer in list(self.graphs.lost):
            self.free_of_graph(pointer)
        for one in self.physical:
            for address in one.mappings:
                self.unmap_memory(one.size, address)
            for handle in one.handles:
                self.driver.ok("cuMemRelease", handle)
            for descriptor in one.descriptors:
                self.driver.posix("close", descriptor)
        self.physical.clear()


def shares_a_page(piece: Piece) -> bool:
    """Whether a pointer is charged by the page that it lies in."""
    last = piece.handle + piece.size - 1
    return piece.kind in ("linear", "managed") and piece.size < SMALL and piece.handle // PAGE == last // PAGE
