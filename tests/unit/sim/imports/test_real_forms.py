"""Forms that real files have, beyond what the formats' documentation says, and what an import makes of them."""

import csv
import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from imported_traces import Imported

from aliquot.model.errors import UserError

HEAD = "JobID|Submit|Start|End|ElapsedRaw|State|NNodes|AllocTRES\n"
ROW = "{}|2026-01-02T03:00:00|2026-01-02T03:00:00|2026-01-02T04:00:00|3600|{}|1|{}\n"


def table(tmp_path: Path, content: str | bytes, name: str = "own.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("form", "text", "times", "dropped"),
    [
        (  # a job that was requeued held its GPU until then; one that waits again has no end
            "sacct",
            HEAD + ROW.format(1, "REQUEUED", "gres/gpu=1")
            + "3|2026-01-02T03:00:00|2026-01-02T03:00:00|Unknown|60|REQUEUED|1|gres/gpu=1\n",
            {"1": (0, 3600, 1)}, {"still running at the end": 1},
        ),
        (  # the authors of the trace leave tasks with a time of zero out as well
            "pai",
            "j,worker,1,Terminated,0.0,1739200.0,600,29.3,50,MISC\nk,worker,1,Failed,5.0,65.0,600,29.3,50,T4",
            {"k/worker": (0, 60, 0.5)}, {"without usable times": 1},
        ),
        (  # only a job whose state does not say that it is over may still be running
            "csv",
            "job,start,end,state,gpus\na,5,,FAILED,1\nb,5,,CANCELLED by 1000,1\nc,5,,,1\nd,5,65,COMPLETED,1",
            {"d": (0, 60, 1)}, {"ended at an unknown time": 2, "still running at the end": 1},
        ),
    ],
    ids=["requeued", "a time of zero", "over without an end"],
)  # fmt: skip
def test_a_job_without_an_end_is_left_out(
    tmp_path: Path, form: str, text: str, times: dict[str, tuple[int, int, float]], dropped: dict[str, int]
):
    """What its state says counts, and the account has the reason."""
    imported = Imported(tmp_path, form, table(tmp_path, text, "own.csv" if form == "csv" else "own.txt"))

    assert (times, dropped) == (imported.times(), imported.facts["dropped"])


def test_what_stands_around_the_lines_is_passed_over(tmp_path: Path):
    """A command, warnings, blank lines, CRLF, a delimiter at the end of lines, and a header line that comes again."""
    job = ROW.format(1, "COMPLETED", "gres/gpu=1").replace("\n", "|\n")
    again = ROW.format(2, "COMPLETED", "gres/gpu=2").replace("\n", "|\n")
    head = HEAD.replace("\n", "|\n")
    before = "\n$ sacct -p --format=JobID,Submit,Start,End,ElapsedRaw\nsacctmgr: Warning: cluster sync ongoing\n"
    text = f"{before}{head}{job}\n{head}{again}"
    own = table(tmp_path, text.replace("\n", "\r\n"))

    imported = Imported(tmp_path, "sacct", own)

    assert {"1": (0, 3600, 1), "2": (0, 3600, 2)} == imported.times()
    assert [] == imported.warnings


def test_bytes_that_are_not_utf8_do_not_end_an_import(tmp_path: Path):
    """A user's name in another encoding is kept as far as it can be read."""
    head = "JobID|User|Submit|Start|End|ElapsedRaw|State|NNodes|AllocTRES\n"
    row = "1|J\xfcrgen|2026-01-02T03:00:00|2026-01-02T03:00:00|2026-01-02T04:00:00|60|COMPLETED|1|gres/gpu=1\n"
    own = table(tmp_path, (head + row).encode("latin-1"))

    assert "J\N{REPLACEMENT CHARACTER}rgen" == Imported(tmp_path, "sacct", own).rows["1"]["user"]


def test_shards_are_parts_of_a_gpu_once_their_number_is_known(tmp_path: Path):
    """Slurm records how many gres/shard a job had, not how many make a GPU; without it such jobs are left out."""
    tres = "billing=10,cpu=10,gres/shard:nvidia_gb10=40,gres/shard=40,mem=50G,node=1"
    own = table(tmp_path, HEAD + ROW.format(1, "COMPLETED", tres) + ROW.format(2, "COMPLETED", "gres/gpu=1"))

    without, known = Imported(tmp_path, "sacct", own), Imported(tmp_path, "sacct", own, shards=80)

    assert {"with gres/shard or gres/mps, whose size is not recorded": 1} == without.facts["dropped"]
    assert {"1": (0, 3600, 0.5), "2": (0, 3600, 1)} == known.times()


def test_a_duration_that_is_not_from_start_to_end_is_told(tmp_path: Path):
    """AcmeTrace's Kalos counts from the submission on; the time from start to end is taken, with a note."""
    own = table(
        tmp_path,
        "job_id,user,node_num,gpu_num,state,submit_time,start_time,end_time,duration\n"
        "a,u1,2,16,FAILED,2026-05-17 11:00:58+00:00,2026-05-17 11:01:08+00:00,2026-05-17 11:01:16+00:00,18\n"
        "b,u1,1,8,COMPLETED,2026-05-17 19:01:58+08:00,2026-05-17 19:02:28+08:00,2026-05-17 19:03:28+08:00,60\n",
    )

    imported = Imported(tmp_path, "csv", own)

    assert {"a#0": (0, 8, 8), "a#1": (0, 8, 8), "b": (60, 60, 8)} == imported.times()
    assert ["durations differ from the time from start to end, which was taken"] == [
        note for note in imported.facts["notes"] if "durations" in note
    ]


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000, 1_000_000_000])
def test_times_may_be_seconds_or_finer(tmp_path: Path, unit: int):
    """Seconds, milliseconds, microseconds and nanoseconds since 1970 are told apart by their size."""
    arrivals = [1_767_322_800 * unit, 1_767_322_860 * unit]
    own = table(tmp_path, "job,submit,duration,gpus\n" + "".join(f"{at},{at},60,1\n" for at in arrivals), "own.csv")

    assert [0, 60] == [arrival for arrival, _, _ in Imported(tmp_path, "csv", own).times().values()]


def test_pais_simulator_has_the_gpus_of_a_job_or_of_an_instance(tmp_path: Path):
    """Of a job beside num_pod, of one instance beside num_inst: the same job is 3.0 there and 0.25 here."""
    of_job = "job_id,user,num_gpu,num_cpu,num_pod,duration,submit_time,gpu_type\n1,u,3.0,72.0,12.0,60,3,T4\n"
    of_instance = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n1,12.0,3,6.0,0.25,T4,60,u\n"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    first = Imported(tmp_path / "a", "pai", table(tmp_path, of_job, "of_job.csv"))
    second = Imported(tmp_path / "b", "pai", table(tmp_path, of_instance, "of_instance.csv"))

    assert {f"1#{pod}": (0, 60, 0.25) for pod in range(12)} == first.times()
    assert first.rows == second.rows


@pytest.mark.parametrize(
    "header", ["job_id,num_inst,submit_time,num_gpu,duration", "job_name,inst_num,plan_gpu,start,end"]
)
def test_a_table_of_pai_is_not_taken_for_ones_own(tmp_path: Path, header: str):
    """Its GPUs are those of one instance, so --from csv would lose all instances but one; --from pai is named."""
    own = table(tmp_path, f"{header}\n1,12,3,0.25,60\n", "own.csv")

    with pytest.raises(UserError, match=r"own\.csv: has the GPUs of one instance.*use --from pai"):
        Imported(tmp_path, "csv", own)


@pytest.mark.parametrize(
    ("columns", "cells", "parts"),
    [
        ("pods,gpus", "4,2", [0.5] * 4),
        ("replicas,num_gpus", "2,5", [3, 2]),
        ("num_pods,gpus", "3,1", [0.334, 0.333, 0.333]),
        ("instances,gpus_per_pod", "2,1.5", [1.5, 1.5]),
        ("replicas,gpus", ",2", [2]),
    ],
)
def test_pods_of_a_job_in_ones_own_table(tmp_path: Path, columns: str, cells: str, parts: list[float]):
    """GPUs are the job's, shared evenly among its pods, or each pod's where the column says so."""
    own = table(tmp_path, f"job,submit,duration,{columns}\na,0,60,{cells}\n", "own.csv")

    assert parts == [gpus for _, _, gpus in Imported(tmp_path, "csv", own).times().values()]


@pytest.mark.parametrize("cell", ["inf", "-inf", "-50", "1e400", "1e13", "1,000", "many"])
@pytest.mark.parametrize("column", ["inst_num", "plan_cpu", "plan_gpu"])
def test_a_number_of_pai_that_cannot_be_is_named(tmp_path: Path, column: str, cell: str):
    """File, line, column and value; the other tasks are kept."""
    good = {"job_name": "j", "task_name": "worker", "inst_num": "1", "status": "Terminated", "start_time": "5",
            "end_time": "65", "plan_cpu": "600", "plan_mem": "29.3", "plan_gpu": "50", "gpu_type": "T4"}  # fmt: skip
    bad = good | {"job_name": "bad", column: cell}
    own = tmp_path / "tasks.csv"
    with own.open("w", newline="") as file:
        csv.writer(file).writerows([good.values(), bad.values()])

    imported = Imported(tmp_path, "pai", own)

    assert {"j/worker": (0, 60, 0.5)} == imported.times()
    assert [f'{own} line 2 column "{column}": {cell!r} '] == [
        warning[: warning.index(repr(cell)) + len(repr(cell)) + 1] for warning in imported.warnings
    ]


def test_a_list_of_the_api_server_names_no_kinds(tmp_path: Path):
    """`kubectl get --raw` prints a WorkloadList whose items have no kind."""
    workloads = json.loads((Path(__file__).parents[3] / "data/traces/workloads.json").read_text())["items"]
    items = [{name: part for name, part in item.items() if name != "kind"} for item in workloads]
    own = table(tmp_path, json.dumps({"kind": "WorkloadList", "items": items}), "own.json")

    assert Imported(tmp_path, "kueue", "workloads.json").times() == Imported(tmp_path, "kueue", own).times()


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        (lambda text: b"PK\x03\x04" + text, "is a zip archive; unpack it"),
        (lambda text: b"\xfd7zXZ\x00" + text, "is packed with xz; unpack it"),
        (lambda text: text.decode().encode("utf-16"), "is not UTF-8 text"),
        (lambda text: tarred(text), "is a tar archive; unpack it (tar -xf)"),
        (lambda text: gzip.compress(tarred(text)), "is a tar archive; unpack it (tar -xf)"),
    ],
    ids=["zip", "xz", "utf-16", "tar", "tar.gz"],
)
def test_what_has_to_be_unpacked_first_is_told(tmp_path: Path, pack, said: str):
    """The published traces come in archives; an archive is named as one."""
    own = table(tmp_path, pack((HEAD + ROW.format(1, "COMPLETED", "gres/gpu=1")).encode()))

    with pytest.raises(UserError) as error:
        Imported(tmp_path, "sacct", own)

    assert f"{own}: {said}" in str(error.value)


def tarred(text: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("cluster_log.csv")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


def test_gzip_is_known_by_its_content(tmp_path: Path):
    """Whatever the file is called."""
    own = table(tmp_path, gzip.compress((HEAD + ROW.format(1, "COMPLETED", "gres/gpu=1")).encode()))

    assert {"1": (0, 3600, 1)} == Imported(tmp_path, "sacct", own).times()


def test_a_pipe_is_refused_at_once(tmp_path: Path):
    """A table is read twice, so jobs would be lost without a word."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    with pytest.raises(UserError, match="is a pipe, which cannot be read twice; write it to a file first"):
        Imported(tmp_path, "sacct", pipe)
