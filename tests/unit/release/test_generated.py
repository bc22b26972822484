"""What generators made is written whole, or compared; one file says how for all of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from release_scene import ROOT

import generated  # isort: skip - the scene shows where it is


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a generator writes a.txt, which is fresh, b.txt and c.txt; and what no generator makes any more."""
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "tools" / "gen_things.py")])
    for name, text in (("a.txt", "a"), ("b.txt", "old"), ("gone.txt", "")):
        (tmp_path / name).write_text(text)
    return tmp_path


def settle(folder: Path, *, check: bool) -> int:
    """The end of that generator."""
    made = {folder / f"{name}.txt": name for name in "abc"}
    return generated.settle(made, folder.glob("*"), check=check, flags="--all")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_what_is_stale_is_named_with_its_mend(folder: Path, capsys: pytest.CaptureFixture[str]):
    """A file that differs, is missing or is made no more is one line each, and nothing is written."""
    before = contents(folder)
    mend = "is stale; run tools/gen_things.py --all"

    assert 1 == settle(folder, check=True)
    assert [f"{name}.txt {mend}" for name in ("b", "c", "gone")] == capsys.readouterr().err.splitlines()
    assert before == contents(folder)


def test_after_writing_nothing_is_stale(folder: Path, capsys: pytest.CaptureFixture[str]):
    """The files are those that were made and no other, and the comparison that follows says nothing."""
    assert (0, {f"{name}.txt": name for name in "abc"}) == (settle(folder, check=False), contents(folder))
    assert (0, "") == (settle(folder, check=True), capsys.readouterr().err)


def test_without_go_the_way_out_is_told():
    """Kubelet's interfaces are fetched by Go; where there is none, one sentence says so."""
    pytest.importorskip("grpc_tools", reason="what compiles kubelet's interfaces is not installed")
    command = [sys.executable, str(ROOT / "tools" / "gen_proto.py"), "--check"]
    done = subprocess.run(command, env={**os.environ, "PATH": "/nowhere"}, capture_output=True, text=True)

    said = "gen_proto: go is missing, which fetches kubelet's interfaces; install Go (tools/go.mod says which)\n"
    assert (1, said) == (done.returncode, done.stderr)


def test_a_fresh_file_is_not_touched(folder: Path):
    """Its time stays, so nothing is built again because of it."""
    before = (folder / "a.txt").stat().st_mtime_ns
    settle(folder, check=False)

    assert before == (folder / "a.txt").stat().st_mtime_ns
