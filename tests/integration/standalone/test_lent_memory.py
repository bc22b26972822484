"""`aliquot run --gpu-mem-limit`: memory that is lent, and called back from programs that answer or do not."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from .stage import Aliquot, Cluster, engine_of, sharepod

BORROWER = Path(__file__).parent / "programs" / "borrower.py"


@pytest.fixture
def up(aliquot_cli: Aliquot, tmp_path: Path):
    """An engine with one emulated GPU of 16 GiB."""
    with engine_of(aliquot_cli, "v100", "--no-web"):
        yield Cluster(aliquot_cli, tmp_path)


@pytest.fixture
def run(aliquot_cli: Aliquot, tmp_path: Path) -> Iterator:
    """Start a run of the borrower; gives its file. `run.end` ends one by its name."""
    processes = {}
    with contextlib.ExitStack() as ended:

        def start(name: str, gib: int, *words: str, mem: str, most: str = "") -> Path:
            said = tmp_path / name
            limit = ["--gpu-mem-limit", most] if most else []
            share = ["--name", name, "--gpu-request", ".2", "--gpu-mem", mem, *limit]
            program = ["--", sys.executable, str(BORROWER), str(said), str(gib), *words]
            processes[name] = process = aliquot_cli.start("run", *share, *program)
            ended.callback(process.communicate)
            ended.callback(process.terminate)
            return said

        start.processes = processes
        start.end = lambda name: processes[name].terminate()
        yield start


def says(said: Path, words: str) -> None:
    eventually(lambda: said.exists() and words in said.read_text(), f"{said.name} says {words!r}", 90)


def test_a_program_gives_back_what_it_was_lent_when_it_is_asked(up: Cluster, run):
    """It goes on with the rest; the guarantee is had in full, and was told as free all the time."""
    borrower = run("a", 12, "gives", mem="2Gi", most="14Gi")
    says(borrower, "has 12")
    shown = up.command("get", "tenants").stdout
    guarantee = run("b", 7, mem="8Gi")
    says(guarantee, "has 7")

    assert "2.0 GiB (+10" in shown
    assert "lent)" in shown
    assert re.fullmatch(r"has 7, was told 789\d of 8192", guarantee.read_text())
    assert "gave back" in borrower.read_text()
    assert not up.command("get", "tenants", "-o", "json").stdout.count('"parked": true')


def test_a_busy_borrower_that_does_not_answer_is_parked_and_comes_back(up: Cluster, run):
    """Its guarantee stays its own meanwhile; it goes on when there is room for all it holds."""
    borrower = run("a", 12, "busy", mem="2Gi", most="14Gi")
    says(borrower, "has 12")
    guarantee = run("b", 7, mem="8Gi")
    says(guarantee, "has 7")
    eventually(lambda: "(parked)" in up.command("get", "tenants").stdout, "it is parked")
    full = up.command("run", "--gpu-request", ".2", "--gpu-mem", "7Gi", "--", "true")
    run.end("b")

    assert (1, True) == (full.returncode, "6.0 GiB" in full.stderr)
    eventually(lambda: "(parked)" not in up.command("get", "tenants").stdout, "it is back", 30)
    assert borrower.read_text().startswith("has 12")


@pytest.mark.slow
def test_a_run_that_is_ended_with_lent_memory_says_why(up: Cluster, run):
    """Which memory it was, why it was not parked and what to do, after its minute; the status is a kill's."""
    borrower = run("a", 12, "keeps", "unified", mem="2Gi", most="14Gi")
    says(borrower, "has 1")
    guarantee = run("b", 7, mem="8Gi")
    _, said = run.processes["a"].communicate(timeout=120)
    says(guarantee, "has 7")

    assert 137 == run.processes["a"].returncode
    assert re.search(
        r"aliquot: the command was ended: it held (9|10)\.\d GiB beyond its guarantee that another's", said
    )
    assert "could not be parked, for it has used unified memory, which the driver does not take off a GPU; give" in said


def test_unpark_waits_for_what_was_lent_of_the_guarantee_meanwhile(up: Cluster, run):
    """What is called back for it is not a reason to refuse it."""
    parked = run("a", 7, mem="8Gi")
    says(parked, "has 7")
    eventually(lambda: up.command("park", "a").returncode == 0, "it is idle")
    borrower = run("b", 14, "busy", mem="2Gi", most="15Gi")
    says(borrower, "has 14")
    back = up.command("unpark", "a")

    assert 0 == back.returncode, back.stderr
    assert "a is back: 8.0 GiB" in back.stdout


def test_what_may_be_lent_changes_while_a_program_runs(up: Cluster, run):
    """Less takes nothing back by itself, and is not exceeded again; more than the GPU has is refused."""
    borrower = run("a", 12, "gives", mem="2Gi", most="14Gi")
    says(borrower, "has 12")
    less = up.command("resize", "a", "--gpu-mem-limit", "4Gi")
    none = up.command("resize", "a", "--gpu-mem-limit", "1Gi")
    too_much = up.command("resize", "a", "--gpu-mem-limit", "17Gi")
    guarantee = run("b", 7, mem="8Gi")
    says(guarantee, "has 7")
    more = up.command.facts("resize", "a", "--gpu-mem", "3Gi", "--gpu-mem-limit", "9Gi")

    assert re.search(r"lent up to 14.0 GiB -> 4.0 GiB; 10.\d GiB are lent until they are given or", less.stdout)
    assert (2, 2) == (none.returncode, too_much.returncode)
    assert "--gpu-mem-limit 1.0 GiB is below --gpu-mem 2.0 GiB" in none.stderr
    assert "GPU 0 has 16.0 GiB in all; ask for less" in too_much.stderr
    assert "gave back" in borrower.read_text()
    assert (3072, [4096, 9216]) == (more["after"]["memory_mib"], more["max_memory_mib"])


def test_apply_of_another_memory_limit_changes_it_in_place(up: Cluster, tmp_path: Path):
    """A program that began without one borrows then; without the annotation again it borrows nothing more, also
    where its memory grows or shrinks, written as an amount or as a part."""
    cells = tmp_path / "cells"
    pod = json.loads(sharepod("a", f"exec {sys.executable} {BORROWER} {cells} 12 grows", memory="2Gi"))
    up.apply(json.dumps(pod))
    says(cells, "has 1,")
    limits = []
    for limit, grown in (("14Gi", "has 12,"), ("", "")):
        pod["metadata"]["annotations"] = {"aliquot.dev/gpu-memory-limit": limit} if limit else {}
        assert "sharepod/a configured\n" == up.apply(json.dumps(pod)).stdout
        says(cells, grown)
        limits += up.command.facts("resize", "a", "--gpu-request", ".2", "--dry-run")["max_memory_mib"]

    grown = [up.command.facts("resize", "a", "--gpu-mem", to)["max_memory_mib"] for to in ("3Gi", "50%", "4Gi")]

    assert [14 * 1024, 14 * 1024, 2048, 2048] == limits
    assert [[2048, 3072], [3072, 8192], [8192, 4096]] == grown


def test_a_program_that_could_do_neither_borrows_nothing_and_explain_says_why(up: Cluster, run):
    """It has its guarantee alone."""
    borrower = run("a", 12, "unified", mem="2Gi", most="14Gi")
    says(borrower, "has 1,")
    explained = up.command("explain", "a").stdout

    assert "a borrows no memory, for it has used unified memory" in explained
    assert "aliquot.memory" in explained
    top = json.loads(up.command("top", "--once", "-o", "json").stdout)
    assert "has used unified memory" in json.dumps(top)


@pytest.mark.parametrize(
    ("share", "limit", "sentence"),
    [
        (".2 --gpu-mem 8Gi", "4Gi", "--gpu-mem-limit 4.0 GiB is below --gpu-mem 8.0 GiB; a limit is at least what is"),
        ("1", "4Gi", "--gpu-mem-limit 4.0 GiB is for a part of one GPU, below 1; --gpu-request is 1.00"),
        (".2", "17Gi", "17.0 GiB as --gpu-mem-limit or aliquot.dev/gpu-memory-limit were asked, GPU 0 has 16.0 GiB"),
    ],
)
def test_a_limit_out_of_range_is_refused(up: Cluster, share: str, limit: str, sentence: str):
    """Below the guarantee, above what the GPU has, or of a whole GPU, which has all of its memory: one sentence."""
    done = up.command("run", "--gpu-request", *share.split(), "--gpu-mem-limit", limit, "--", "true")

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert done.stderr.startswith(f"aliquot: {sentence}")


def test_a_limit_out_of_range_is_refused_of_a_sharepod(up: Cluster):
    """Also where it is below the part of the memory that a request without memory has; nothing is applied."""
    done = up.apply(sharepod("a", "true", notes={"aliquot.dev/gpu-memory-limit": "4Gi"}, request=0.5))

    assert (2, "") == (done.returncode, up.command("get", "sharepods", "-o", "name").stdout)
    assert "4.0 GiB as --gpu-mem-limit or aliquot.dev/gpu-memory-limit are below the 8.0 GiB that are" in done.stderr
