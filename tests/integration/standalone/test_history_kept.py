"""The history's file under a program that is killed, on a disk that is full, and after a restart of the engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rights import rooms
from waiting import eventually

from aliquot.status.gpus import Gpu
from aliquot.status.history import RANGES, Counts, Reading, TenantReading
from aliquot.web.history.file import HistoryFile, hours_of
from aliquot.web.history.keeping import WAITING, LongHistory
from aliquot.web.history.points import FIELDS, GpuMinute, Minute

from .stage import Aliquot, engine_of, first_line, mounted, serving

NOON = 1_800_000_000 // 900 * 900
WRITES = """
import sys
from pathlib import Path
from tests_history import minute
from aliquot.web.history.file import HistoryFile
file = HistoryFile(Path(sys.argv[1]))
for n in range(100000):
    file.add(minute(n))
    print(n, flush=True)
"""
MINUTE = f"""
from aliquot.web.history.points import FIELDS
from aliquot.web.history.points import GpuMinute, Minute
from aliquot.status.gpus import Gpu

def minute(n):
    row = [60_000, 18_000, 1000, *[0] * (len(FIELDS) - 3)]
    rows = {{("lab/t" + str(m), "Job/t"): row for m in range(8)}}
    gpu = Gpu("GPU-0", 0, "here", "V100", 16384, "idle", 1000, 16384, 0, 0, [])
    return Minute({NOON} + 60 * n, [GpuMinute(gpu, 60_000, rows)])
"""


NOTEBOOK = """
apiVersion: aliquot.dev/v1alpha1
kind: SharePod
metadata: {name: notebook}
spec:
  gpu: {request: 0.5, limit: 0.6, memory: 4Gi}
  template: {spec: {containers: [{name: main, command: [sleep, "600"]}]}}
"""


def hours(file: HistoryFile, until_s: float):
    """GPU-hours of a day."""
    return hours_of(file, RANGES["24h"], until_s)


@pytest.mark.parametrize("lasting_s", [0.0, 0.05, 0.15, 0.3])
def test_a_killed_writer_leaves_every_minute_that_it_had_written(tmp_path: Path, lasting_s: float):
    """Whenever a program is killed, each minute that was written is there whole, and at most one more."""
    (tmp_path / "tests_history.py").write_text(MINUTE)
    path = tmp_path / "state" / "history.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITES, path], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert "0\n" == first_line(writer)
    time.sleep(lasting_s)
    writer.kill()
    written = 1 + len(writer.stdout.read().split())
    writer.wait()
    file = HistoryFile(path)
    (((kept,),),) = file.read(("SELECT count(*) FROM minutes", ()))

    assert written <= kept <= written + 1
    day = min(kept, 24 * 60 - 15)
    assert 8000 * kept == pytest.approx(3_600_000 * hours(file, NOON + 60 * kept).total.used, abs=1) or day < kept


def reading(charged_ms: int) -> Reading:
    """A GPU with one tenant, which was charged so much since it came."""
    counts = Counts(charged_ms * 1_000_000, 0, 0, 0, 0)
    gpu = Gpu("GPU-0", 0, "here", "V100", 16384, "idle", 1000, 16384, 0, 0, [])
    return Reading(gpu, [TenantReading("lab/a", "Job/a", 300, 1024, counts)])


@rooms
def test_a_full_disk_makes_a_gap_that_is_said(tmp_path: Path):
    """While the disk is full nothing breaks and the note says why; afterwards the last quarter of an hour is there."""
    wall = [float(NOON)]
    with mounted(tmp_path / "d", "2m") as disk:
        history = LongHistory(disk.folder / "history.db", wall=lambda: wall[0])

        def pass_minutes(count: int) -> None:
            for _ in range(count):
                history.see(wall[0], [reading(int(wall[0] - NOON))])
                wall[0] += 60
            history.settle()

        pass_minutes(5)
        disk.fill()
        pass_minutes(60)
        assert "The history cannot be written" in history.hours(RANGES["24h"]).note
        assert "full" in history.timeline("GPU-0", RANGES["24h"]).note
        disk.free()
        pass_minutes(5)
        found = history.timeline("GPU-0", RANGES["24h"])
        kept = history.hours(RANGES["24h"])
        history.close()

    recorded = round(sum(found.recorded) * found.step_s / 60)
    assert "" == found.note == kept.note
    assert 4 + WAITING + 3 <= recorded < 50
    assert recorded * 60 == pytest.approx(3_600_000 * kept.total.used, abs=2)


def test_an_engine_goes_on_with_its_history(aliquot_cli: Aliquot, tmp_path: Path):
    """What one engine recorded is on the pages of the next one that is given the same file."""
    path = tmp_path / "kept.db"
    with serving(aliquot_cli, "v100", "--port", "0", "--history", str(path)) as first:
        uuid = first.get("api/v1/gpus")["items"][0]["uuid"]
        points = lambda: len(first.get(f"api/v1/gpus/{uuid}/history")["at_s"])  # noqa: E731
        eventually(lambda: points() > 1, "it was read twice", 30)
    with serving(aliquot_cli, "v100", "--port", "0", "--history", str(path)) as second:
        assert 0 < second.get("api/v1/hours?range=24h")["recorded"]
        assert 0 < sum(second.get(f"api/v1/gpus/{uuid}/timeline?range=24h")["recorded"])
    assert 0o600 == path.stat().st_mode & 0o777


@pytest.mark.parametrize("place", ["no file/history.db", "folder", "locked.db"])
def test_a_history_that_cannot_be_written_is_refused(aliquot_cli: Aliquot, tmp_path: Path, place: str):
    """`up --history` says so in one sentence before the engine starts."""
    (tmp_path / "no file").write_text("")
    (tmp_path / "folder").mkdir()
    other = HistoryFile(tmp_path / "locked.db")
    done = aliquot_cli("up", "--emulate", "v100", "--port", "0", "--history", str(tmp_path / place))
    other.close()

    assert (2, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("\n")
    assert "--history" in done.stderr


def record(path: Path, minutes: int, key: tuple[str, str], row: list[int], *, held_mib: int | None = None) -> None:
    """So many minutes of one tenant of a GPU until now, all alike."""
    file, end_s = HistoryFile(path), int(time.time() // 60 * 60)
    gpu = Gpu("GPU-0", 0, "here", "V100", 16384, "idle", 1000, 16384, 0, 0, [])
    rows = {key: [*row, *[0] * (len(FIELDS) - len(row))]}
    memory = () if held_mib is None else ({key: held_mib},)
    for n in range(-minutes, 0):
        file.add(Minute(end_s + 60 * n, [GpuMinute(gpu, 60_000, rows, *memory)]))
    file.close()


def test_hours_on_a_terminal_are_those_of_the_page(aliquot_cli: Aliquot, tmp_path: Path):
    """`aliquot get hours` sums what the engine has recorded as its page does."""
    path = tmp_path / "history.db"
    record(path, 60, ("lab/t", "Job/t"), [60_000, 18_000, 6000])
    with serving(aliquot_cli, "v100", "--port", "0", "--history", str(path)) as engine:
        page = engine.get("api/v1/hours?range=24h")
        told = aliquot_cli.facts("get", "hours", "--since", "24h")
        table = aliquot_cli("get", "hours", "--since", "24h").stdout.splitlines()

    assert 0.3 == pytest.approx(told["total"]["promised"])
    assert page["lines"] == told["lines"]
    assert ["lab", "Job/t", "0.30", "0.10", "0.00", "0.20"] == table[1].split()


def test_a_recommendation_comes_with_the_command_that_follows_it(aliquot_cli: Aliquot, tmp_path: Path):
    """Two hours of history tell a SharePod what would do; after the command for it there is nothing left to do."""
    path, manifest = tmp_path / "history.db", tmp_path / "pod.yaml"
    record(path, 120, ("default/notebook", "SharePod/notebook"), [60_000, 30_000, 6000], held_mib=2000)
    manifest.write_text(NOTEBOOK)
    with serving(aliquot_cli, "v100", "--port", "0", "--history", str(path)) as engine:
        aliquot_cli("apply", "-f", str(manifest))
        read = lambda: json.loads(aliquot_cli("recommend", "notebook", "-o", "json").stdout or "{}")  # noqa: E731
        eventually(lambda: read().get("recommendations"), "the engine has read its share", 30)
        (found,) = read()["recommendations"]
        table = aliquot_cli("recommend").stdout
        shown = engine.get("api/v1/recommendations?range=7d")["recommendations"][0]["command"]
        done = aliquot_cli(*found["command"].split()[1:])
        eventually(lambda: not read()["recommendations"][0]["command"], "it is followed", 30)

    assert {"request_milli": 120, "limit_milli": 600, "memory_mib": 2304} == found["recommended"]
    assert "0.50 -> 0.12" in table and found["command"] in table and found["command"] == shown
    assert "request 0.50 -> 0.12" in done.stdout


def test_a_request_follows_its_recommendation(aliquot_cli: Aliquot, tmp_path: Path):
    """With recommend auto the request goes to what the day calls for while it runs; limit and memory stay."""
    path = tmp_path / "history.db"
    record(path, 120, ("default/notebook", "SharePod/notebook"), [60_000, 30_000, 6000], held_mib=2000)
    pod = NOTEBOOK.replace("name: notebook", "name: notebook, annotations: {aliquot.dev/recommend: auto}", 1)
    (tmp_path / "pod.yaml").write_text(pod)
    with serving(aliquot_cli, "v100", "--port", "0", "--history", str(path)):
        aliquot_cli("apply", "-f", str(tmp_path / "pod.yaml"))
        read = lambda: aliquot_cli.facts("get", "tenants")[0]["slices"][0]  # noqa: E731
        eventually(lambda: read()["request_milli"] == 120, "it is followed", 30)
        now = read()

    assert (600, 4096) == (now["limit_milli"], now["memory_mib"])


def test_a_sharepod_starts_with_its_recommendation(aliquot_cli: Aliquot, tmp_path: Path):
    """With recommend initial it has what the day calls for from its start, and stays so when it is applied again."""
    path, manifest = tmp_path / "history.db", tmp_path / "pod.yaml"
    record(path, 120, ("default/notebook", "SharePod/notebook"), [60_000, 30_000, 6000], held_mib=2000)
    manifest.write_text(NOTEBOOK)
    with serving(aliquot_cli, "v100", "--port", "0", "--history", str(path), "--recommend", "initial"):
        said = [aliquot_cli("apply", "-f", str(manifest)).stdout.strip() for _ in range(2)]
        now, events = aliquot_cli.facts("get", "tenants")[0]["slices"][0], aliquot_cli("describe", "notebook").stdout
        aliquot_cli("delete", "notebook")
        manifest.write_text(
            NOTEBOOK.replace("name: notebook", "name: notebook, annotations: {aliquot.dev/recommend: show}", 1)
        )
        aliquot_cli("apply", "-f", str(manifest))
        shown = aliquot_cli.facts("get", "tenants")[0]["slices"][0]

    assert ["sharepod/notebook created, request 0.50 -> 0.12 as recommended", "sharepod/notebook unchanged"] == said
    assert (120, 600, 4096) == (now["request_milli"], now["limit_milli"], now["memory_mib"])
    assert "starts, request 0.50 -> 0.12 as recommended" in events
    assert 500 == shown["request_milli"]


def test_an_engine_without_a_dashboard_has_no_hours(aliquot_cli: Aliquot):
    """The message says how to start one that records."""
    with engine_of(aliquot_cli, "v100", "--no-web"):
        refused = aliquot_cli("get", "hours")

    assert (1, "") == (refused.returncode, refused.stdout)
    assert "aliquot: this engine records no GPU-hours, as it serves no dashboard" in refused.stderr
