"""The hour in memory."""

import threading
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.status import Gpu, Share
from aliquot.web.history.keeping import HistoryRing


def gpu(**usage_milli: int) -> Gpu:
    """A GPU with one tenant for each name."""
    shares = [Share(name, 100, 1000, milli, 1024, 512) for name, milli in usage_milli.items()]
    return Gpu("GPU-0", 0, "here", "V100", 16384, "shared", 0, 0, 0, 0, shares)


def usage(ring: HistoryRing, seconds: float = 3600.0) -> dict[str, list[float | None]]:
    """What the ring keeps of every tenant's usage."""
    return {series.tenant: series.usage_milli for series in ring.read("GPU-0", seconds).series}


def test_one_hour_and_no_more():
    """What is older than the span is forgotten, and so is a tenant that has been away for all of it."""
    ring = HistoryRing(step_s=5.0, span_s=20.0)
    ring.add(0.0, [gpu(gone=7)])
    for n in range(60):
        ring.add(5.0 * n, [gpu(a=n)])

    assert {"a": [56, 57, 58, 59]} == usage(ring)


def test_less_than_all_may_be_asked():
    """A reader gets the newest points that make up the time it asks for."""
    ring = HistoryRing(step_s=5.0)
    for n in range(10):
        ring.add(5.0 * n, [gpu(a=n)])

    assert {"a": [8, 9]} == usage(ring, 10.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000)), max_size=40), st.integers(2, 9))
def test_the_ring_is_a_list_that_forgets(points: list[dict[str, int]], length: int):
    """Whatever comes and goes, the ring tells what a plain list of the last points tells."""
    ring = HistoryRing(step_s=1.0, span_s=float(length))
    for point in points:
        ring.add(0.0, [gpu(**point)])

    kept = points[-length:]
    names = sorted({name for point in kept for name in point})
    assert {name: [point.get(name) for point in kept] for name in names} == usage(ring)


def test_the_hour_goes_on_when_the_wall_clock_is_put_back():
    """Moments are told by the wall's clock as it is now, in order and as far apart as they were."""
    ring = HistoryRing(step_s=5.0)
    for n in range(3):
        ring.add(100.0 + 5 * n, [gpu(a=n)])

    assert [100.0, 105.0, 110.0] == ring.read("GPU-0", 3600).at_s
    assert [1100.0, 1105.0, 1110.0] == ring.read("GPU-0", 3600, 1000.0).at_s
    assert [600.0, 605.0, 610.0] == ring.read("GPU-0", 3600, 500.0).at_s


def test_a_gpu_that_is_gone_is_forgotten():
    """After the hour nothing is left of a GPU that has left."""
    ring = HistoryRing(step_s=5.0, span_s=20.0)
    ring.add(0.0, [gpu(a=1)])
    for n in range(60):
        ring.add(5.0 * n, [])

    assert {} == ring._rings


def test_a_point_is_there_whole_or_not_at_all():
    """Pages read in threads of their own; one that comes while a point is added waits for the end of it."""
    ring, read = HistoryRing(), []
    reader = threading.Thread(target=lambda: read.append(ring.read("GPU-0", 3600)))

    def gpus() -> Iterator[Gpu]:
        yield gpu(a=1)
        reader.start()
        reader.join(0.2)

    ring.add(0.0, gpus())
    reader.join()

    assert ([0.0], [[1]]) == (read[0].at_s, [series.usage_milli for series in read[0].series])
