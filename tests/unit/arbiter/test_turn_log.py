"""The turns of the last minute."""

from aliquot.arbiter.records import MAX_TURN_MARKS, TurnLog

S = 1_000_000_000


def shown(log: TurnLog, now_s: float) -> list[tuple[str, float, float]]:
    found = log.last_minute("GPU-0", int(now_s * S)).turns
    return [(turn.tenant, turn.began_ns / S, turn.ended_ns / S) for turn in found]


def test_a_turn_lasts_until_the_next_or_until_its_work_has_ended():
    """A turn ends with the next grant, or earlier when its tenant's work has ended; the last one may go on."""
    log = TurnLog()
    log.began("GPU-0", "a", 1 * S)
    log.began("GPU-0", "b", 2 * S)
    log.ended("GPU-0", "a", 3 * S)  # answers late, while b holds the GPU
    log.ended("GPU-0", "b", 4 * S)
    log.began("GPU-0", "a", 5 * S)

    assert [("a", 1, 2), ("b", 2, 4), ("a", 5, 6)] == shown(log, 6)


def test_only_the_last_minute_is_shown():
    """Turns that ended a minute ago are left out, and one that began before that begins where the minute does."""
    log = TurnLog()
    for n, tenant in enumerate(("a", "b", "c")):
        log.began("GPU-0", tenant, 50 * n * S)

    assert [("b", 60, 100), ("c", 100, 120)] == shown(log, 120)


def test_where_there_were_too_many_turns_the_answer_says_from_when_on_they_are_known():
    """The log is bounded, and never says that it knows more than it has."""
    log = TurnLog()
    for n in range(2 * MAX_TURN_MARKS):
        log.began("GPU-0", f"t{n % 2}", n * S // 1000)
    found = log.last_minute("GPU-0", 2 * MAX_TURN_MARKS * S // 1000)

    assert MAX_TURN_MARKS == len(found.turns)
    assert MAX_TURN_MARKS * S // 1000 == found.known_ns == found.turns[0].began_ns


def test_a_gpu_without_turns_has_none():
    """Of a GPU that nobody took turns on there is an empty minute."""
    assert [] == shown(TurnLog(), 100)
