"""The history's file: what it keeps over restarts, damage, a full disk and a wrong clock."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from aliquot.status import Gpu
from aliquot.status.history import RANGES, ControllerUse, Percentiles, hours_range
from aliquot.web.history.file import HistoryFile, Limits, damaged_note, hours_of, timeline_of, uses_of
from aliquot.web.history.points import FIELDS, PROMISED, SPAN, USED, GpuMinute, Minute, pack, rows_of, share_out, unpack

NOON = 1_800_000_000 // 900 * 900
DAY = RANGES["24h"]


def row(promised: int, used: int) -> list[int]:
    """The sums of a tenant that was there for a minute, in GPU milliseconds."""
    found = [0] * len(FIELDS)
    found[SPAN], found[PROMISED], found[USED] = 60_000, promised, used
    return found


def card(uuid: str) -> Gpu:
    """A GPU, whose tenants do not matter."""
    return Gpu(uuid, 0, "node-0", "V100", 16384, "idle", 1000, 16384, 0, 0, [])


def minute(at_s: int, gpu: str = "GPU-0", **used_ms: int) -> Minute:
    """A minute of one GPU, on which each tenant had a promise of 0.3."""
    tenants = {(f"lab/{name}", f"Deployment/{name}"): row(18_000, used) for name, used in used_ms.items()}
    return Minute(at_s, [GpuMinute(card(gpu), 60_000, tenants)])


def moments(file: HistoryFile) -> list[int]:
    """The recorded minutes."""
    (rows,) = file.read(("SELECT DISTINCT id >> 20 FROM minutes ORDER BY id", ()))
    return [at for (at,) in rows]


def used_hours(file: HistoryFile, now_s: float) -> float:
    """The GPU milliseconds of a day, by the sums."""
    return round(hours_of(file, RANGES["24h"], now_s).total.used * 3_600_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file is to be."""
    return tmp_path / "state" / "history.db"


def test_what_was_recorded_is_there_after_a_restart(path: Path):
    """A history that is closed and opened again continues, with the names of its tenants."""
    first = HistoryFile(path)
    first.add(minute(NOON, a=6000))
    first.close()
    second = HistoryFile(path)
    second.add(minute(NOON + 60, a=12_000, b=3000))

    found = timeline_of(second, "GPU-0", DAY, NOON + 120)
    assert [("lab/a", "Deployment/a"), ("lab/b", "Deployment/b")] == [(lane.tenant, lane.owner) for lane in found.lanes]
    assert 21_000 == used_hours(second, NOON + 120)
    assert [NOON, NOON + 60] == moments(second)


def test_hours_are_of_at_least_the_time_that_is_asked_for(path: Path):
    """A quarter of an hour from just after a quarter has begun is not the few seconds since then."""
    file = HistoryFile(path)
    file.add(minute(NOON, a=6000))
    found = hours_of(file, hours_range("15m"), NOON + 905)

    assert (NOON, NOON + 1800) == (found.since_s, found.until_s)
    assert 6000 == round(found.total.used * 3_600_000)


def test_uses_are_of_all_tenants_of_a_controller(path: Path):
    """Minutes of all pods and GPUs count alike, over restarts; a minute without work is idle, memory is its most."""
    file = HistoryFile(path)
    for n in range(100):
        tenants = {(f"lab/web-{m}/main", "Deployment/web"): row(18_000, 600 * n) for m in range(2)}
        peaks = {("lab/web-0/main", "Deployment/web"): 1000 + n, ("lab/web-1/main", "Deployment/web"): 500}
        file.add(Minute(NOON + 60 * n, [GpuMinute(card("GPU-0"), 60_000, tenants, peaks)]))
        if n == 50:
            file.close()
            file = HistoryFile(path)
    found = uses_of(file, DAY, NOON + 6000)

    milli, memory = Percentiles(490, 940, 990), Percentiles(512, 1104, 1104)
    assert [ControllerUse("lab", "Deployment/web", "main", 12_000, 120, milli, memory)] == found.uses
    assert uses_of(file, DAY, NOON - 900).uses == []


def test_only_its_owner_may_read_the_file(path: Path):
    """The file, its log and its folder are for the program's own user, also where the umask allows more."""
    path.parent.mkdir()
    path.touch(mode=0o644)
    file = HistoryFile(path)
    file.add(minute(NOON, a=1))

    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert {"history.db": 0o600, "history.db-wal": 0o600} == modes


@pytest.mark.parametrize("cut", range(24))
def test_a_torn_log_loses_its_end_only(path: Path, tmp_path: Path, cut: int):
    """A process that is killed while it writes leaves whole minutes: those before the torn one, and nothing of it."""
    file = HistoryFile(path)
    for n in range(8):
        file.add(minute(NOON + 60 * n, a=1000))
    copy = tmp_path / "copy" / "history.db"
    copy.parent.mkdir()
    for name in ("history.db", "history.db-wal"):
        shutil.copy(path.with_name(name), copy.with_name(name))
    log = copy.with_name("history.db-wal")
    size = log.stat().st_size
    os.truncate(log, size * cut // 24 + (cut * 37) % 101)

    after = HistoryFile(copy)
    known = moments(after)
    assert [NOON + 60 * n for n in range(len(known))] == known
    assert 1000 * len(known) == used_hours(after, NOON + 480)
    assert len(known) < 8


@pytest.mark.parametrize("text", [b"no database at all" * 1000, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_damaged_file_is_put_aside(path: Path, text: bytes):
    """What is no history is kept under another name, and a new history begins."""
    path.parent.mkdir()
    path.write_bytes(text)
    file = HistoryFile(path)
    file.add(minute(NOON, a=1000))

    assert text == path.with_name("history.db.damaged").read_bytes()
    assert [NOON] == moments(file)


def test_a_history_says_where_the_damaged_one_lies(path: Path):
    """As long as the damaged file is there, the history names it; without one there is nothing to say."""
    path.parent.mkdir()
    before = damaged_note(path)
    path.write_bytes(b"no database at all" * 1000)
    file = HistoryFile(path)

    assert ("", True) == (before, file.note.endswith(f"was damaged and is kept as {path}.damaged")), file.note
    path.with_name("history.db.damaged").unlink()
    assert "" == file.note


def test_a_file_that_is_damaged_while_it_is_open_is_put_aside(path: Path):
    """Damage that is found later ends that file and not the recording."""
    first = HistoryFile(path)
    for n in range(200):
        first.add(minute(NOON + 60 * n, **{f"t{m}": n * m for m in range(20)}))
    first.close()
    with path.open("r+b") as held:
        held.seek(8192)
        held.write(b"\xa5" * (path.stat().st_size - 8192))
    second = HistoryFile(path)
    second.add(minute(NOON, a=1000))

    assert path.with_name("history.db.damaged").exists()
    assert 1000 == used_hours(second, NOON + 60)


def test_a_row_that_is_damaged_is_a_gap(path: Path):
    """A row whose content cannot be unpacked counts as not recorded."""
    file = HistoryFile(path)
    file.add(minute(NOON, a=1000))
    file.read(("UPDATE minutes SET data = x'00ff00'", ()))

    assert [] == timeline_of(file, "GPU-0", RANGES["1h"], NOON + 70).lanes


def test_two_programs_do_not_write_one_file(path: Path):
    """A second program is refused the file while the first has it."""
    file = HistoryFile(path)
    file.add(minute(NOON, a=1))
    with pytest.raises(OSError, match="locked"):
        HistoryFile(path)


def test_points_stay_in_order_when_the_clock_is_put_back(path: Path):
    """Where the clock is put back the minutes that are there grow, and nothing is lost or counted twice."""
    file = HistoryFile(path)
    for at_s in (NOON, NOON + 60, NOON, NOON + 60):
        file.add(minute(at_s, a=1000))

    found = timeline_of(file, "GPU-0", RANGES["1h"], NOON + 130)
    assert [NOON, NOON + 60] == moments(file)
    assert 4000 == used_hours(file, NOON + 120)
    assert [0.0167, 0.0167] == [used for used in found.lanes[0].used if used is not None]


def test_a_wrong_clock_deletes_nothing(path: Path):
    """A minute of another century, recorded by a wrong clock, does not make what is there too old to keep."""
    file = HistoryFile(path, Limits(minutes=10, quarters=10))
    for at_s in (NOON, NOON + 60, NOON + 90 * 366 * 86_400, NOON + 120):
        file.add(minute(at_s, a=1000))

    assert 3000 == used_hours(file, NOON + 180)


def test_the_oldest_go_first(path: Path):
    """As many recorded minutes and quarter hours are kept as may be, and the names of tenants that are in them."""
    file = HistoryFile(path, Limits(minutes=30, quarters=4))
    for n in range(120):
        file.add(minute(NOON + 60 * n, **{f"t{n // 15}": 1000}))

    assert moments(file)[0] <= NOON + 60 * 90 and len(moments(file)) <= 30 + 15
    (names,) = file.read(("SELECT name FROM tenants ORDER BY name", ()))
    assert ["lab/t4", "lab/t5", "lab/t6", "lab/t7"] == [name for (name,) in names]


def test_the_file_stays_below_its_bound(path: Path):
    """Where the file would become too large the oldest quarter hours go, and the newest are there."""
    file = HistoryFile(path, Limits(max_bytes=256 << 10))
    for n in range(900):
        file.add(minute(NOON + 60 * n, **{f"t{m}": (n * m * 7919) % 18_000 for m in range(32)}))

    assert file.size <= (256 << 10) + 15 * 32 * 40
    file.close()
    assert path.stat().st_size <= 2 * (256 << 10)
    assert NOON + 60 * 899 == moments(HistoryFile(path))[-1]


def test_rows_come_back_as_they_were():
    """Packing loses nothing."""
    rows = {0: row(0, 0), 7: row(18_000, 123), 300_000: [2**40 + n for n in range(len(FIELDS))]}

    assert rows == rows_of(unpack(pack(rows)))


def test_what_is_borrowed_comes_from_what_nobody_was_promised_first():
    """ControllerUse beyond a promise was lent by others only as far as it exceeds what is promised to no tenant."""
    rows = {0: [60_000, *[0] * 9], 1: row(18_000, 30_000), 2: row(36_000, 12_000)}
    share_out(rows)

    assert (12_000, 0) == (rows[1][3], rows[1][4])
    assert (0, 6000) == (rows[2][3], rows[2][4])


@pytest.mark.parametrize(
    "kind",
    [
        stat.S_IFIFO,
        pytest.param(stat.S_IFCHR, marks=pytest.mark.skipif(os.geteuid() != 0, reason="a device is made by root")),
    ],
    ids=["FIFO", "device"],
)
def test_what_is_no_plain_file_is_refused_and_stays_as_it_is(path: Path, kind: int):
    """It is neither waited for, nor closed to other users as a history is, nor put aside as one that is damaged."""
    path.parent.mkdir()
    os.mknod(path, kind | 0o666, os.makedev(1, 3))
    path.chmod(0o666)

    with pytest.raises(OSError, match="not a plain file"):
        HistoryFile(path)
    assert kind | 0o666 == path.stat().st_mode


def test_sqlite_says_what_a_folder_lacks(tmp_path: Path):
    """A history that cannot be made says which file."""
    tmp_path.joinpath("file").touch()
    with pytest.raises(OSError, match="file"):
        HistoryFile(tmp_path / "file" / "history.db")


def test_the_file_is_a_plain_database(path: Path):
    """Other programs can read a copy of the file with SQLite."""
    file = HistoryFile(path)
    file.add(minute(NOON, a=1000))
    file.close()
    with sqlite3.connect(path) as base:
        assert [(NOON, 1)] == base.execute("SELECT id >> 20, id & 0xfffff FROM quarters").fetchall()


def test_a_month_has_a_bounded_size(tmp_path: Path):
    """Thirty days of 8 GPUs with 32 tenants each take 33 MB at most, and do not grow after that.

    A 64th of it is written, one of the GPUs for an eighth of the periods: with the sums of minutes in both tables, and
    with those of quarter hours.
    """
    grown = []
    for period_s in (60, 900):
        file, chance = HistoryFile(tmp_path / f"{period_s}.db", Limits(minutes=360, quarters=360)), random.Random(1)
        sizes = {0: file.size}
        for n in range(500):
            rows = {}
            for m in range(32):
                promised = (m + 1) * period_s * 1000 // 600
                sums = (
                    chance.randrange(2 * promised),
                    0,
                    0,
                    chance.randrange(period_s * 1000),
                    (m * 97 + 300) * period_s,
                )
                windows, handovers = 4 * period_s, chance.randrange(2 * period_s, 4 * period_s)
                row = [period_s * 1000, promised, *sums, windows, windows - chance.choice((0, 0, 0, 4)), handovers]
                rows[f"team-{m % 5}/train-{m}/main", f"Job/train-{m % 5}"] = row
            gpu = GpuMinute(card("GPU-0"), period_s * 1000, rows)
            file.add(Minute(NOON + 900 * n, [gpu]))
            if n in (370, 499):
                sizes[n] = file.size
        assert sizes[499] <= sizes[370] * 1.05
        grown.append(sizes[499] - sizes[0])

    assert 32 * sum(grown) <= 33_000_000
