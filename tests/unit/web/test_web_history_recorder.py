"""Readings become minutes: who is counted, for how long, and what a clock or an arbiter may do meanwhile."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.status import Gpu
from aliquot.status.history import RANGES, Counts, Reading, TenantReading, summed_by
from aliquot.web.history.file import HistoryFile, Limits, hours_of, timeline_of
from aliquot.web.history.keeping import LongHistory
from aliquot.web.history.points import (
    HANDOVERS,
    KEPT,
    MEMORY,
    PROMISED,
    SPAN,
    USED,
    WAITED,
    WINDOWS,
    Minute,
    MinuteSums,
)

NOON = 1_800_000_000 // 900 * 900


def tenant(name: str = "lab/a", charged_ms: float = 0, *, request: int = 300, owner: str = "Job/a", **more: int):
    """A tenant that was charged so much since it came."""
    counts = Counts(int(charged_ms * 1e6), **({"waited_ns": 0, "windows": 0, "kept": 0, "handovers": 0} | more))
    return TenantReading(name, owner, request, 1024, counts)


def gpu(*tenants: TenantReading, uuid: str = "GPU-0", model: str = "V100") -> Reading:
    """A GPU with these tenants."""
    card = Gpu(uuid, 0, "node-0", model, 16384, "idle", 1000, 16384, 0, 0, [])
    return Reading(card, tenants)


def summed(minutes: Sequence[Minute | None], key: tuple[str, str] = ("lab/a", "Job/a")) -> list[int]:
    """All that was recorded of a tenant."""
    rows = [one.tenants[key] for each in minutes if each for one in each.gpus if key in one.tenants]
    return [sum(column) for column in zip(*rows, strict=True)]


def test_use_is_the_difference_of_the_arbiters_sums():
    """What a tenant used, waited and was given is what the arbiter counted more, whatever it had counted before."""
    recorder = MinuteSums()
    before = tenant(charged_ms=5000, waited_ns=1_000_000_000, windows=10, kept=9, handovers=100)
    after = tenant(charged_ms=6500, waited_ns=3_000_000_000, windows=14, kept=12, handovers=130)
    recorder.see(0.0, NOON, [gpu(before)])
    recorder.see(5.0, NOON + 5, [gpu(after)])

    row = summed([recorder.end()])
    assert {SPAN: 5000, PROMISED: 1500, USED: 1500, WAITED: 2000, MEMORY: 5120, WINDOWS: 4, KEPT: 3, HANDOVERS: 30} == {
        field: row[field] for field in (SPAN, PROMISED, USED, WAITED, MEMORY, WINDOWS, KEPT, HANDOVERS)
    }


def test_a_tenant_is_counted_for_its_time_only():
    """A tenant that comes and goes counts from the reading that first saw it to the last one."""
    recorder = MinuteSums()
    there = [False, False, True, True, True, False, False]
    for n, is_there in enumerate(there):
        recorder.see(5.0 * n, NOON + 5 * n, [gpu(*([tenant(charged_ms=100 * n)] if is_there else []))])

    row = summed([recorder.end()])
    assert (10_000, 3000, 200) == (row[SPAN], row[PROMISED], row[USED])


def test_a_restarted_arbiter_counts_from_zero():
    """Sums that went down are those of a new arbiter, and what they say was used since it came."""
    recorder = MinuteSums()
    for n, charged_ms in enumerate((9000, 9500, 200)):
        recorder.see(5.0 * n, NOON + 5 * n, [gpu(tenant(charged_ms=charged_ms))])

    assert 700 == summed([recorder.end()])[USED]


def test_a_gpu_that_is_not_read_is_a_gap():
    """While a GPU is not measured nothing is recorded of it, and what was used meanwhile is not counted afterwards."""
    recorder = MinuteSums()
    for n, seen in enumerate((True, True, False, True, True)):
        recorder.see(5.0 * n, NOON + 5 * n, [gpu(tenant(charged_ms=1000 * n))] if seen else [])
    minute = recorder.end()

    assert minute is not None
    assert (10_000, 2000) == (minute.gpus[0].span_ms, summed([minute])[USED])


def test_a_program_that_stood_still_has_a_gap():
    """Readings that are minutes apart say nothing about the time between them."""
    recorder = MinuteSums()
    recorder.see(0.0, NOON, [gpu(tenant())])
    recorder.see(600.0, NOON + 600, [gpu(tenant(charged_ms=400_000))])

    assert recorder.end() is None


def test_a_tenant_that_the_arbiter_does_not_know_is_promised_its_share():
    """A tenant whose container does not run yet has its promise, and used nothing; nothing is counted twice later."""
    recorder = MinuteSums()
    unknown = tenant()._replace(counts=None)
    for n, now in enumerate((unknown, unknown, tenant(charged_ms=500), unknown, tenant(charged_ms=600))):
        recorder.see(5.0 * n, NOON + 5 * n, [gpu(now)])

    row = summed([recorder.end()])
    assert (20_000, 6000, 100) == (row[SPAN], row[PROMISED], row[USED])


def test_minutes_end_with_the_walls_minute():
    """Each minute of the wall's clock is handed out once it is over, with the time that was read in it."""
    recorder, ended = MinuteSums(), []
    for n in range(0, 181, 10):
        minute = recorder.see(1000.0 + n, NOON + n, [gpu(tenant(charged_ms=n))])
        ended += [minute] if minute else []

    assert [NOON, NOON + 60, NOON + 120] == [minute.at_s for minute in ended]
    assert [60_000] * 3 == [minute.gpus[0].span_ms for minute in ended]


def test_the_walls_clock_may_jump():
    """What is recorded while the clock jumps back and forward is as long as it took, and no minute is in the future."""
    recorder, minutes = MinuteSums(), []
    for n, wall_s in enumerate((0, 30, 60, 90, -3600, -3570, 7200, 7230, 120, 150)):
        minutes.append(recorder.see(30.0 * n, NOON + wall_s, [gpu(tenant(charged_ms=30 * n))]))
    minutes.append(recorder.end())

    assert 270_000 == summed(minutes)[SPAN] and 270 == summed(minutes)[USED]


NAMES = st.sampled_from(["lab/a", "lab/b", "web/c", "web/d"])
OWNERS = st.sampled_from(["Job/x", "Deployment/y"])
READINGS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.lists(st.tuples(NAMES, OWNERS, st.integers(0, 1000), st.integers(0, 40_000)), max_size=4),
        st.sampled_from(["V100", "H100"]),
    ),
    min_size=2,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(READINGS)
def test_hours_of_the_parts_add_up_to_the_whole(sequence: list[tuple[int, list[tuple[str, str, int, int]], str]]):
    """Whatever comes and goes, GPU-hours by any dimensions add up to the same, which is the recording."""
    recorder, file, now_s, charged, minutes = MinuteSums(), HistoryFile(None, Limits()), 0.0, {}, []
    for step_s, tenants, model in sequence:
        now_s += step_s
        held = {}
        for name, owner, request, more in tenants:
            charged[name, owner] = charged.get((name, owner), 0) + more
            held[name, owner] = tenant(name, charged[name, owner], request=request, owner=owner)
        minutes.append(recorder.see(now_s, NOON + now_s, [gpu(*held.values(), model=model, uuid=f"GPU-{model}")]))
    minutes = [minute for minute in [*minutes, recorder.end()] if minute]
    for minute in minutes:
        file.add(minute)

    rows = [row for minute in minutes for one in minute.gpus for row in one.tenants.values()]
    hours = hours_of(file, RANGES["24h"], NOON + now_s)
    for by in ((), ("namespace",), ("controller",), ("namespace", "model"), ("namespace", "controller", "model")):
        parts = summed_by(hours, by)
        for field, column in (("promised", PROMISED), ("used", USED), ("waited", WAITED)):
            recorded = sum(row[column] for row in rows)
            assert recorded == round(3_600_000 * sum(getattr(line, field) for line in parts.lines))
            assert recorded == round(3_600_000 * getattr(parts.total, field))
        for line in parts.lines:
            assert abs(line.promised - (line.used - line.borrowed) - line.lent - line.idle) < 1e-9
            assert min(line.idle, line.lent, line.borrowed) >= -1e-9
    assert sum(one.span_ms for minute in minutes for one in minute.gpus) == round(3_600_000 * hours.recorded)
    _close_to_timelines(file, rows, NOON + now_s)


def _close_to_timelines(file: HistoryFile, rows: list[list[int]], now_s: float) -> None:
    """What timelines say of the same time is the same, to their digits."""
    used = 0.0
    for uuid in ("GPU-V100", "GPU-H100"):
        found = timeline_of(file, uuid, RANGES["24h"], now_s)
        used += sum(
            value * part * found.step_s * 1000
            for lane in found.lanes
            for value, part in zip(lane.used, found.recorded, strict=True)
            if value is not None
        )
    recorded = sum(row[USED] for row in rows)
    assert abs(used - recorded) <= 0.02 * recorded + 1000


def test_what_was_read_last_is_written_at_the_end(tmp_path: Path):
    """A program that ends in order loses no reading; the next one goes on in the same minute."""
    path = tmp_path / "history.db"
    for start in (0, 20):
        history = LongHistory(path, wall=lambda start=start: NOON + start)
        for n in range(3):
            history.see(100.0 + 5 * n, [gpu(tenant(charged_ms=start * 100 + 100 * n))])
        history.close()

    file = HistoryFile(path)
    found = timeline_of(file, "GPU-0", RANGES["1h"], NOON + 70)
    assert (round(20 / 60, 3), round(400 / 20_000, 4)) == (found.recorded[-1], found.lanes[0].used[-1])


def test_a_history_that_cannot_be_written_says_so_and_catches_up(tmp_path: Path):
    """While the file cannot be written pages say why; minutes of the last quarter of an hour are written later."""
    blocker = tmp_path / "state"
    blocker.touch()
    history = LongHistory(blocker / "history.db", wall=lambda: wall[0])
    wall = [NOON]
    for n in range(0, 240, 30):
        wall[0] = NOON + n
        history.see(float(n), [gpu(tenant(charged_ms=n))])
    history.settle()
    assert (
        "cannot be" in history.hours(RANGES["1h"]).note and str(blocker) in history.timeline("GPU-0", RANGES["1h"]).note
    )

    blocker.unlink()
    wall[0] = NOON + 240
    history.see(240.0, [gpu(tenant(charged_ms=240))])
    history.settle()
    assert ("", 240) == (history.hours(RANGES["1h"]).note, round(3_600_000 * history.hours(RANGES["1h"]).total.used))
    history.close()
