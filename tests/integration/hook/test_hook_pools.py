"""What holds memory without an allocation call that names it: pools, exported handles, slabs that nobody uses."""

from __future__ import annotations

import time

import pytest
from kit.driver_calls import AS_DESCRIPTOR
from test_hook_memory import PRELUDE

MIB = 1 << 20

POOLS = (
    PRELUDE
    + """
def held(): return cuda.stats()["reserved_bytes"] // MIB
def new_pool():
    pool = c.c_void_p(); L.cuMemPoolCreate(c.byref(pool), c.byref(POOL)); return pool
def take(pool, mib):
    ptr = c.c_uint64(); r = L.cuMemAllocFromPoolAsync(c.byref(ptr), c.c_size_t(mib * MIB), pool, stream); return r, ptr
def keep(pool): L.cuMemPoolSetAttribute(pool, 4, c.byref(c.c_uint64(2**64 - 1)))
def sync(): L.cuStreamSynchronize(stream)
def info():
    free, total = c.c_size_t(), c.c_size_t(); L.cuMemGetInfo_v2(c.byref(free), c.byref(total)); return free.value // MIB
"""
)


@pytest.mark.parametrize("strict", [0, 1])
def test_a_destroyed_pool_stays_charged_until_its_memory_is_freed(tenant, strict):
    """A pool destroyed with live allocations stays charged until they are freed; then a new one has the room."""
    scene = tenant(memory_mib=1024, auto_grant=True, extra=(f"strict={strict}",))
    program = scene.run(
        POOLS + "first, second = new_pool(), new_pool(); a, p = take(first, 512); d = L.cuMemPoolDestroy(first)\n"
        "b, q = take(second, 512); e = L.cuMemPoolDestroy(second); over = take(new_pool(), 512)[0]; full = held()\n"
        "used = take(first, 1)[0]; L.cuMemFreeAsync(p, stream); sync(); again, r = take(new_pool(), 512)\n"
        "L.cuMemFreeAsync(q, stream); L.cuMemFreeAsync(r, stream); sync(); info()\n"
        "say(got=[a, d, b, e], over=over, full=full, used=used, again=again, end=held())"
    )

    assert program.read() == {"got": [0] * 4, "over": 2, "full": 1024, "used": 1, "again": 0, "end": 0}


@pytest.mark.parametrize("strict", [0, 1])
def test_a_pool_reuses_what_it_keeps(tenant, strict):
    """A pool with an endless release threshold serves the second round from its own memory, at the limit."""
    scene = tenant(memory_mib=768, auto_grant=True, extra=(f"strict={strict}",))
    program = scene.run(
        POOLS + "pool = new_pool(); keep(pool); got = []\n"
        "for _ in range(4):\n"
        "    taken = [take(pool, 16) for _ in range(48)]; got.append(max(r for r, _ in taken))\n"
        "    [L.cuMemFreeAsync(p, stream) for _, p in taken]; sync()\n"
        "say(got=got, kept=held(), linear=linear(256), left=held())"
    )

    assert program.read() == {"got": [0] * 4, "kept": 768, "linear": 0, "left": 256}


def test_a_free_under_way_is_waited_for(tenant):
    """An allocation that fits once a stream has come to a free succeeds."""
    scene = tenant(memory_mib=256, auto_grant=True)
    program = scene.run(
        POOLS + "f = cuda.spin(); pool = new_pool(); a, p = take(pool, 200); cuda.launch(f, 100_000_000, stream)\n"
        "L.cuMemFreeAsync(p, stream); say(a=a, b=linear(200))"
    )

    assert program.read() == {"a": 0, "b": 0}


@pytest.mark.parametrize(
    ("pending", "living_mib", "size_mib"),
    [("pool", 0, 1 << 16), ("pool", 150, 150), ("linear", 0, 1 << 16), ("linear", 150, 150), ("graph", 150, 150)],
)
def test_frees_under_way_are_not_waited_for_where_they_cannot_make_room(tenant, pending, living_mib, size_mib):
    """An allocation that would not fit after all frees that are under way is refused while the stream is still busy."""
    scene = tenant(memory_mib=256, auto_grant=True)
    program = scene.run(
        POOLS + f"f = cuda.spin(); made = linear({living_mib}) if {living_mib} else 0\n"
        "def pool(mib): return take(new_pool(), mib)[1]\n"
        "def linear_at(mib): linear(mib); return c.c_uint64(ptr.value)\n"
        "def of_graph(mib):\n"
        "    graph_alloc(mib); run = c.c_void_p(); params = AllocNode()\n"
        "    L.cuGraphMemAllocNodeGetParams(node, c.byref(params))\n"
        "    L.cuGraphInstantiateWithFlags(c.byref(run), graph, c.c_uint64(0)); L.cuGraphLaunch(run, stream); sync()\n"
        "    L.cuGraphExecDestroy(run); L.cuGraphDestroy(graph); return c.c_uint64(params.ptr)\n"
        f"p = {{'pool': pool, 'linear': linear_at, 'graph': of_graph}}[{pending!r}](64)\n"
        "cuda.launch(f, 4_000_000_000, stream)\n"
        f"freed = L.cuMemFreeAsync(p, stream); over = linear({size_mib}); busy = L.cuStreamQuery(stream)\n"
        "say(made=made, freed=freed, over=over, busy=busy)"
    )

    assert program.read() == {"made": 0, "freed": 0, "over": 2, "busy": 600}


def test_linear_memory_that_a_stream_frees_is_charged_until_then(tenant):
    """What cuMemAlloc gave and cuMemFreeAsync took is charged until the stream comes to it, and then free."""
    scene = tenant(memory_mib=258, auto_grant=True)
    program = scene.run(
        POOLS + "f = cuda.spin(); pieces = []; before = [held(), info(), cuda.stats()['ledger_entries']]\n"
        "def piece(mib): got = linear(mib); return got, c.c_uint64(ptr.value)\n"
        "for _ in range(3):\n"
        "    made = [piece(4) for _ in range(64)]; pieces += [r for r, _ in made]; cuda.launch(f, 50_000_000, stream)\n"
        "    pieces += [L.cuMemFreeAsync(p, stream) for _, p in made]\n"
        "under_way = held() - before[0]; sync(); free = info()\n"
        "say(codes=sorted(set(pieces)), under_way=under_way,\n"
        "    same=[held(), free, cuda.stats()['ledger_entries']] == before)"
    )

    assert program.read() == {"codes": [0], "under_way": 256, "same": True}


@pytest.mark.parametrize("closed", [True, False])
def test_exported_memory_is_charged_as_long_as_it_is_held(tenant, closed):
    """Released, an object stays charged while an import or a descriptor of it is held, and is free after the last."""
    scene = tenant(memory_mib=1024)
    program = scene.run(
        POOLS + "def create(): h = c.c_uint64(); return L.cuMemCreate(c.byref(h), c.c_size_t(512 * MIB),\n"
        "    c.byref(Prop(1, 1, Location(1, 0))), c.c_uint64(0)), h\n"
        "r, h = create(); fd = c.c_int(); L.cuMemExportToShareableHandle(c.byref(fd), h, 1, c.c_uint64(0))\n"
        "again = c.c_uint64(); closed = " + str(closed) + "\n"
        "if closed: i = L.cuMemImportFromShareableHandle(c.byref(again), c.c_void_p(fd.value), 1); os.close(fd.value)\n"
        "L.cuMemRelease(h); held_on = held(); other, o = create(); over = create()[0]\n"
        "L.cuMemRelease(again) if closed else os.close(fd.value)\n"
        "third = create()[0]; say(held=held_on, other=other, over=over, third=third, end=held())"
    )

    assert program.read() == {"held": 512, "other": 0, "over": 2, "third": 0, "end": 1024}


@pytest.mark.parametrize(("format_", "channels", "mib"), [(0x91, 4, 8), (0x98, 1, 8), (0x9D, 4, 16), (0xC2, 4, 64)])
def test_arrays_of_packed_formats_are_charged_by_their_blocks(tenant, format_, channels, mib):
    """4096 x 4096 elements cost 8 or 16 bytes for each block of 4 x 4, and a packed format its bytes."""
    scene = tenant(memory_mib=mib)
    program = scene.run(
        POOLS
        + f"def make(height): return L.cuArrayCreate_v2(ref, c.byref(Desc(4096, height, {format_}, {channels})))\n"
        "stats = cuda.stats()['denied']; over = make(8192); denied = cuda.stats()['denied'] - stats\n"
        "make(4096); say(over=over, denied=[denied, cuda.stats()['denied'] - stats])"
    )

    assert program.read() == {"over": 2, "denied": [1, 1]}


@pytest.mark.real_time
def test_a_completion_call_does_not_depend_on_what_is_held(tenant):
    """cuEventQuery with 10,000 allocations held adds less than a microsecond to what it costs with none."""
    scene = tenant(memory_mib=2048, auto_grant=True)
    program = scene.run(
        POOLS + "event = c.c_void_p(); L.cuEventCreate(c.byref(event), 2); query = L.cuEventQuery\n"
        "def cost():\n"
        "    best = 1e9\n"
        "    for _ in range(20):\n"
        "        t = time.perf_counter_ns(); [query(event) for _ in range(1000)]\n"
        "        best = min(best, (time.perf_counter_ns() - t) / 1000)\n"
        "    return best\n"
        "before = cost(); pool = new_pool(); keep(pool); size = c.c_size_t(512); out = c.c_uint64(); o = c.byref(out)\n"
        "for _ in range(10_000): L.cuMemAllocFromPoolAsync(o, size, pool, stream)\n"
        "L.cuMemFreeAsync(out, stream); say(before=before, after=cost())"
    )
    facts = program.read()

    assert facts["after"] - facts["before"] < 1000


def test_an_arbiter_that_is_away_for_longer_is_waited_for(tenant):
    """An allocation that needs the arbiter waits more than three seconds for one that is away, and then succeeds."""
    scene = tenant(memory_mib=1024)
    program = scene.run(POOLS + "say(r=linear(16)); wait_line(); say(r=linear(512))")
    program.read()
    scene.arbiter.stop()
    program.go()
    time.sleep(4.0)
    scene.arbiter.start()

    assert program.read()["r"] == 0


def test_free_memory_is_right_at_once(tenant):
    """cuMemGetInfo after a large release counts it, however far the arbiter has come."""
    scene = tenant(memory_mib=1024)
    program = scene.run(
        POOLS + "seen = []\nfor _ in range(50): linear(700); free(); seen.append(info())\nsay(least=min(seen))"
    )

    assert program.read() == {"least": 1024}


def test_an_imported_pool_is_charged_where_it_was_made(tenant):
    """A pool that comes back by its descriptor adds nothing to the charge, which ends with the pool that was made."""
    scene = tenant(memory_mib=512, auto_grant=True)
    program = scene.run(
        POOLS + "data = (c.c_ubyte * 64)(); fd, pool, again, at = c.c_int(), c.c_void_p(), c.c_void_p(), c.c_uint64()\n"
        "kind = type(POOL).from_buffer_copy(POOL); kind.handles = 1; L.cuMemPoolCreate(c.byref(pool), c.byref(kind))\n"
        "r, ptr = take(pool, 400); none = c.c_uint64(0); got = [r]\n"
        "got.append(L.cuMemPoolExportToShareableHandle(c.byref(fd), pool, 1, none))\n"
        "got.append(L.cuMemPoolExportPointer(data, ptr))\n"
        "got.append(L.cuMemPoolImportFromShareableHandle(c.byref(again), c.c_void_p(fd.value), 1, none))\n"
        "got.append(L.cuMemPoolImportPointer(c.byref(at), again, data)); both = held(); refused = take(again, 16)[0]\n"
        "got += [L.cuMemFreeAsync(at, stream), L.cuMemPoolDestroy(again)]; sync(); one = held()\n"
        "got += [L.cuMemFreeAsync(ptr, stream), L.cuMemPoolDestroy(pool)]; sync(); info()\n"
        "say(got=got, both=both, refused=refused, one=one, end=held(), next=linear(500))"
    )

    facts = program.read()
    assert [0] * 9 == facts.pop("got")
    assert facts == {"both": 416, "refused": 1, "one": 416, "end": 0, "next": 0}


def test_a_descriptor_that_is_closed_soon_after_a_look_for_others_ends_its_charge(tenant):
    """Memory that only a descriptor holds is charged until it is closed, also right after another was looked for."""
    gpu = tenant(memory_mib=256).driver()
    gpu.open()

    def shown() -> int:
        """A descriptor of memory that nothing else holds."""
        handle = gpu.create(2 * MIB, handles=AS_DESCRIPTOR).value
        descriptor = gpu.export(handle)
        gpu.ok("cuMemRelease", handle)
        return descriptor

    gpu.do("close", shown())
    looked = gpu.memory_info()
    descriptor = shown()
    time.sleep(0.01)
    gpu.sync()
    held = gpu.charged()
    gpu.do("close", descriptor)

    assert ((256 * MIB, 256 * MIB), 2 * MIB) == (looked, held)
    assert (looked, 0) == (gpu.memory_info(), gpu.charged())
