"""A tenant's memory through any history of allocations, in one or two processes, beside a model that adds up bytes.

`plain_memory` knows what each kind of memory costs; a context costs its allowance. What is refused is refused because
it does not fit into what the model has left.

The hook is built with ALIQUOT_CHECKS=2 for it, so that it checks its own invariants at each change.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kit.driver_calls import AS_DESCRIPTOR, INVALID_VALUE, MIB, OUT_OF_MEMORY, PAGE, PTX, Out
from kit.hooked_tenant import Tenant
from plain_memory import HEAP, SMALL, STEP, LivingGraph, Physical, Piece, Pool, Process, whole
from waiting import eventually

from aliquot.driver.native import HOOK, NativePartMissing, native_part

ROOT = Path(__file__).parents[3]
LIMIT, CONTEXT, CODE = 512 * MIB, 16 * MIB, 2 * MIB
EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
DESCRIBED = {"context_mib": CONTEXT >> 20, "module_kib": CODE >> 10}

sizes = st.one_of(
    st.sampled_from([512, 4096, SMALL - 512, SMALL, PAGE - 512, PAGE, PAGE + 512, 20 * MIB, 64 * MIB, 200 * MIB]),
    st.integers(1, LIMIT // 512 + 10).map(lambda granules: granules * 512),
)
large_sizes = sizes.map(lambda size: max(PAGE, whole(size, PAGE)))
rows = st.sampled_from([8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB])  # whole groups of rows, else arrays are charged more
which, picks = st.integers(0, 1), st.integers(0, 99)


class MemoryHistory(RuleBasedStateMachine):
    """Two processes at most, on one GPU of 512 MiB of the tenant's."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="alq-"))
        extra = tuple(f"{name}={value}" for name, value in DESCRIBED.items())
        self.tenant = Tenant(
            self.directory, memory_mib=LIMIT >> 20, context_mib=CONTEXT >> 20, auto_grant=True, extra=extra
        )
        self.processes: list[Process] = []

    def teardown(self) -> None:
        """After everything is freed the contexts alone are charged."""
        try:
            for process in self.processes:
                process.free_all()
            self.all_is_as_the_model_says()
            assert all(process.charge == 0 for process in self.processes)
            contexts = sum(len(process.contexts) for process in self.processes)
            assert self.tenant.device_bytes() == contexts * CONTEXT
        finally:
            self.tenant.close()
            shutil.rmtree(self.directory)

    @property
    def left(self) -> int:
        """Bytes of the limit that the model has left."""
        contexts = sum(len(process.contexts) for process in self.processes)
        return LIMIT - contexts * CONTEXT - sum(process.charge for process in self.processes)

    def fits(self, process: Process, need: Callable[[], int]) -> bool:
        """Whether so much more fits, if need be with what pools of the process keep and do not use."""
        if need() > self.left:
            process.trim()
        return bool(need() <= self.left)

    def attempt(self, process: Process, need: Callable[[], int], call: Callable[[], Any]) -> Any:
        """An allocation, which fails exactly if the model has no room: its answer, or None.

        Another process has half a second to return what it has leased and does not use, which may be little.
        """
        fits = self.fits(process, need)
        answers: list[Any] = []

        def answered() -> bool:
            answers.append(call())
            return answers[-1].code == (0 if fits else OUT_OF_MEMORY)

        if fits and len(self.processes) > 1:
            eventually(answered, f"{need()} bytes fit into {self.left}", 10)
        else:
            assert answered(), (answers, need(), self.left)
        return answers[-1] if fits else None

    def at(self, index: int) -> Process:
        return self.processes[index % len(self.processes)]

    def every(self, name: str) -> list[tuple[Process, Any]]:
        """All that the processes have of something."""
        return [(process, item) for process in self.processes for item in getattr(process, name)]

    def one(self, name: str, pick: int) -> tuple[Process, Any]:
        items = self.every(name)
        return items[pick % len(items)]

    @initialize()
    def first(self) -> None:
        self.processes.append(Process(self.tenant.driver()))

    @precondition(lambda self: len(self.processes) == 1 and self.left >= CONTEXT)
    @rule()
    def start_another(self) -> None:
        self.processes.append(Process(self.tenant.driver()))

    @precondition(lambda self: len(self.processes) == 2)
    @rule(index=which)
    def kill(self, index: int) -> None:
        """All that a process held is free when it is gone."""
        self.processes.pop(index).driver.kill()
        contexts = len(self.processes[0].contexts)
        eventually(lambda: self.tenant.arbiter.contexts[0] == contexts, "the arbiter hears of the end")

    @rule(index=which, size=sizes, kind=st.sampled_from(["linear", "managed"]))
    def allocate(self, index: int, size: int, kind: str) -> None:
        self._piece(index, kind, size, whole(size, PAGE))

    @rule(index=which, size=rows, kind=st.sampled_from(["array", "array3d", "mipmap", "pitch"]))
    def allocate_rows(self, index: int, size: int, kind: str) -> None:
        self._piece(index, kind, size, size)

    def _piece(self, index: int, kind: str, size: int, need: int) -> None:
        process = self.at(index)
        answer = self.attempt(process, lambda: need, lambda: process.driver.allocate(kind, size))
        if answer:
            process.pieces.append(Piece(kind, answer.value, size, process.driver.context))

    @rule(index=which)
    def load_code(self, index: int) -> None:
        process, driver = self.at(index), self.at(index).driver
        if self.left < PAGE:
            return  # loading itself needs a little, which is not the model's
        module = driver.new("cuModuleLoadData", PTX)
        answer = self.attempt(
            process, lambda: PAGE, lambda: driver.call("cuModuleGetFunction", Out(), module, "spin_ns")
        )
        assert answer
        process.pieces.append(Piece("module", module, CODE, driver.context))

    @precondition(lambda self: self.every("pieces"))
    @rule(pick=picks)
    def free(self, pick: int) -> None:
        process, piece = self.one("pieces", pick)
        process.free_piece(piece)

    @rule(index=which, size=st.sampled_from([0, PAGE, 32 * MIB, 300 * MIB]))
    def set_heap(self, index: int, size: int) -> None:
        """What the heap of a context has at its start is part of the context."""
        process = self.at(index)
        context = process.driver.context
        more = size - process.heap.get(context, 0)
        if self.attempt(process, lambda: max(0, more), lambda: process.driver.call("cuCtxSetLimit", 2, HEAP + size)):
            process.heap[context] = size

    @rule(index=which, keeps=st.booleans())
    def make_pool(self, index: int, keeps: bool) -> None:
        process = self.at(index)
        pool = Pool(process.driver.new_pool(), keeps)
        if keeps:
            process.driver.ok("cuMemPoolSetAttribute", pool.handle, 4, Out(start=b"\xff" * 8))
        process.pools.append(pool)

    @precondition(lambda self: self.every("open_pools"))
    @rule(pick=picks, size=sizes)
    def take(self, pick: int, size: int) -> None:
        process, pool = self.one("open_pools", pick)
        answer = self.attempt(process, lambda: pool.grow(size), lambda: process.driver.take(pool.handle, size))
        if answer:
            pool.reserved += pool.grow(size)
            pool.pointers[answer.value] = size

    @precondition(lambda self: self.every("pooled"))
    @rule(pick=picks)
    def free_in_stream(self, pick: int) -> None:
        process, (pool, pointer) = self.one("pooled", pick)
        process.free_pooled(pool, pointer)

    @precondition(lambda self: self.every("open_pools"))
    @rule(pick=picks)
    def trim_pool(self, pick: int) -> None:
        process, pool = self.one("open_pools", pick)
        process.driver.ok("cuMemPoolTrimTo", pool.handle, 0)
        pool.trim()

    @precondition(lambda self: self.every("open_pools"))
    @rule(pick=picks)
    def destroy_pool(self, pick: int) -> None:
        """It stays charged until the last of it is freed."""
        process, pool = self.one("open_pools", pick)
        process.destroy_pool(pool)

    @rule(index=which, size=large_sizes)
    def create(self, index: int, size: int) -> None:
        process = self.at(index)
        answer = self.attempt(process, lambda: size, lambda: process.driver.create(size, handles=AS_DESCRIPTOR))
        if answer:
            process.physical.append(Physical(size, [answer.value]))

    @precondition(lambda self: self.every("with_handle"))
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        process, one = self.one("with_handle", pick)
        process.driver.ok("cuMemRelease", one.handles.pop())
        process.let_go()

    @precondition(lambda self: self.every("with_handle"))
    @rule(pick=picks)
    def map(self, pick: int) -> None:
        process, one = self.one("with_handle", pick)
        one.mappings.append(process.map_memory(one.size, one.handles[0]))

    @precondition(lambda self: self.every("mapped"))
    @rule(pick=picks)
    def unmap(self, pick: int) -> None:
        process, one = self.one("mapped", pick)
        process.unmap_memory(one.size, one.mappings.pop())
        process.let_go()

    @precondition(lambda self: self.every("with_handle"))
    @rule(pick=picks)
    def export(self, pick: int) -> None:
        process, one = self.one("with_handle", pick)
        one.descriptors.append(process.driver.export(one.handles[0]))

    @precondition(lambda self: self.every("shown"))
    @rule(pick=picks)
    def import_again(self, pick: int) -> None:
        process, one = self.one("shown", pick)
        one.handles.append(process.driver.new("cuMemImportFromShareableHandle", one.descriptors[0], AS_DESCRIPTOR))

    @precondition(lambda self: self.every("shown"))
    @rule(pick=picks)
    def close(self, pick: int) -> None:
        process, one = self.one("shown", pick)
        process.driver.posix("close", one.descriptors.pop())
        process.let_go()

    @rule(index=which, size=large_sizes, frees=st.booleans(), captured=st.booleans())
    def make_graph(self, index: int, size: int, frees: bool, captured: bool) -> None:
        process, own = self.at(index), self.at(index).graphs
        graph = self.attempt(
            process,
            lambda: whole(own.size + size, STEP) - whole(own.size, STEP),
            lambda: process.driver.graph(size, frees=frees, captured=captured),
        )
        if graph:
            own.living.append(LivingGraph(graph, size, process.driver.context))
            if not frees:
                own.allocated[graph.pointer] = 0

    @precondition(lambda self: self.every("living_graphs"))
    @rule(pick=picks)
    def launch(self, pick: int) -> None:
        """A graph that frees nothing is launched again when its memory is free, and none after its context."""
        process, (graph, size, context) = self.one("living_graphs", pick)
        allocated = process.graphs.allocated
        wrong = bool(allocated.get(graph.pointer)) or context not in process.contexts
        assert (graph.launch(), process.driver.sync()) == (INVALID_VALUE if wrong else 0, 0)
        if graph.pointer in allocated and not wrong:
            allocated[graph.pointer] = size

    @precondition(lambda self: self.every("allocated_by_graphs"))
    @rule(pick=picks)
    def free_of_graph(self, pick: int) -> None:
        process, pointer = self.one("allocated_by_graphs", pick)
        process.free_of_graph(pointer)

    @precondition(lambda self: self.every("living_graphs"))
    @rule(pick=picks)
    def destroy_graph(self, pick: int) -> None:
        process, living = self.one("living_graphs", pick)
        process.destroy_graph(living)

    @rule(index=which)
    def make_context(self, index: int) -> None:
        process = self.at(index)
        answer = self.attempt(process, lambda: CONTEXT, lambda: process.driver.call("cuCtxCreate_v2", Out(), 0, 0))
        if answer:
            process.contexts[answer.value] = process.driver.new("cuStreamCreate", 1)
            process.make_current(answer.value)

    @rule(index=which, pick=picks)
    def switch(self, index: int, pick: int) -> None:
        process = self.at(index)
        process.make_current(list(process.contexts)[pick % len(process.contexts)])

    @precondition(lambda self: self.every("own_contexts"))
    @rule(pick=picks)
    def destroy_context(self, pick: int) -> None:
        """A context takes along what was allocated, loaded and set in it."""
        process, context = self.one("own_contexts", pick)
        process.driver.ok("cuCtxDestroy_v2", context)
        process.forget(context)
        process.make_current(process.primary)

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        """The charge of each process, what it sees as free, and what the device lends at most.

        What others of the tenant have leased and do not use is not free, but for who asks for it.
        """
        expected = [(process.charge, 0, self.left, LIMIT) for process in self.processes]
        settles_at(lambda: [self.seen(process) for process in self.processes], expected)
        assert self.tenant.device_bytes() <= LIMIT - self.left <= LIMIT

    def seen(self, process: Process) -> tuple[int, int, int, int]:
        """What is charged and what was charged wrongly, by the hook's counters; free and total bytes, by the driver."""
        process.driver.sync()
        unused = sum(other.driver.counters()["unused_bytes"] for other in self.processes if other is not process)
        free, total = process.driver.memory_info()
        counters = process.driver.counters()
        return counters["reserved_bytes"], counters["unbalanced"], free + unused, total


def settles_at(see: Callable[[], object], expected: object, timeout_s: float = 2.0) -> None:
    """What is given back is so at completion points and by threads of the hook, soon."""
    until_s = time.monotonic() + timeout_s
    while (now := see()) != expected and time.monotonic() < until_s:
        time.sleep(0.002)
    assert expected == now, (expected, now)


@pytest.fixture(scope="module", autouse=True)
def hook_that_checks_itself():
    """A build of the hook in build/checks, which ends a program where an invariant does not hold."""
    try:
        native_part(HOOK)
    except NativePartMissing as missing:
        pytest.skip(str(missing))
    if "ALIQUOT_NATIVE_DIR" in os.environ or not shutil.which("cmake"):
        yield
        return
    folder = ROOT / "build" / "checks"
    libraries = ["aliquot_hook", "aliquot_hook_cuda", "aliquot_hook_nvml"]
    for command in (["-S", ROOT, "-B", folder, "-DALIQUOT_CHECKS=2"], ["--build", folder, "--target", *libraries]):
        subprocess.run(["cmake", *command], check=True, capture_output=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALIQUOT_NATIVE_DIR", str(folder / "native"))
        yield


TestMemoryHistory = pytest.mark.timeout(900)(MemoryHistory.TestCase)
TestMemoryHistory.settings = settings(
    max_examples=200 if EXPLORES else 15, stateful_step_count=60 if EXPLORES else 40, deadline=None
)
