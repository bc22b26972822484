"""The file in which an engine keeps what placement has learned: written whole, read with suspicion."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from asking import asking
from structlog.testing import capture_logs

from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.policies.aliquot import Aliquot
from aliquot.placement.policy import MAX_BYTES, pack
from aliquot.standalone.learned import EVERY_S, LearnedFile
from aliquot.standalone.paths import state_dir


class Engine:
    """As much of an engine as has something to keep; its clock is turned by the test."""

    def __init__(self, folder: Path | None, *, emulated: bool = False) -> None:
        self.now_s = 100.0
        self.policy = Aliquot()
        Decider(Cluster(), self.policy)
        self.learned = LearnedFile(folder, self.policy, emulated=emulated, clock_s=lambda: self.now_s)
        self.learned.recall()

    def sees(self, *millis: int) -> Engine:
        for milli in millis:
            self.policy.arrived(asking(rest_milli=milli).shape)
        return self

    def ends(self) -> None:
        self.learned.write(self.learned.fresh())

    @property
    def arrivals(self) -> int:
        return len(self.policy.dump()["recent"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "learned-aliquot.json"


def test_the_next_engine_goes_on_from_it(tmp_path: Path, file: Path):
    """What an engine has seen is known to the one after it; the file is for its user alone, and is the only one."""
    Engine(tmp_path / "state").sees(300, 500).ends()
    Engine(tmp_path / "state").sees(700).ends()

    assert 3 == Engine(tmp_path / "state").arrivals
    assert [file] == list((tmp_path / "state").iterdir())
    assert (0o600, 0o700) == (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777)


def test_it_is_written_once_a_minute_while_something_is_new(tmp_path: Path):
    """Between two writes lies a minute, and nothing is written that is there already."""
    engine = Engine(tmp_path).sees(300)
    due = []
    for wait_s in (1.0, EVERY_S, 1.0, EVERY_S):
        engine.now_s += wait_s
        text = engine.learned.due()
        engine.learned.write(text)
        due.append(bool(text))

    assert [False, True, False, False] == due


def test_emulated_gpus_teach_the_real_ones_nothing(tmp_path: Path):
    """What was tried on an emulated machine is kept apart."""
    Engine(tmp_path, emulated=True).sees(300).ends()

    assert (0, 1) == (Engine(tmp_path).arrivals, Engine(tmp_path, emulated=True).arrivals)


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An engine of a demonstration or a benchmark leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    Engine(None).sees(300).ends()

    assert [] == list(tmp_path.iterdir())


def as_folder(path: Path) -> None:
    path.mkdir()


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 10)


def as_too_long(path: Path) -> None:
    path.write_text(" " * (MAX_BYTES + 1))


def as_another_policys(path: Path) -> None:
    path.write_text(pack(Engine(None).policy).replace('"aliquot"', '"other"'))


@pytest.mark.parametrize("spoil", [as_folder, as_pipe, as_noise, as_too_long, as_another_policys])
def test_what_can_not_be_read_is_a_warning_and_a_cold_start(spoil, file: Path):
    """The engine serves with an empty memory, says so in one line, and does not wait for anything."""
    file.parent.mkdir()
    spoil(file)

    with capture_logs() as logged:
        engine = Engine(file.parent)

    assert 0 == engine.arrivals
    assert ["warning"] == [line["log_level"] for line in logged]
    assert f"{file} cannot be used: " in logged[0]["event"]
    assert "placement learns anew" in logged[0]["event"]


def test_a_spoilt_file_is_written_over(file: Path):
    """After a cold start the next write mends it."""
    file.parent.mkdir()
    as_noise(file)
    Engine(file.parent).sees(300).ends()

    assert 1 == Engine(file.parent).arrivals


def test_a_folder_that_takes_nothing_is_told_once(tmp_path: Path):
    """A file that cannot be written stops nobody and is not told again every minute."""
    (tmp_path / "state").write_text("a file, not a folder")
    engine = Engine(tmp_path / "other").sees(300)
    engine.learned.path = tmp_path / "state" / "learned-aliquot.json"
    with capture_logs() as logged:
        engine.ends()
        engine.sees(500).ends()

    assert 1 == len(logged)
    assert "cannot be written" in logged[0]["event"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ALIQUOT_STATE_DIR": "/a", "ALIQUOT_RUNTIME_DIR": "/r"}, "/a"),
        ({"ALIQUOT_RUNTIME_DIR": "/r", "XDG_STATE_HOME": "/x"}, "/r/state"),
    ],
)
def test_where_it_is_kept(environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch):
    """A folder that is named counts; an engine with a place of its own keeps it there."""
    for name in ("ALIQUOT_STATE_DIR", "ALIQUOT_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert Path(expected) == state_dir()


@pytest.mark.parametrize(
    ("user", "xdg", "expected"),
    [(0, "/x", "/var/lib/aliquot"), (1000, "/x", "/x/aliquot"), (1000, "", "/h/.local/state/aliquot")],
)
def test_where_it_is_kept_without_a_word(user: int, xdg: str, expected: str, monkeypatch: pytest.MonkeyPatch):
    """Root's engine keeps it for the machine, anybody else's where their other state is."""
    for name in ("ALIQUOT_STATE_DIR", "ALIQUOT_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", xdg)
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setattr(os, "geteuid", lambda: user)

    assert Path(expected) == state_dir()
