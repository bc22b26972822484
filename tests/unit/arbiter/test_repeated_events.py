"""Events that repeat are one record, so that one tenant's do not push out the others'."""

from aliquot.arbiter.records import REPEAT_NS, EventRing


def test_a_repeated_event_is_one_record_with_a_count():
    """Any number of refusals leaves the events of other tenants where they are, and is told a few times only."""
    ring, told = EventRing(10), []
    ring.followers.add(lambda event: told.append((event["tenant"], event["count"])))
    ring.emit("tenant-added", 1, tenant="b")
    for at_ns in range(2, 5002):
        ring.emit("too-many-processes", at_ns, tenant="a", pid=at_ns)
    ring.emit("too-many-processes", 5002, tenant="b", pid=1)
    counts = [(event["kind"], event["tenant"], event["count"], event["last_ns"]) for event in ring.recent()]

    assert [
        ("tenant-added", "b", 1, 1),
        ("too-many-processes", "a", 5000, 5001),
        ("too-many-processes", "b", 1, 5002),
    ] == counts
    assert [("b", 1), *(("a", 1 << n) for n in range(13)), ("b", 1)] == told


def test_an_event_that_comes_back_after_a_while_is_a_new_one():
    """After a minute without it, it takes the place of the earlier record at the end of the list."""
    ring = EventRing(10)
    ring.emit("throttled", 1, tenant="a", pid=1)
    ring.emit("tenant-added", 2, tenant="b")
    ring.emit("throttled", 2 + REPEAT_NS, tenant="a", pid=2)

    assert [("tenant-added", 2), ("throttled", 3)] == [(event["kind"], event["id"]) for event in ring.recent()]


def test_what_an_administrator_does_is_kept_each_time():
    """A tenant that is added twice is two records."""
    ring = EventRing(10)
    for _ in range(2):
        ring.emit("tenant-added", 1, tenant="a")
        ring.emit("tenant-removed", 1, tenant="a")

    assert 4 == len(ring.recent())
