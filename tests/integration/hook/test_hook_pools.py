"""What holds memory without an allocation call that names it: pools, exported handles, slabs that nobody uses."""

import time

import pytest
from kit.driver_calls import AS_DESCRIPTOR, INVALID_VALUE, MIB, NOT_READY, OUT_OF_MEMORY, Out, array_shape
from kit.driver_process import DriverProcess

RELEASE_THRESHOLD = 4


def keep(gpu: DriverProcess, pool: int) -> None:
    """The pool gives nothing back."""
    gpu.ok("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, Out(start=b"\xff" * 8))


@pytest.mark.parametrize("strict", [0, 1])
def test_a_destroyed_pool_stays_charged_until_its_memory_is_freed(tenant, strict):
    """A pool destroyed with live allocations stays charged until they are freed; then a new one has the room."""
    gpu = tenant(memory_mib=1024, auto_grant=True, extra=(f"strict={strict}",)).gpu()
    pools, pointers = [gpu.new_pool(), gpu.new_pool()], []
    for pool in pools:
        pointers.append(gpu.take(pool, 512 * MIB).value)
        gpu.ok("cuMemPoolDestroy", pool)
    over, full, used = gpu.take(gpu.new_pool(), 512 * MIB).code, gpu.charged(), gpu.take(pools[0], MIB).code
    gpu.free("async", pointers[0])
    again = gpu.take(gpu.new_pool(), 512 * MIB)
    gpu.free("async", pointers[1])
    gpu.free("async", again.value)

    assert (OUT_OF_MEMORY, 1024 * MIB, INVALID_VALUE, 0) == (over, full, used, again.code)
    assert 0 == gpu.charged()


def test_a_free_under_way_is_waited_for(tenant):
    """An allocation that fits once a stream has come to a free succeeds."""
    gpu = tenant(memory_mib=256, auto_grant=True).gpu()
    pointer = gpu.take(gpu.new_pool(), 200 * MIB).value
    gpu.launch(gpu.function(), 100_000_000, gpu.stream)
    gpu.free_async(pointer)

    assert 0 == gpu.allocate("linear", 200 * MIB).code


def freed_later(gpu: DriverProcess, kind: str, size: int) -> int:
    """Memory that a stream may free."""
    if kind != "graph":
        return int(gpu.allocate(kind, size).value)
    graph = gpu.graph(size)
    assert (graph.launch(), gpu.sync(), graph.destroy()) == (0, 0, [0, 0])
    return graph.pointer


@pytest.mark.parametrize(
    ("pending", "living_mib", "size_mib"),
    [("pool", 0, 1 << 16), ("pool", 150, 150), ("linear", 0, 1 << 16), ("linear", 150, 150), ("graph", 150, 150)],
)
def test_frees_under_way_are_not_waited_for_where_they_cannot_make_room(tenant, pending, living_mib, size_mib):
    """An allocation that would not fit after all frees that are under way is refused while the stream is still busy."""
    gpu = tenant(memory_mib=256, auto_grant=True).gpu()
    function = gpu.function()
    assert not living_mib or gpu.allocate("linear", living_mib * MIB).code == 0
    pointer = freed_later(gpu, pending, 64 * MIB)
    gpu.launch(function, 4_000_000_000, gpu.stream)
    freed = gpu.free_async(pointer)

    assert (0, OUT_OF_MEMORY) == (freed, gpu.allocate("linear", size_mib * MIB).code)
    assert NOT_READY == gpu.code("cuStreamQuery", gpu.stream)


def test_linear_memory_that_a_stream_frees_is_charged_until_then(tenant):
    """What cuMemAlloc gave and cuMemFreeAsync took is charged until the stream comes to it, and then free."""
    gpu = tenant(memory_mib=258, auto_grant=True).gpu()
    function = gpu.function()
    before = gpu.charged(), gpu.memory_info(), gpu.counters()["ledger_entries"]
    codes = []
    for _ in range(3):
        pieces = [gpu.allocate("linear", 4 * MIB) for _ in range(64)]
        gpu.launch(function, 50_000_000, gpu.stream)
        codes += [piece.code or gpu.free_async(piece.value) for piece in pieces]
    under_way = gpu.charged() - before[0]
    gpu.settle()

    assert ({0}, 256 * MIB) == (set(codes), under_way)
    assert before == (gpu.charged(), gpu.memory_info(), gpu.counters()["ledger_entries"])


@pytest.mark.parametrize("held_by", ["import", "descriptor"])
def test_exported_memory_is_charged_as_long_as_it_is_held(tenant, held_by):
    """Released, an object stays charged while an import or a descriptor of it is held, and is free after the last."""
    gpu = tenant(memory_mib=1024).gpu()

    def create() -> tuple[int, int]:
        answer = gpu.create(512 * MIB, handles=AS_DESCRIPTOR)
        return answer.code, answer.value

    _, handle = create()
    descriptor = gpu.export(handle)
    again = 0
    if held_by == "import":
        again = gpu.new("cuMemImportFromShareableHandle", descriptor, AS_DESCRIPTOR)
        gpu.posix("close", descriptor)
    gpu.ok("cuMemRelease", handle)
    held, other, over = gpu.charged(), create()[0], create()[0]
    if again:
        gpu.ok("cuMemRelease", again)
    else:
        gpu.posix("close", descriptor)

    assert (512 * MIB, 0, OUT_OF_MEMORY) == (held, other, over)
    assert (0, 1024 * MIB) == (create()[0], gpu.charged())


@pytest.mark.parametrize(("format_", "channels", "mib"), [(0x91, 4, 8), (0x98, 1, 8), (0x9D, 4, 16), (0xC2, 4, 64)])
def test_arrays_of_packed_formats_are_charged_by_their_blocks(tenant, format_, channels, mib):
    """4096 x 4096 elements cost 8 or 16 bytes for each block of 4 x 4, and a packed format its bytes."""
    gpu = tenant(memory_mib=mib).gpu()

    def denied(height: int) -> tuple[int, int]:
        before = gpu.counters()["denied"]
        code = gpu.code("cuArrayCreate_v2", Out(), array_shape(4096, height, format_, channels))
        return code, gpu.counters()["denied"] - before

    assert (OUT_OF_MEMORY, 1) == denied(8192)
    assert 0 == denied(4096)[1]


@pytest.mark.real_time
def test_a_completion_call_does_not_depend_on_what_is_held(tenant):
    """cuEventQuery with 10,000 allocations held adds less than a microsecond to what it costs with none."""
    gpu = tenant(memory_mib=2048, auto_grant=True).gpu()
    event = gpu.new("cuEventCreate", 2)
    before = gpu.do("cost_ns", 20, 1000, "cuEventQuery", event)
    pool = gpu.new_pool()
    keep(gpu, pool)
    gpu.do("repeat", 9_999, "cuMemAllocFromPoolAsync", Out(), 512, pool, gpu.stream)
    gpu.free_async(gpu.take(pool, 512).value)

    assert gpu.do("cost_ns", 20, 1000, "cuEventQuery", event) - before < 1000


def test_an_arbiter_that_is_away_for_longer_is_waited_for(tenant):
    """An allocation that needs the arbiter waits more than three seconds for one that is away, and then succeeds."""
    scene = tenant(memory_mib=1024)
    gpu = scene.gpu()
    gpu.allocate("linear", 16 * MIB)
    scene.arbiter.stop()
    late = gpu.begin("cuMemAlloc_v2", Out(), 512 * MIB)
    time.sleep(4.0)
    scene.arbiter.start()

    assert 0 == late.answer().code


def test_free_memory_is_right_at_once(tenant):
    """cuMemGetInfo after a large release counts it, however far the arbiter has come."""
    gpu = tenant(memory_mib=1024).gpu()

    for _ in range(50):
        gpu.ok("cuMemFree_v2", gpu.allocate("linear", 700 * MIB).value)
        assert 1024 * MIB == gpu.memory_info()[0]


def test_an_imported_pool_is_charged_where_it_was_made(tenant):
    """A pool that comes back by its descriptor adds nothing to the charge, which ends with the pool that was made."""
    gpu = tenant(memory_mib=512, auto_grant=True).gpu()
    pool = gpu.new_pool(handles=AS_DESCRIPTOR)
    pointer = gpu.take(pool, 400 * MIB).value
    descriptor = gpu.call("cuMemPoolExportToShareableHandle", Out(4), pool, AS_DESCRIPTOR, 0).value
    shown = gpu.call("cuMemPoolExportPointer", Out(64), pointer).value
    again = gpu.new("cuMemPoolImportFromShareableHandle", descriptor, AS_DESCRIPTOR, 0)
    imported = gpu.new("cuMemPoolImportPointer", again, shown)
    both, refused = gpu.charged(), gpu.take(again, 16 * MIB).code
    freed = [gpu.free_async(imported), gpu.code("cuMemPoolDestroy", again), gpu.sync()]
    one = gpu.charged()
    freed += [gpu.free_async(pointer), gpu.code("cuMemPoolDestroy", pool), gpu.settle()]

    assert (416 * MIB, INVALID_VALUE, 416 * MIB) == (both, refused, one)
    assert ([0] * 6, 0) == (freed, gpu.allocate("linear", 500 * MIB).code)


def test_a_descriptor_that_is_closed_soon_after_a_look_for_others_ends_its_charge(tenant):
    """Memory that only a descriptor holds is charged until it is closed, also right after another was looked for."""
    gpu = tenant(memory_mib=256).gpu()

    def shown() -> int:
        """A descriptor of memory that nothing else holds."""
        handle = gpu.create(2 * MIB, handles=AS_DESCRIPTOR).value
        descriptor = gpu.export(handle)
        gpu.ok("cuMemRelease", handle)
        return descriptor

    gpu.posix("close", shown())
    looked = gpu.memory_info()
    descriptor = shown()
    time.sleep(0.01)
    gpu.sync()
    held = gpu.charged()
    gpu.posix("close", descriptor)

    assert ((256 * MIB, 256 * MIB), 2 * MIB) == (looked, held)
    assert (looked, 0) == (gpu.memory_info(), gpu.charged())
