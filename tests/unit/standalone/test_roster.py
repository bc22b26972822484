"""What the engine after a killed one knows of its SharePods."""

import time
from pathlib import Path

import pytest

from aliquot.standalone.roster import Roster, told

MINUTE_S = 60.0
BEGUN_S = 1_800_000_000.0
BEGUN = time.strftime("%Y-%m-%d %H:%M", time.localtime(BEGUN_S))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the names are kept."""
    return tmp_path / "sharepods.json"


def killed(path: Path, **phases: str) -> Roster:
    """The roster of an engine that comes after one that had these SharePods and was killed."""
    Roster(path).keep({f"default/{name}": phase for name, phase in phases.items()})
    return Roster(path, now_s=lambda: BEGUN_S)


def test_a_killed_engine_leaves_the_names_of_what_had_not_ended(path: Path):
    """SharePods that ran or waited are lost with a killed engine, before the next one began; what had ended is not."""
    after = killed(path, web="Running", later="Pending", done="Succeeded", broken="Failed")

    phases = {"default/web": "Running", "default/later": "Pending"}
    assert {name: f"{phase}, killed before {BEGUN}" for name, phase in phases.items()} == after.lost


def test_each_kill_has_its_own_time(path: Path):
    """What an earlier kill ended keeps the time of that one when a later engine is killed as well."""
    killed(path, nightly="Running").keep({"default/web": "Running"})
    later = Roster(path, now_s=lambda: BEGUN_S + 60 * MINUTE_S)

    assert f"Running, killed before {BEGUN}" == later.lost["default/nightly"]
    assert later.lost["default/web"] not in ("Running", later.lost["default/nightly"])


def test_a_stopped_engine_leaves_nothing(path: Path):
    """An engine that is stopped ends its SharePods on purpose, and the next one names none."""
    engine = killed(path, web="Running")
    engine.keep({"default/other": "Running"})
    engine.clear()

    assert {} == Roster(path).lost
    assert not path.exists()


def test_what_is_lost_is_named_until_it_is_applied_again_or_deleted(path: Path):
    """A second kill loses nothing of what the first one left; an applied or deleted SharePod is lost no more."""
    first = killed(path, web="Running", db="Running", later="Pending")
    first.keep({"default/web": "Running"})
    assert {"default/db", "default/later"} == first.lost.keys()
    assert first.forget("default/db") and not first.forget("default/db")

    assert {"default/web", "default/later"} == Roster(path).lost.keys()


def test_an_orderly_end_forgets_what_earlier_kills_ended(path: Path):
    """After `aliquot down` the next engine names nothing, also where containers ended while the engine stopped."""
    engine = killed(path, nightly="Running")
    engine.clear()
    engine.keep({})

    assert ({}, {}) == (engine.lost, Roster(path).lost)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', "[" * 10_000])
def test_a_broken_file_stops_no_engine(path: Path, text: str):
    """A file that cannot be read is a warning, and is written anew."""
    path.write_text(text)
    roster = Roster(path)
    roster.keep({"default/web": "Running"})

    assert {} == roster.lost
    assert {"default/web"} == Roster(path).lost.keys()


def test_a_full_disk_stops_no_engine(tmp_path: Path):
    """Names that cannot be written are a warning."""
    (tmp_path / "file").write_text("")
    Roster(tmp_path / "file" / "sharepods.json").keep({"default/web": "Running"})


def test_people_are_told_what_ended_and_what_to_do():
    """One sentence names the SharePods with the phases they were in, and the two ways on."""
    assert "" == told({})
    assert (
        "2 SharePods ended when an engine was killed: a/web (Running), a/later (Pending). "
        "Apply them again, or forget them: aliquot delete NAME"
    ) == told({"a/web": "Running", "a/later": "Pending"})
