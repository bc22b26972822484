"""What `aliquot sim import` makes of each kind of account: jobs, times, and what is left out and why."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from imported_traces import DATA, Imported

from aliquot.model.errors import UserError
from aliquot.sim.imports.importing import READERS, import_trace
from aliquot.sim.imports.tables import DIFFERS, Wanted
from aliquot.sim.workloads.table import read_jobs

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


def test_a_line_that_cannot_be_read_is_named(tmp_path: Path):
    """File, line, column and value; and columns that nothing reads are one warning."""
    imported = Imported(tmp_path, "sacct", "sacct.txt")

    assert any("sacct.txt line 11 column \"Submit\": 'yesterday' is no time" in line for line in imported.warnings)
    assert any("columns that are not read: JobName, Partition" in line for line in imported.warnings)


def test_a_line_is_called_by_its_number_in_the_file(tmp_path: Path):
    """A quoted cell with line breaks takes several lines; a row is named by the first of its own."""
    rows = ('"a\n\nb",0,9,1', "c,0,9,many", '"d\ne",0,9', "f,never,9,1")
    _, warnings = own_table(tmp_path, "\n".join(["# of May", "job_id,submit,duration,num_gpus", *rows, ""]))

    places = [warning.removeprefix(f"{tmp_path}/own.csv ")[:7] for warning in warnings]
    assert ["line 6 ", "line 7:", "line 9 "] == places


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("2026-01-02T03:00:00", "5", "line 3: the job arrives at 5 s, and that of {} line 2 on 2026-01-02;"),
        ("0", "2026-01-02", "line 3: the job arrives on 2026-01-02, and that of {} line 2 at 0 s;"),
        ("1767355200", "0", "line 3: the job arrives at 0 s, and that of {} line 2 on 2026-01-02;"),
    ],
)
def test_dates_and_seconds_from_the_start_are_not_mixed(tmp_path: Path, first: str, second: str, said: str):
    """The trace would be half a century long; both lines are named, and nothing is written."""
    with pytest.raises(UserError) as error:
        own_table(tmp_path, f"job_id,submit,duration,gpus\na,{first},9,1\nb,{second},9,1\n")

    own = f"{tmp_path}/own.csv"
    assert f"{own} {said.format(own)}" in str(error.value)
    assert ["own.csv"] == [path.name for path in tmp_path.iterdir()]


def test_a_time_of_0_does_not_spoil_dates_where_a_job_never_ran(tmp_path: Path):
    """Many tables write 0 for a time that is not known; such a job is left out before its times are compared."""
    facts, _ = own_table(
        tmp_path, "job_id,submit,start,end,gpus\na,1767355200,1767355260,1767355320,1\nb,1767355200,0,0,1\n"
    )

    assert (1, {"never started": 1}) == (facts["jobs_kept"], facts["dropped"])


def test_a_job_of_centuries_is_left_out_by_name(tmp_path: Path):
    """A duration or an arrival that no job has is a defect of the record, and does not spoil the trace."""
    head = "JobID|User|Submit|Eligible|Start|End|ElapsedRaw|State|NNodes|AllocTRES|ReqTRES\n"
    times = "{1}-01-01T00:00:00|{1}-01-01T00:00:00|{1}-01-01T00:00:05|{1}-01-01T00:10:00"
    row = f"{{0}}|f|{times}|{{2}}|COMPLETED|1|gres/gpu=3|gres/gpu=3\n"
    source = tmp_path / "odd.txt"
    source.write_text(head + row.format(1, 2026, 600) + row.format(2, 2026, "9" * 17) + row.format(3, 9999, 600))
    warnings: list[str] = []
    facts = import_trace("sacct", [source], tmp_path / "out.csv", how=Wanted(), models=False, warn=warnings.append)

    assert (1, {"unreadable": 2}) == (facts["jobs_kept"], facts["dropped"])
    assert ['job "2"', 'job "3"'] == [line.partition(":")[0] for line in warnings]


def own_table(tmp_path: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    """What becomes of a table of `text`, and the warnings."""
    source = tmp_path / "own.csv"
    source.write_text(text)
    warnings: list[str] = []
    return import_trace(
        "csv", [source], tmp_path / "out.csv", how=Wanted(), models=False, warn=warnings.append
    ), warnings


def test_an_empty_cell_leaves_the_gpus_to_another_column(tmp_path: Path):
    """A part in percent counts where the number of whole GPUs is empty."""
    facts, _ = own_table(tmp_path, "job_id,start,end,num_gpus,gpu_percent\na,0,3600,,30\nb,0,3600,2,\n")

    assert (2, 2.3) == (facts["jobs_kept"], pytest.approx(facts["gpu_hours"]))


def test_a_number_of_gpus_that_cannot_be_is_named_once(tmp_path: Path):
    """The column and the value of a negative number, and a job with more GPUs than any cluster has, by its name."""
    table = "job_id,start,end,num_gpus\na,0,9,-1\nb,0,9,1000000000\nc,0,9,1\n"
    facts, warnings = own_table(tmp_path, table)

    assert (1, {"unreadable": 2}) == (facts["jobs_kept"], facts["dropped"])
    assert [f"{tmp_path}/own.csv line 2 column \"num_gpus\": '-1' must be a number from 0 to 1,000,000,000,000",
            'job "b": 1,000,000,000 GPUs; a job has at most 100,000'] == warnings[1:]  # fmt: skip


@pytest.mark.parametrize("line", ["b,0", "b,0,9,1,5", "b,0,9,many", "b,never,9,1", "b,0,9,1000000000"])
def test_a_line_that_cannot_be_read_counts_as_a_job(tmp_path: Path, line: str):
    """Too few or too many cells, a cell that is not what its column holds, or a number that no job has."""
    facts, warnings = own_table(tmp_path, f"job_id,start,end,num_gpus\na,0,9,1\n{line}\n")

    assert (2, 1, {"unreadable": 1}) == (facts["jobs_seen"], facts["jobs_kept"], facts["dropped"])
    assert facts["text"].startswith("1 of 2 jobs kept")
    assert 2 == len(warnings)  # that of the line, and that the table has no time of submission


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


def test_a_job_that_no_machine_can_hold_is_left_out_by_name(tmp_path: Path):
    """A trace with more than 64 GPUs in a line is refused by a run, so such a job does not spoil it."""
    facts, warnings = own_table(
        tmp_path, "job_id,submit,duration,num_gpus,nodes\na,0,9,128,\nb,0,9,128,16\nc,0,9,64,\n"
    )

    assert (2, {"unreadable": 1}) == (facts["jobs_kept"], facts["dropped"])
    assert [
        'job "a": 128 GPUs on one machine; allowed are 64, or a column with the number of its machines or pods'
    ] == (warnings)


def test_priorities_beyond_those_of_a_trace_become_the_highest(tmp_path: Path):
    """Kubernetes allows a thousand million; a trace ends at a million, and the note names the first such job."""
    facts, _ = own_table(tmp_path, "job_id,submit,duration,gpus,priority\na,0,9,1,1000000000\nb,0,9,1,7\n")

    assert ["1000000", "7"] == [line.split(",")[-2] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    assert (
        "1 jobs had a higher priority than a trace has and got 1,000,000 (the first: job a)"
        in facts["text"].splitlines()
    )


def test_names_are_of_one_line_and_unique(tmp_path: Path):
    """What cannot stand in a trace is a blank, and a name that is there already gets a number."""
    own_table(tmp_path, 'job_id,submit,duration,gpus\n" a\n1",0,9,1\n"a\t1",0,9,1\n,0,9,1\n')

    assert ["a 1", "a 1~1", "line-5"] == [
        line.split(",")[0] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]
    ]


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
