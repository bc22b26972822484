"""Rows of published traces, imported: the numbers expected are those in the rows.

`tests/data/traces/README.md` says where the rows are from.
"""

import csv
from pathlib import Path

import pytest
from imported_traces import DATA, Imported


def test_published_trace_for_the_simulator_of_pai(tmp_path: Path):
    """Of 82 jobs 26 have no GPU; those of several pods become a line for each, with an even part of the job's GPUs."""
    imported = Imported(tmp_path, "pai", "pai_published_simulator.csv", models=True)
    parts: dict[str, list[tuple[float, float, float]]] = {}
    for name, times in imported.times().items():
        parts.setdefault(name.partition("#")[0], []).append(times)

    assert (82, 56, {"without GPU": 26}) == tuple(imported.facts[key] for key in ("jobs_seen", "jobs_kept", "dropped"))
    # The first job with a GPU was submitted at 3; times count from there.
    assert {
        "1": [(3 - 3, 15_748, 0.25)] * 12,
        "9": [(67 - 3, 15_740, 0.25)] * 12,
        "63": [(690 - 3, 81, 1)] * 8,
        "67": [(707 - 3, 6621, 0.5)] * 50,
        "74": [(783 - 3, 5794, 0.25)] * 10,
        "75": [(796 - 3, 54, 0.25)] * 20,
        "77": [(804 - 3, 53_868, 2)] * 2,
        "81": [(860 - 3, 271, 0.25)] * 8,
    } == {name: lines for name, lines in parts.items() if len(lines) > 1}
    assert ([(5 - 3, 84, 1)], [(41 - 3, 41_382, 0.25)], [(312 - 3, 16, 2)]) == (parts["2"], parts["6"], parts["21"])
    assert ("6000", "T4", "d4d51aca8806") == tuple(
        imported.rows["1#0"][name] for name in ("cpu_milli", "gpu_model", "user")
    )
    assert [] == imported.warnings


def test_every_job_of_the_published_trace_for_the_simulator(tmp_path: Path):
    """Submission, duration and GPUs of every job are those of its row, all its pods together."""
    with (DATA / "pai_published_simulator.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if float(row["num_gpu"])]
    wanted = {row["job_id"]: (int(row["submit_time"]) - 3, int(row["duration"]), float(row["num_gpu"])) for row in rows}

    imported: dict[str, tuple[float, float, float]] = {}
    for name, (arrival, duration, gpus) in Imported(tmp_path, "pai", "pai_published_simulator.csv").times().items():
        job = name.partition("#")[0]
        imported[job] = (arrival, duration, gpus + imported.get(job, (0, 0, 0))[2])

    assert wanted == imported


@pytest.mark.parametrize("unknown", ['"None"', "null", '""'])
def test_published_jobs_of_philly_with_retries(tmp_path: Path, unknown: str):
    """Of four attempts one has both times, 03:11:14 to 03:11:57; a job without attempts never started."""
    text = (DATA / "philly_published_retries.json").read_text()
    log = tmp_path / "cluster_job_log"
    log.write_text(text.replace('"None"', unknown))

    imported = Imported(tmp_path, "philly", log)

    assert {"application_1506638472019_16565": (0, 43, 1)} == imported.times()
    assert {"never started": 1} == imported.facts["dropped"]
    assert 3 == text.count('"None"')
