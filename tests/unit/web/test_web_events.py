"""The event log."""

from aliquot.standalone.status_source import KEPT, EventLog, fresh


def arbiter_event(number: int, **facts: object) -> dict[str, object]:
    """An event as the arbiter keeps it."""
    return {"id": number, "now_ns": number * 10**9, "kind": "tenant-added", "tenant": "a"} | facts


def test_an_event_is_told_once():
    """What the arbiter keeps is read again and again; each event gets one number."""
    log = EventLog()
    log.take_arbiter(7, [arbiter_event(1)], 100.0)
    log.take_arbiter(7, [arbiter_event(1), arbiter_event(2)], 100.0)

    assert [(1, 101.0), (2, 102.0)] == [(event.id, event.at_s) for event in log.since(0)]
    assert [2] == [event.id for event in log.since(1)]


def test_an_event_that_repeats_has_its_count():
    """A repeated event is listed once, with its count, the time of its last and an id that readers have not seen."""
    log = EventLog()
    refused = arbiter_event(1, kind="misbehaved", pid=7, why="w", count=1)
    log.take_arbiter(7, [refused, arbiter_event(2)], 0.0)
    log.take_arbiter(7, [refused | {"count": 4, "last_ns": 9 * 10**9}], 0.0)
    log.take_arbiter(7, [refused | {"count": 4, "last_ns": 9 * 10**9}, arbiter_event(2)], 0.0)
    added, repeated = log.since(0)

    assert (2, 3) == (added.id, repeated.id)
    assert (4, 9.0, "process 7 broke the protocol (w) and was cut off (4 times)") == (
        repeated.count, repeated.at_s, repeated.text,
    )  # fmt: skip


def test_a_new_arbiter_counts_from_one_again():
    """Events of a restarted arbiter are new, whatever their numbers."""
    log = EventLog()
    log.take_arbiter(7, [arbiter_event(1)], 0.0)
    log.take_arbiter(8, [arbiter_event(1)], 0.0)

    assert [1, 2] == [event.id for event in log.since(0)]


def test_events_are_sentences():
    """An event says what happened, with its facts filled in and strange facts left alone."""
    log = EventLog()
    odd = arbiter_event(1, kind="misbehaved", pid=4711, why="{unknown}")
    log.take_arbiter(7, [odd, arbiter_event(2, kind="never-seen-before")], 0.0)

    assert ["process 4711 broke the protocol ({unknown}) and was cut off", "never seen before"] == [
        event.text for event in log.since(0)
    ]


def test_notes_of_a_sharepod_are_events():
    """What was appended to a SharePod's notes is one event each, also when its oldest notes were dropped."""
    log = EventLog()
    log.take_pod("x/a", ["10:00:00 waits", "10:00:01 placed"], 5.0)
    log.take_pod("x/a", ["10:00:01 placed", "10:00:02 ended"], 6.0)

    assert ["waits", "placed", "ended"] == [event.text for event in log.since(0)]


def test_the_log_is_bounded():
    """Only the last events are kept."""
    log = EventLog()
    log.take_arbiter(7, [arbiter_event(n) for n in range(1, 2 * KEPT)], 0.0)

    assert KEPT == len(log.since(0))


def test_a_list_that_was_replaced_is_all_fresh():
    """Without any overlap everything is new."""
    assert ["c"] == fresh(["a", "b"], ["c"])
    assert [] == fresh(["a", "b"], ["a", "b"])
