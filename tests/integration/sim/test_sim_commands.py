"""`aliquot sim` as people call it: files, exit codes, sentences, interruption."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aliquot.sim.report.page import number

OPENB = Path(__file__).resolve().parents[2] / "data" / "openb"
NODES = str(OPENB / "openb_node_list_gpu_node.csv")
TRACE = str(OPENB / "openb_pod_list_multigpu40.csv.gz")


def sim(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aliquot.cli.main", "sim", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def test_a_replay_writes_the_published_files(tmp_path):
    """The three tables have the artifact's columns, and --expected finds no difference."""
    out = tmp_path / "out"
    done = sim(
        "openb", "--nodes", NODES, "--trace", TRACE, "--policy", "dotprod", "--expected", OPENB / "expected_results",
        "--out", out,
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stderr)
    assert "1 runs equal the published ones in every column" in done.stdout
    with (out / "analysis_allo_discrete.csv").open() as file:
        row = next(csv.DictReader(file))
    assert ["openb_pod_list_multigpu40", "02-DotProd", "1.3", "42", "6212"] == list(row.values())[:5]
    assert "130" in row


def test_a_difference_exits_1(tmp_path):
    """With --expected, a run that differs from the published one is a failure that names the first column."""
    done = sim(
        "openb", "--nodes", NODES, "--trace", TRACE, "--policy", "random", "--expected", OPENB / "expected_results",
        "--out", tmp_path / "out",
    )  # fmt: skip

    assert 1 == done.returncode
    assert "openb_pod_list_multigpu40, 01-Random, seed 42, column" in done.stderr


def test_equal_inputs_give_equal_folders(tmp_path):
    """Two runs with the same seeds write the same bytes, one process or several."""
    words = ("run", "--nodes", "v100x4*2", "--trace", "mix:jobs=150", "--policy", "bestfit,random", "--seeds", "1..2")
    for name, jobs in (("a", 1), ("b", 2)):
        assert 0 == sim(*words, "--out", tmp_path / name, "--jobs", jobs).returncode

    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("a", "b"))

    assert {"summary.json", "runs.csv", "curves.csv", "waits.csv", "report.html"} == set(first)
    assert first == second


def test_the_report_stands_alone_and_says_what_the_summary_says(tmp_path):
    """One file without links to other hosts; its table has the numbers of summary.json."""
    sim("run", "--nodes", "v100x4*2", "--trace", "mix:jobs=150", "--policy", "bestfit,spread", "--out", tmp_path / "o")
    page = (tmp_path / "o" / "report.html").read_text()
    facts = json.loads((tmp_path / "o" / "summary.json").read_text())

    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "http" not in page.replace("http://www.w3.org", "")
    for row in facts["policies"]:
        for name in ("allocation_percent", "fragmentation_percent", "wait_mean_s"):
            assert f"<td>{number(row['mean'][name])}" in page


def test_two_folders_are_laid_side_by_side(tmp_path):
    """`sim compare` gives both values and the paired difference of every figure."""
    for name, policy in (("a", "bestfit"), ("b", "spread")):
        sim("run", "--nodes", "v100x4", "--trace", "mix:jobs=80,rate=20", "--policy", policy, "--seeds", "1..2",
            "--jobs", "1", "--out", tmp_path / name)  # fmt: skip

    done = sim("compare", tmp_path / "a", tmp_path / "b", "-o", "json")
    pair = json.loads(done.stdout)["policies"][0]

    assert ("bestfit", "spread", 2) == (pair["first"], pair["second"], pair["seeds_in_common"])
    row = pair["figures"]["wait_mean_s"]
    assert abs(row["second"] - row["first"] - row["difference"]) < 0.001


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("openb", "--nodes", NODES, "--trace", "{bad}", "--policy", "fgd"), 'line 3 column "cpu_milli"'),
        (("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "best"), "there are aliquot, bestfit, binpack"),
        (("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "fgd", "--seeds", "-1"), 'seeds "-1"'),
        (("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "fgd", "--tune", "nan"), "--tune nan"),
        (("run", "--nodes", "v100", "--trace", "{jobs}", "--policy", "fgd"), 'line 2 column "arrival_s"'),
        (("run", "--nodes", "x9", "--trace", "mix", "--policy", "fgd"), "no emulated GPU"),
        (("run", "--nodes", "nodes.csv", "--trace", "mix", "--policy", "fgd"), "nodes.csv: cannot be read"),
        (("run", "--nodes", "v100", "--trace", "mix", "--policy", "fgd", "--load", "inf"), "--load inf"),
        (("run", "--nodes", "v100", "--trace", "mix:jobs=-3", "--policy", "fgd"), "jobs -3"),
        (("run", "--nodes", "v100", "--trace", TRACE, "--policy", "fgd"), "draw from it instead: --load"),
        (("openb", "--nodes", NODES, "--trace", "{cpu_only}", "--policy", "fgd"), "no task asks for a GPU"),
        (("run", "--nodes", "v100", "--trace", "{idle}", "--policy", "fgd"), "no job asks for a GPU"),
        (("openb", "--nodes", "{no_gpu}", "--trace", TRACE, "--policy", "fgd"), "no node has a GPU"),
    ],
)
def test_bad_input_is_one_sentence_and_no_folder(tmp_path, words: tuple[str, ...], told: str):
    """The user's mistake is told in one line with exit status 2, and nothing is written."""
    (tmp_path / "bad.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,500\nb,?,1,1,500\n")
    (tmp_path / "jobs.csv").write_text("name,arrival_s,duration_s,gpu\na,-1,1,1\n")
    (tmp_path / "cpu_only.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n")
    (tmp_path / "idle.csv").write_text("name,arrival_s,duration_s,gpu\na,0,1,0\n")
    (tmp_path / "no_gpu.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,0,\n")
    named = [word.format(**{file.stem: file for file in tmp_path.glob("*.csv")}) for word in words]

    done = sim(*named, "--out", tmp_path / "out")

    assert 2 == done.returncode
    assert told in done.stderr
    assert 1 == len(done.stderr.splitlines())
    assert not (tmp_path / "out").exists()


def interrupted_after(wait_s: float, out: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "aliquot.cli.main", "sim", *words, "--seeds", "42..141", "--out", str(out)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(wait_s)
    os.kill(running.pid, signal.SIGINT)
    _, told = running.communicate(timeout=30)
    return running.returncode, told


def test_an_interruption_keeps_what_was_finished(tmp_path):
    """Ctrl-C leaves the finished runs in a folder that says it is incomplete, and exits 130."""
    out = tmp_path / "out"
    for wait_s in (4, 12, 36):  # until a busy machine has finished one
        words = ("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "dotprod", "--jobs", "1")
        status, told = interrupted_after(wait_s, out, *words)
        if out.exists():
            break

    assert 130 == status
    assert "interrupted" in told
    facts = json.loads((out / "summary.json").read_text())
    assert not facts["complete"]
    assert 100 == facts["asked"] > facts["runs"] > 0
    with (out / "analysis_allo_discrete.csv").open() as file:
        assert facts["runs"] == len(list(csv.DictReader(file)))


def test_an_interrupted_study_is_a_whole_report_of_what_was_finished(tmp_path):
    """With several processes too, Ctrl-C leaves every file of a study, and all of them say that it is incomplete."""
    out = tmp_path / "out"
    for wait_s in (4, 12, 36):  # until a busy machine has finished one
        words = ("run", "--nodes", "v100x4*8", "--trace", "mix:jobs=4000", "--policy", "bestfit", "--jobs", "2")
        status, told = interrupted_after(wait_s, out, *words)
        if out.exists():
            break

    assert 130 == status
    assert "interrupted" in told
    facts = json.loads((out / "summary.json").read_text())
    assert not facts["complete"]
    assert {"summary.json", "runs.csv", "curves.csv", "waits.csv", "report.html"} == {p.name for p in out.iterdir()}
    assert "Incomplete: " in (out / "report.html").read_text()
    with (out / "runs.csv").open() as file:
        assert 100 > len(list(csv.DictReader(file))) > 0
