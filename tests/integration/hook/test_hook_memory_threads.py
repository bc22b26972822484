"""Memory under threads: whatever is allocated and freed at once, nothing stays charged and no limit is exceeded."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# In the order of memory_threads.c.
KINDS = ["linear", "pitch", "managed", "async", "pool", "vmm", "array"]
KINDS += ["mipmap", "graph", "module", "context", "brief-pool", "shared"]
MIXED = [kind for kind in KINDS if kind != "context"]
LIMIT_MIB = 256
CACHING = (1 << 64) - 1


@pytest.fixture(scope="session")
def memory_threads(built):
    """The client, built."""
    return built("hook/programs/memory_threads.c")


class Watch:
    """The most that was in use of the device, by the emulator's own ledger, while it ran."""

    def __init__(self, scene):
        self.most, self._scene, self._over = 0, scene, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self):
        while not self._over.wait(0.0005):
            self.most = max(self.most, self._scene.device_bytes())

    def end(self):
        """Stop; the most that was seen."""
        self._over.set()
        self._thread.join()
        return self.most


def run(scene, memory_threads, kinds, *, seconds=1.0, threads=4, threshold=0, seed=1, rounds=4, least=1):
    """What the client says at its end, the most bytes that the device lent it beyond its context, and those at the end.

    Whenever its threads stand still the hook counts at least what the device lent.
    """
    mask = sum(1 << KINDS.index(kind) for kind in kinds)
    words = [seconds, threads, mask, threshold, seed, rounds, least]
    program = scene.start([memory_threads, *map(str, words)])
    program.read()
    context_bytes, watch = scene.device_bytes(), Watch(scene)
    program.go()
    try:
        for _ in range(rounds):
            counted = program.read(timeout_s=seconds + 30)["reserved"]
            assert scene.device_bytes() - context_bytes <= counted
            program.go()
        facts = program.read(timeout_s=30)
    finally:
        most = watch.end()
    return facts, most - context_bytes, scene.device_bytes() - context_bytes


def check(facts, most, left, limit_mib=LIMIT_MIB):
    assert (facts["reserved"], facts["unbalanced"], facts["failed"], left) == (0, 0, 0, 0), facts
    assert most <= limit_mib << 20
    assert facts["done"] > 0


@pytest.mark.parametrize("kind", ["linear", "pitch", "managed", "array", "mipmap", "graph"])
def test_whole_pages_and_steps_are_charged(tenant, memory_threads, kind):
    """On a driver that takes memory in pages of 2 MiB, and for graphs in steps of 32, sizes of any kind are held."""
    scene = tenant(memory_mib=LIMIT_MIB, auto_grant=True, spec="h100", extra=("strict=1",))
    check(*run(scene, memory_threads, [kind], seconds=0.6))


@pytest.mark.parametrize("threshold", [0, CACHING], ids=["releasing", "caching"])
def test_threads_of_all_kinds_leave_nothing_charged(tenant, memory_threads, threshold):
    """Eight threads with every kind of memory at once never exceed the limit and leave nothing charged."""
    scene = tenant(memory_mib=LIMIT_MIB, auto_grant=True, spec="h100")
    check(*run(scene, memory_threads, MIXED, threads=8, threshold=threshold))


def test_threads_with_contexts_of_their_own_leave_nothing_charged(tenant, memory_threads):
    """Contexts that come and go with memory in them leave nothing charged."""
    scene = tenant(memory_mib=LIMIT_MIB, auto_grant=True, spec="h100")
    program = scene.start([memory_threads, "1", "4", str(1 | 1 << KINDS.index("context")), "0", "1", "1", "1"])
    program.read()
    context_bytes = scene.device_bytes()
    program.go()
    program.read()
    program.go()
    facts = program.read()

    assert (facts["reserved"], facts["unbalanced"], facts["failed"]) == (0, 0, 0), facts
    assert scene.device_bytes() == context_bytes


mixtures = st.lists(st.sampled_from(MIXED), min_size=1, max_size=5, unique=True)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(mixtures, st.integers(1, 6), st.sampled_from([0, 64 << 20, CACHING]), st.integers(0, 1000), st.booleans())
def test_any_mixture_is_charged_at_least_what_the_device_lends(
    tenant, memory_threads, kinds, threads, threshold, seed, strict
):
    """Random kinds, threads and thresholds: never below the device's own ledger, never over the limit, nothing left."""
    scene = tenant(memory_mib=LIMIT_MIB, auto_grant=True, spec="h100", extra=(f"strict={int(strict)}",))
    how = {"threads": threads, "threshold": threshold, "seed": seed}
    facts, most, left = run(scene, memory_threads, kinds, seconds=0.5, **how)
    scene.arbiter.stop()

    assert (facts["reserved"], facts["unbalanced"], left) == (0, 0, 0), facts
    assert most <= LIMIT_MIB << 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_minute_of_all_kinds_leaves_nothing_charged(tenant, memory_threads, seed):
    """A minute of every kind of memory in eight threads ends with an empty ledger."""
    scene = tenant(memory_mib=1024, auto_grant=True, spec="h100")
    facts = run(scene, memory_threads, MIXED, seconds=15, threads=8, threshold=CACHING if seed % 2 else 0, seed=seed)
    check(*facts, limit_mib=1024)
