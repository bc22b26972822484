"""What `aliquot sim import` makes of each kind of account: jobs, times, and what is left out and why."""

import gzip
import json
from pathlib import Path

import pytest
import yaml
from imported_traces import DATA, Imported, own_table

from aliquot.model.errors import UserError
from aliquot_lab.cli.sim import KINDS
from aliquot_lab.sim.imports.importing import import_trace
from aliquot_lab.sim.imports.tables import DIFFERS, Wanted
from aliquot_lab.sim.workload import read_jobs

FILES = {
    "sacct": ["sacct.txt"],
    "helios": ["cluster_log.csv"],
    "philly": ["cluster_job_log.json"],
    "pai": ["pai_task_table.csv", "pai_job_table.csv"],
    "kueue": ["workloads.json"],
    "prometheus": ["requests.json", "phases.json", "dcgm.json"],
    "csv": ["cluster_log.csv"],
}


EXPECTED = yaml.safe_load((DATA / "expected.yaml").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_imported_is_a_trace(tmp_path: Path, kind: str):
    """Each kind gives a table that `sim run` reads, and every job seen is kept or has a reason for being left out."""
    imported = Imported(tmp_path, kind, *FILES[kind])

    assert len(imported.rows) == len(read_jobs(imported.path, "trace").jobs)
    assert imported.facts["jobs_seen"] == imported.facts["jobs_kept"] + sum(imported.facts["dropped"].values())


@pytest.mark.parametrize("case", EXPECTED)
def test_each_kind_of_account_becomes_these_jobs(tmp_path: Path, case: str):
    """Times, GPUs and sizes of the jobs, and what is left out and told, are those of `expected.yaml`."""
    expected = EXPECTED[case]
    imported = Imported(tmp_path, expected.get("kind", case), *expected["files"], models=expected.get("models", False))
    facts, rows = imported.facts, expected.get("rows", {})

    assert {name: tuple(times) for name, times in expected["times"].items()} == imported.times()
    assert rows == {name: {key: imported.rows[name][key] for key in cells} for name, cells in rows.items()}
    assert (expected.get("dropped", facts["dropped"]), expected.get("not_jobs", facts["not_jobs"])) == (
        facts["dropped"], facts["not_jobs"],
    )  # fmt: skip
    assert set(expected.get("text", ())) <= set(facts["text"].splitlines())
    for part, told in (("notes", facts["notes"]), ("warnings", imported.warnings)):
        assert all(any(words in line for line in told) for words in expected.get(part, ()))


@pytest.mark.parametrize(
    ("state", "dropped"),
    [
        ("COMPLETED", "of 0 s"), ("FAILED", "of 0 s"), ("NODE_FAIL", "of 0 s"), ("", "of 0 s"),
        ("CANCELLED by 1000", "never started"), ("PENDING", "never started"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["sacct", "csv"])
def test_a_job_that_ended_as_it_started_did_start(tmp_path: Path, kind: str, state: str, dropped: str):
    """It is left out because it lasted 0 s; one that was cancelled may have ended in the queue."""
    source = tmp_path / "own.txt"
    at = "2026-03-02T08:00:00"
    source.write_text(
        "JobID,Submit,Start,End,Elapsed,State,ReqTRES\n"
        f"1,{at},{at},{at},00:00:00,{state},gres/gpu=1\n2,{at},{at},2026-03-02T08:01:00,00:01:00,COMPLETED,gres/gpu=1\n"
    )

    assert {dropped: 1} == Imported(tmp_path, kind, source).facts["dropped"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no/out.csv", r"^-o {0}/no/out.csv: there is no folder {0}/no; make it"),
        *(
            (name, r"^-o {0}/{1}: a trace is a CSV file; name it \.csv or \.csv\.gz$")
            for name in ("x.parquet", "x.json", "x.gz", "x")
        ),
        ("./own.csv", "is one of the files to read"),
    ],
)
def test_where_a_trace_cannot_be_written_is_said(tmp_path: Path, name: str, said: str):
    """It is CSV, packed or not, under a name that says so, in a folder that exists, and not in place of its record."""
    source, text = tmp_path / "own.csv", "job_id,start,end,num_gpus\na,0,3600,1\n"
    source.write_text(text)
    with pytest.raises(UserError, match=said.format(tmp_path, name)):
        import_trace("csv", [source], tmp_path / name, how=Wanted(), models=False, warn=print)

    assert ([source], text) == (list(tmp_path.iterdir()), source.read_text())


def test_notes_count_the_jobs_that_are_kept(tmp_path: Path):
    """Of three jobs whose duration is not the time from start to end, the two that are left out are not counted."""
    rows = ("a,0,0,3600,99,1", "b,0,0,3600,99,0", "c,0,0,3600,99,1000000", "d,0,0,3600,3600,1")
    facts, _ = own_table(tmp_path, "\n".join(["job_id,submit,start,end,duration,num_gpus", *rows, ""]))

    assert 2 == facts["jobs_kept"]
    assert {DIFFERS: 1} == facts["notes"]
    assert {DIFFERS: "a"} == facts["first_jobs"]


def test_pai_without_the_tasks_is_refused(tmp_path: Path):
    """Only the table of tasks says how many GPUs."""
    with pytest.raises(UserError, match=r"add pai_task_table\.csv"):
        Imported(tmp_path, "pai", "pai_job_table.csv")


def test_each_pod_set_of_a_workload_counts_as_a_job(tmp_path: Path):
    """A workload with two kinds of pods is two jobs of two, not two of one."""
    workloads = json.loads((DATA / "workloads.json").read_text())
    first = next(item for item in workloads["items"] if item["metadata"]["name"] == "job-again")
    [pod_set] = first["spec"]["podSets"]
    first["spec"]["podSets"] = [pod_set | {"name": name, "count": 1} for name in ("leader", "workers")]
    first["status"].pop("admission", None)
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"items": [first]}))

    imported = Imported(tmp_path, "kueue", own)

    assert ["team-b/job-again/leader", "team-b/job-again/workers"] == list(imported.rows)
    assert (2, 2) == (imported.facts["jobs_seen"], imported.facts["jobs_kept"])


@pytest.mark.parametrize("delimiter", [",", "|", "\t", ";"])
def test_an_own_table_has_any_delimiter_and_usual_names(tmp_path: Path, delimiter: str):
    """Names are compared without case, blanks and underscores; without one a job is named for its line."""
    lines = (("Submit Time", "Run_Time", "NUM_GPUS", "Team"), ("1767355200", "10m", "2", "red"),
             ("2026-01-02T12:01:00Z", "90", "0.5", "blue"))  # fmt: skip
    own = tmp_path / "own.csv"
    own.write_text("\n".join(delimiter.join(line) for line in lines) + "\n")

    imported = Imported(tmp_path, "csv", own)

    assert {"line-2": (0, 600, 2), "line-3": (60, 90, 0.5)} == imported.times()
    assert ["red", "blue"] == [row["user"] for row in imported.rows.values()]


def test_times_come_from_start_and_end(tmp_path: Path):
    """Without a submission a job arrives when it started, with a warning; without a duration it is end less start."""
    own = tmp_path / "own.csv.gz"
    own.write_bytes(gzip.compress(b"job,start,end,gpus\na,100,160,1\nb,50,,1\nc,170,160,1\n"))

    imported = Imported(tmp_path, "csv", own)

    assert {"a": (0, 60, 1)} == imported.times()
    assert {"still running at the end": 1, "without usable times": 1} == imported.facts["dropped"]
    assert any("no time of submission" in line for line in imported.warnings)


def test_names_that_appear_again_get_a_number(tmp_path: Path):
    """A job that was requeued keeps all its runs."""
    own = tmp_path / "own.csv"
    own.write_text("job,submit,duration,gpus\na,0,60,1\na,100,60,1\n")

    assert ["a", "a~1"] == list(Imported(tmp_path, "csv", own).rows)


def test_jobs_without_a_gpu_and_models_are_kept_on_request(tmp_path: Path):
    """They are left out unless asked for, because most clusters to simulate have other names for their models."""
    imported = Imported(tmp_path, "sacct", "sacct.txt", models=True, cpu_jobs=True)

    assert (0, "a100") == (float(imported.rows["1003"]["gpu"]), imported.rows["1001"]["gpu_model"])


@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("sacct", "JobID|Submit|Start|End\n1|a|b|c\n", "no column has a job's GPUs; write the table with: sacct -a"),
        ("csv", "id,gpus,submit\n1,1,0\n", "no column has a job's duration"),
        ("csv", "", "is empty"),
        ("csv", "id,gpus,submit,duration\n1,0,0,5\n", "no job is left. dropped: 1 without GPU"),
        ("philly", "{}", "is no list of jobs"),
        ("philly", "[", "is no JSON"),
        ("kueue", '{"items": []}', "has no Workload"),
        ("prometheus", '{"data": {"resultType": "vector", "result": []}}', "ask /api/v1/query_range"),
        ("prometheus", '{"data": {"resultType": "matrix", "result": []}}', "has no series of"),
        (
            "prometheus",
            '{"status": "error", "error": "exceeded maximum resolution"}',
            "refused the query: exceeded max",
        ),
        (
            "sacct",
            "1|ann|2026-01-01T00:00:00|gres/gpu=1\n",
            "does not name the columns (-P gives delimiters, and -n takes",
        ),
        (
            "sacct",
            "       JobID    JobName\n------------ ----------\n2399  run+\n",
            "does not name the columns (-P gives",
        ),
        ("sacct", '{"jobs": 3}', "has no list of jobs; write it with: sacct -a -X --json"),
        ("kueue", "a: [", "line 2: is neither JSON nor YAML"),
        ("kueue", "- a\n", "is no list of workloads"),
        ("csv", "name,num_gpu,gpu_milli,creation_time\na,1,500,0\n", "is the openb trace, which needs no import"),
        ("pai", "a,b\n1,2\n", "is none of PAI's tables"),
        ("pai", "a,b\n1,2\n", "; for a table of your own use --from csv"),
        ("helios", "a,b\n1,2\n", "wanted is cluster_log.csv of HeliosData; for a table of your own use --from csv"),
        ("helios", "job_id,gpus,submit_time\n1,2,3\n", "no column has a job's GPUs; wanted is cluster_log.csv of"),
    ],
)
def test_what_is_no_account_of_jobs_is_refused_in_a_sentence(tmp_path: Path, kind: str, content: str, said: str):
    """The file is named, with what is wanted; no trace is written."""
    own = tmp_path / "own.csv"
    own.write_text(content)

    with pytest.raises(UserError) as error:
        Imported(tmp_path, kind, own)

    assert said in str(error.value)
    assert str(own) in str(error.value)
    assert ["own.csv"] == [path.name for path in tmp_path.iterdir()]
