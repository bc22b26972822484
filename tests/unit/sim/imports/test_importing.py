"""What `aliquot sim import` makes of each kind of account: jobs, times, and what is left out and why."""

import gzip
import json
from pathlib import Path

import pytest
from imported_traces import DATA, Imported, own_table

from aliquot.model.errors import UserError
from aliquot_lab.sim.imports.importing import READERS, import_trace
from aliquot_lab.sim.imports.tables import DIFFERS, Wanted
from aliquot_lab.sim.workloads.table import read_jobs

FILES = {
    "sacct": ["sacct.txt"],
    "helios": ["cluster_log.csv"],
    "philly": ["cluster_job_log.json"],
    "pai": ["pai_task_table.csv", "pai_job_table.csv"],
    "kueue": ["workloads.json"],
    "prometheus": ["requests.json", "phases.json", "dcgm.json"],
    "csv": ["cluster_log.csv"],
}


@pytest.mark.parametrize("kind", READERS)
def test_what_is_imported_is_a_trace(tmp_path: Path, kind: str):
    """Each kind gives a table that `sim run` reads, and every job seen is kept or has a reason for being left out."""
    imported = Imported(tmp_path, kind, *FILES[kind])

    assert len(imported.rows) == len(read_jobs(imported.path, "trace").jobs)
    assert imported.facts["jobs_seen"] == imported.facts["jobs_kept"] + sum(imported.facts["dropped"].values())


def test_sacct(tmp_path: Path):
    """Steps are no jobs; a job arrives when it could first have run, and several nodes are a line each."""
    imported = Imported(tmp_path, "sacct", "sacct.txt")

    assert {
        "1001": (0, 93_784, 1),
        "1002#0": (3600, 1800, 4),
        "1002#1": (3600, 1800, 4),
        "1007": (10_800, 600, 0.285),
    } == imported.times()
    assert {
        "without GPU": 1, "still running at the end": 1, "never started": 2, "unreadable": 1,
    } == imported.facts["dropped"]  # fmt: skip
    assert {"job steps": 2} == imported.facts["not_jobs"]
    assert ("8000", "65536", "ann") == tuple(
        imported.rows["1001"][name] for name in ("cpu_milli", "memory_mib", "user")
    )
    assert ("32000", "786432") == tuple(imported.rows["1002#0"][name] for name in ("cpu_milli", "memory_mib"))


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


def test_a_trace_is_written_into_a_folder_that_exists(tmp_path: Path):
    """A folder that does not exist is named, and none is made."""
    source = tmp_path / "own.csv"
    source.write_text("job_id,start,end,num_gpus\na,0,3600,1\n")
    with pytest.raises(UserError, match=rf"-o {tmp_path}/no/out.csv: there is no folder {tmp_path}/no; make it"):
        import_trace("csv", [source], tmp_path / "no" / "out.csv", how=Wanted(), models=False, warn=print)

    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["x.parquet", "x.json", "x.gz", "x"])
def test_a_trace_is_named_for_what_it_is(tmp_path: Path, name: str):
    """It is CSV, packed or not, under a name that says so."""
    source = tmp_path / "own.csv"
    source.write_text("job_id,start,end,num_gpus\na,0,3600,1\n")
    with pytest.raises(UserError, match=rf"^-o {tmp_path}/{name}: a trace is a CSV file; name it \.csv or \.csv\.gz$"):
        import_trace("csv", [source], tmp_path / name, how=Wanted(), models=False, warn=print)

    assert [source] == list(tmp_path.iterdir())


def test_notes_count_the_jobs_that_are_kept(tmp_path: Path):
    """Of three jobs whose duration is not the time from start to end, the two that are left out are not counted."""
    rows = ("a,0,0,3600,99,1", "b,0,0,3600,99,0", "c,0,0,3600,99,1000000", "d,0,0,3600,3600,1")
    facts, _ = own_table(tmp_path, "\n".join(["job_id,submit,start,end,duration,num_gpus", *rows, ""]))

    assert 2 == facts["jobs_kept"]
    assert {DIFFERS: 1} == facts["notes"]
    assert {DIFFERS: "a"} == facts["first_jobs"]


def test_a_file_that_is_read_is_not_written(tmp_path: Path):
    """The trace may not take the place of the record it is made from."""
    source = tmp_path / "own.csv"
    source.write_text("job_id,start,end,num_gpus\na,0,3600,1\n")
    with pytest.raises(UserError, match="is one of the files to read"):
        import_trace("csv", [source], tmp_path / "." / "own.csv", how=Wanted(), models=False, warn=print)

    assert "job_id,start,end,num_gpus\na,0,3600,1\n" == source.read_text()


def test_helios(tmp_path: Path):
    """GPUs of all nodes are spread over them; jobs that were cancelled while they waited never ran."""
    imported = Imported(tmp_path, "helios", "cluster_log.csv")

    assert {"2001": (0, 3600, 1), "2002#0": (239, 600, 8), "2002#1": (239, 600, 8)} == imported.times()
    assert {"without GPU": 1, "never started": 1} == imported.facts["dropped"]


def test_philly(tmp_path: Path):
    """The GPUs of the last attempt for the time of all; an attempt without times is left out and told."""
    imported = Imported(tmp_path, "philly", "cluster_job_log.json")

    assert {
        "application_1_0001#0": (0, 4200, 2),
        "application_1_0001#1": (0, 4200, 2),
        "application_1_0003": (360, 600, 1),
    } == imported.times()
    assert {"never started": 1, "still running at the end": 1} == imported.facts["dropped"]
    assert (
        "1 of the jobs kept have an attempt whose times are not recorded, and which their duration leaves out "
        "(the first: job application_1_0003)"
    ) in imported.facts["text"].splitlines()


def test_pai_tasks(tmp_path: Path):
    """Percent of a GPU for each instance; with the table of jobs a task arrives when its job was submitted."""
    imported = Imported(tmp_path, "pai", "pai_task_table.csv", "pai_job_table.csv")

    assert {
        "j0/worker#0": (0, 3600, 0.5), "j0/worker#1": (0, 3600, 0.5), "j1/tensorflow": (500, 900, 2),
    } == imported.times()  # fmt: skip
    assert {"without GPU": 1, "still running at the end": 1, "never started": 1} == imported.facts["dropped"]
    assert ("4000", "30000", "uA") == tuple(
        imported.rows["j0/worker#0"][name] for name in ("cpu_milli", "memory_mib", "user")
    )


def test_pai_instances(tmp_path: Path):
    """With the table of instances each has its own times; the tables may come in any order."""
    imported = Imported(tmp_path, "pai", "pai_instance_table.csv", "pai_job_table.csv", "pai_task_table.csv")

    assert {"j0/n1": (0, 3600, 0.5), "j0/n2": (0, 1000, 0.5), "j1/n3": (500, 900, 2)} == imported.times()


def test_pai_without_the_tasks_is_refused(tmp_path: Path):
    """Only the table of tasks says how many GPUs."""
    with pytest.raises(UserError, match=r"add pai_task_table\.csv"):
        Imported(tmp_path, "pai", "pai_job_table.csv")


def test_kueue(tmp_path: Path):
    """A line for each pod with a GPU, from creation on, for the time from admission to the end."""
    imported = Imported(tmp_path, "kueue", "workloads.json")

    assert {
        "team-a/job-train-1/workers#0": (0, 7200, 4),
        "team-a/job-train-1/workers#1": (0, 7200, 4),
        "team-b/job-again": (600, 600, 1),
    } == imported.times()
    assert {"still running at the end": 1, "never started": 1, "without GPU": 1} == imported.facts["dropped"]
    assert "100" == imported.rows["team-a/job-train-1/workers#0"]["priority"]
    assert any("evicted" in note for note in imported.facts["notes"])


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


def test_prometheus(tmp_path: Path):
    """A pod arrives when it is first seen and runs while its phase says so; what the range cuts off is told."""
    imported = Imported(tmp_path, "prometheus", "requests.json", "phases.json")

    assert {"team-a/train-0": (300, 1860, 2), "team-b/early-0": (0, 1260, 1)} == imported.times()
    assert {"still running at the end": 1, "without GPU": 1, "never started": 1} == imported.facts["dropped"]
    assert any("before the range began" in note for note in imported.facts["notes"])
    assert any("known to 60 s" in note for note in imported.facts["notes"])


def test_prometheus_with_dcgm_alone(tmp_path: Path):
    """The GPUs that a pod was seen on count as asked for; it arrives when it began to run."""
    imported = Imported(tmp_path, "prometheus", "dcgm.json", models=True)

    assert {"team-a/train-0": (0, 1860, 2)} == imported.times()
    assert "Tesla T4" == imported.rows["team-a/train-0"]["gpu_model"]


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
