"""`aliquot sim` as people call it: files, exit codes, sentences, interruption."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aliquot_lab.sim.wording import duration, number

OPENB = Path(__file__).resolve().parents[2] / "data" / "openb"
NODES = str(OPENB / "openb_node_list_gpu_node.csv")
TRACES = OPENB.parent / "traces"
TRACE = str(OPENB / "openb_pod_list_multigpu40.csv.gz")


def sim(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aliquot.cli.main", "sim", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, env=os.environ | environment)


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
    """Two runs with the same seeds write the same bytes, one process or several; only the report names its command."""
    words = ("run", "--nodes", "v100x4*2", "--trace", "mix:jobs=150", "--policy", "bestfit,random", "--seeds", "1..2")
    for name, jobs in (("a", 1), ("b", 2)):
        done = sim(*words, "--out", tmp_path / name, "--jobs", jobs, SOURCE_DATE_EPOCH="1767355200")
        assert 0 == done.returncode

    first, second = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("a", "b"))
    assert b"2026-01-02 12:00 UTC" in first["report.html"]
    for name, files in (("a", first), ("b", second)):
        command = re.search(rb"<code>(.*)</code>", files["report.html"])
        assert command
        assert f"--out {tmp_path / name}".encode() in command[1]
        files["report.html"] = files["report.html"].replace(command[1], b"")

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
        for name, tell in (
            ("allocation_percent", number),
            ("fragmentation_percent", number),
            ("wait_mean_s", duration),
        ):
            assert f">{tell(row['mean'][name])}</td>" in page


def test_two_folders_are_laid_side_by_side(tmp_path):
    """`sim compare` gives the offered loads, both values and the paired difference of every figure."""
    for name, policy in (("a", "bestfit"), ("b", "spread")):
        sim("run", "--nodes", "v100x4", "--trace", "mix:jobs=80,rate=20", "--policy", policy, "--seeds", "1..2",
            "--jobs", "1", "--out", tmp_path / name)  # fmt: skip

    done = sim("compare", tmp_path / "a", tmp_path / "b", "-o", "json")
    pair = json.loads(done.stdout)["policies"][0]

    told = sim("compare", tmp_path / "a", tmp_path / "b").stdout.splitlines()

    assert all(f"{tmp_path / name}: offered load " in line for name, line in zip("ab", told[:2], strict=True))
    assert ("bestfit", "spread", 2) == (pair["first"], pair["second"], pair["seeds_in_common"])
    row = pair["figures"]["wait_mean_s"]
    assert abs(row["second"] - row["first"] - row["difference"]) < 0.001


def test_the_first_line_says_whether_the_cluster_can_hold_the_trace(tmp_path):
    """The offered load stands above the table; more than all GPUs is told for what it is, in the report too."""
    words = ("--trace", "mix:jobs=120,rate=10,service=600", "--policy", "bestfit,aliquot", "--gpu-hour-price", "2",
             "--out", tmp_path / "o")  # fmt: skip
    told = [sim("run", "--nodes", nodes, *words).stdout.splitlines() for nodes in ("v100x4", "v100x4*20")]
    over, under = (lines[0] for lines in told)

    assert re.fullmatch(r"offered load \d{3,4} %: .*; waits grow as long as jobs arrive", over)
    assert re.fullmatch(r"offered load \d\d %: [\d.]+ GPU-hours asked of 80 GPUs in .* of arrivals", under)
    assert under.removeprefix("offered") in (tmp_path / "o" / "report.html").read_text()
    assert all(line[-2].startswith("cost of all GPUs until the last job ends, at 2 an hour: bestfit ") for line in told)


def test_the_table_fits_the_terminal(tmp_path):
    """COLUMNS narrows it; JSON and CSV have everything, in seconds."""
    what = ("--nodes", "v100x4", "--trace", "mix:jobs=40,rate=20", "--policy", "bestfit")
    words = ("run", *what, "--out", tmp_path / "o")
    told = sim(*words, COLUMNS="80").stdout.splitlines()[1:-1]
    facts = json.loads(sim(*words, "-o", "json").stdout)
    row = next(csv.DictReader(sim(*words, "-o", "csv").stdout.splitlines()))

    assert 80 >= max(map(len, told))
    assert 2 == sum("ALLOC %" in line or "MAKESPAN" in line for line in told)
    assert facts["policies"][0]["mean"]["wait_p99_s"] == float(row["wait_p99_s"])


def test_a_range_of_sizes_says_how_many_gpus_are_enough(tmp_path):
    """The answer for each policy, a table of sizes, sizes.csv and a picture; one process or two give the same."""
    words = ("run", "--nodes", "v100x2*1..3", "--trace", "mix:jobs=150,rate=1,service=120", "--policy",
             "bestfit,spread", "--wait", "1m", "--gpu-hour-price", "2")  # fmt: skip
    one, two = (sim(*words, "--jobs", jobs, "--out", tmp_path / f"{jobs}") for jobs in (1, 2))

    assert (0, "") == (one.returncode, one.stderr)
    assert re.match(
        r"Policy bestfit: [246] GPUs \(v100x2\*[123]\) are enough.*: 90 % of the(m| jobs) wait at most ", one.stdout
    )
    assert one.stdout.splitlines()[:-1] == two.stdout.splitlines()[:-1]
    assert ["2", "2", "4", "4", "6", "6"] == [row["gpus"] for row in csv.DictReader((tmp_path / "1/sizes.csv").open())]
    for name in ("sizes.csv", "summary.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert "by the size of the cluster" in (tmp_path / "1" / "report.html").read_text()


def test_a_folder_that_is_used_again_holds_the_last_run_alone(tmp_path):
    """sizes.csv and timing.json of an earlier run go away; files of other names stay."""
    words = ("--trace", "mix:jobs=20,rate=20", "--policy", "bestfit", "--out", tmp_path / "o")
    sim("run", "--nodes", "v100x4*1..2", "--timing", *words)
    (tmp_path / "o" / "notes.txt").write_text("mine")
    before = {path.name for path in (tmp_path / "o").iterdir()}

    done = sim("run", "--nodes", "v100x4", *words)

    assert (0, "") == (done.returncode, done.stderr)
    assert {"sizes.csv", "timing.json"} == before - {path.name for path in (tmp_path / "o").iterdir()}


def test_a_column_that_is_not_known_is_a_warning(tmp_path):
    """The run goes on; users have their waits in the report."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("name,arrival_s,duration_s,gpu,user,colour\na,0,60,1,ann,red\nb,5,60,1,bob,blue\n")

    done = sim("run", "--nodes", "v100", "--trace", jobs, "--policy", "bestfit", "--out", tmp_path / "o")

    assert (0, f"aliquot: {jobs}: columns that are not read: colour\n") == (done.returncode, done.stderr)
    assert "Waits by user" in (tmp_path / "o" / "report.html").read_text()


def test_an_account_of_jobs_becomes_a_report_in_two_commands(tmp_path):
    """From a dump of sacct to a report; what was left out is told, and as JSON where a program asks."""
    trace = tmp_path / "trace.csv"
    imported = sim("import", "--from", "sacct", TRACES / "sacct.txt", "-o", trace)
    done = sim("run", "--nodes", "a100x8*2", "--trace", trace, "--policy", "bestfit", "--out", tmp_path / "o")
    facts = json.loads(sim("import", "--from", "sacct", TRACES / "sacct.txt", "-o", trace, "--json").stdout)

    assert (0, 0) == (imported.returncode, done.returncode)
    assert "3 of 8 jobs kept" in imported.stdout
    assert "1 without GPU, 1 still running at the end" in imported.stdout
    assert 3 == facts["jobs_kept"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "sacct", "nowhere.txt"), "nowhere.txt: cannot be read"),
        (("--from", "sacct", str(TRACES / "sacct.txt"), "--zone", "Mars/Base"), "--zone Mars/Base: is no time zone"),
        (("--from", "philly", str(TRACES / "sacct.txt")), "is no JSON"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(tmp_path, words: tuple[str, ...], told: str):
    """Exit status 2, and no trace is written."""
    done = sim("import", *words, "-o", tmp_path / "trace.csv")

    assert 2 == done.returncode
    assert told in done.stderr
    assert 1 == len(done.stderr.splitlines())
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("openb", "--nodes", NODES, "--trace", "{bad}", "--policy", "fgd"), 'line 3 column "cpu_milli"'),
        (("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "best"), "there are aliquot, bestfit, binpack"),
        (("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "fgd", "--seeds", "-1"), 'seeds "-1"'),
        (("openb", "--nodes", NODES, "--trace", TRACE, "--policy", "fgd", "--tune", "nan"), "--tune nan"),
        (("run", "--nodes", "v100", "--trace", "{jobs}", "--policy", "fgd"), 'line 2 column "arrival_s"'),
        (
            ("run", "--nodes", "v100", "--trace", str(TRACES / "cluster_log.csv"), "--policy", "fgd"),
            "aliquot sim import",
        ),
        (("run", "--nodes", "v100*6..3", "--trace", "mix", "--policy", "fgd"), "6..3 is no range"),
        (
            ("run", "--nodes", "v100", "--trace", "mix", "--policy", "fgd", "--wait", "soon"),
            "--wait soon: is no duration",
        ),
        (("run", "--nodes", "v100", "--trace", "mix", "--policy", "fgd", "--on", "moon"), "--on moon: is no kind"),
        (("run", "--nodes", "v100", "--trace", "mix", "--policy", "fgd", "--service-s", "5"), "--service-s 5: gives"),
        (("run", "--nodes", "x9", "--trace", "mix", "--policy", "fgd"), "no emulated GPU"),
        (("run", "--nodes", "nodes.csv", "--trace", "mix", "--policy", "fgd"), "nodes.csv: cannot be read"),
        (("run", "--nodes", "v100", "--trace", "mix", "--policy", "fgd", "--load", "inf"), "--load inf"),
        (("run", "--nodes", "v100", "--trace", "mix:jobs=-3", "--policy", "fgd"), "jobs -3"),
        (("run", "--nodes", "v100", "--trace", TRACE, "--policy", "fgd"), "draw from it instead: --load"),
        (("openb", "--nodes", NODES, "--trace", "{cpu_only}", "--policy", "fgd"), "no task asks for a GPU"),
        (("run", "--nodes", "v100", "--trace", "{idle}", "--policy", "fgd"), "no job asks for a GPU"),
        (("run", "--nodes", "v100x4", "--trace", "{large}", "--policy", "fgd"), "fits on a node: 1 asks for more than"),
        (("openb", "--nodes", "{no_gpu}", "--trace", TRACE, "--policy", "fgd"), "no node has a GPU"),
    ],
)
def test_bad_input_is_one_sentence_and_no_folder(tmp_path, words: tuple[str, ...], told: str):
    """The user's mistake is told in one line with exit status 2, and nothing is written."""
    (tmp_path / "bad.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,500\nb,?,1,1,500\n")
    (tmp_path / "jobs.csv").write_text("name,arrival_s,duration_s,gpu\na,-1,1,1\n")
    (tmp_path / "cpu_only.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n")
    (tmp_path / "idle.csv").write_text("name,arrival_s,duration_s,gpu\na,0,1,0\n")
    (tmp_path / "large.csv").write_text("name,arrival_s,duration_s,gpu\na,0,1,32\n")
    (tmp_path / "no_gpu.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,1000,1000,0,\n")
    named = [word.format(**{file.stem: file for file in tmp_path.glob("*.csv")}) for word in words]

    done = sim(*named, "--out", tmp_path / "out")

    assert 2 == done.returncode
    assert told in done.stderr
    assert 1 == len(done.stderr.splitlines())
    assert not (tmp_path / "out").exists()


def interrupted(out: Path, *words: str) -> Any:
    """The summary of a hundred runs that Ctrl-C ended once at least one was finished."""
    command = [sys.executable, "-m", "aliquot.cli.main", "sim", *words, "--seeds", "42..141", "--out", str(out)]
    for wait_s in (4, 12, 36, 100):  # until a busy machine has finished one
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(wait_s)
        os.kill(running.pid, signal.SIGINT)
        _, told = running.communicate(timeout=100)
        if out.exists():
            break
    assert 130 == running.returncode
    assert "interrupted" in told
    facts = json.loads((out / "summary.json").read_text())
    assert not facts["complete"]
    return facts


@pytest.mark.timeout(300)
def test_an_interruption_keeps_what_was_finished(tmp_path):
    """Ctrl-C leaves the finished runs in a folder that says it is incomplete, and exits 130."""
    out = tmp_path / "out"
    facts = interrupted(out, "openb", "--nodes", NODES, "--trace", TRACE, "--policy", "dotprod", "--jobs", "1")

    assert 100 == facts["asked"] > facts["runs"] > 0
    with (out / "analysis_allo_discrete.csv").open() as file:
        assert facts["runs"] == len(list(csv.DictReader(file)))


@pytest.mark.timeout(300)
def test_an_interrupted_study_is_a_whole_report_of_what_was_finished(tmp_path):
    """With several processes too, Ctrl-C leaves every file of a study, and all of them say that it is incomplete."""
    out = tmp_path / "out"
    interrupted(out, "run", "--nodes", "v100x4*8", "--trace", "mix:jobs=4000", "--policy", "bestfit", "--jobs", "2")

    assert {"summary.json", "runs.csv", "curves.csv", "waits.csv", "report.html"} == {p.name for p in out.iterdir()}
    assert "Incomplete: " in (out / "report.html").read_text()
    with (out / "runs.csv").open() as file:
        assert 100 > len(list(csv.DictReader(file))) > 0
