"""Many allocations at once: what one costs does not grow with the number of those that live."""

import pytest


@pytest.mark.parametrize(
    ("allocate", "free", "size"),
    [
        ("d.cuMemAllocAsync({}, s)", "d.cuMemFreeAsync(p, s)", 512),
        ("d.cuMemAlloc({})", "d.cuMemFree(p)", 700_000),
    ],
)
@pytest.mark.real_time
def test_an_allocation_costs_the_same_however_many_there_are(clients, allocate, free, size):
    """The last of many allocations take about as long as the first, and so do the frees, in any order."""
    count = 100_000 if size == 512 else 30_000
    first, last, freed, left = clients("h200").run(f"""
import random; open_gpu(); s = ck(d.cuStreamCreate(1)); part = {count // 10}; held = []; took = []
def live(): return ck(d.cuMemGetInfo())[0]
before = live()
for _ in range(10):
    t = time.perf_counter()
    for _ in range(part): held.append(ck({allocate.format(size)}))
    took.append(time.perf_counter() - t)
random.seed(1); random.shuffle(held); freed = []
for i in range(10):
    t = time.perf_counter()
    for p in held[i * part : (i + 1) * part]: ck({free})
    freed.append(time.perf_counter() - t)
ck(d.cuStreamSynchronize(s)); answer([min(took[:3]), min(took[-3:]), min(freed[:3]), before - live()])
""")

    assert last < 5 * first
    assert freed < 10 * first
    assert left == 0
