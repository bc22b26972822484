"""Lines of an account that cannot be read or that no trace can hold: which are left out, and how they are named."""

from pathlib import Path

import pytest
from imported_traces import Imported, own_table

from aliquot.model.errors import UserError
from aliquot_lab.sim.imports.importing import import_trace
from aliquot_lab.sim.imports.tables import Wanted


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


@pytest.mark.parametrize(
    ("table", "kept", "dropped", "said"),
    [
        (  # many tables write 0 for a time that is not known; the job is left out before its times are compared
            "job_id,submit,start,end,gpus\na,1767355200,1767355260,1767355320,1\nb,1767355200,0,0,1\n",
            1, {"never started": 1}, [],
        ),
        (  # column and value of a negative number, and the name of a job with more GPUs than any cluster has
            "job_id,submit,start,end,num_gpus\na,0,0,9,-1\nb,0,0,9,1000000000\nc,0,0,9,1\n",
            1, {"unreadable": 2},
            ["{} line 2 column \"num_gpus\": '-1' must be a number from 0 to 1,000,000,000,000",
             'job "b": 1,000,000,000 GPUs; a job has at most 100,000'],
        ),
        (  # a trace with more than 64 GPUs in a line is refused by a run
            "job_id,submit,duration,num_gpus,nodes\na,0,9,128,\nb,0,9,128,16\nc,0,9,64,\n",
            2, {"unreadable": 1},
            ['job "a": 128 GPUs on one machine; allowed are 64, or a column with the number of its machines or pods'],
        ),
    ],
    ids=["never started", "no number of GPUs", "no machine holds it"],
)  # fmt: skip
def test_a_job_that_spoils_the_trace_is_left_out(
    tmp_path: Path, table: str, kept: int, dropped: dict[str, int], said: list[str]
):
    """The others are kept, and a sentence names what is wrong, once."""
    facts, warnings = own_table(tmp_path, table)

    assert (kept, dropped) == (facts["jobs_kept"], facts["dropped"])
    assert [sentence.format(tmp_path / "own.csv") for sentence in said] == warnings


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


def test_a_job_that_ended_before_it_started_is_left_out(tmp_path: Path):
    """Such a record of Slurm's has no usable times, whatever its elapsed time is."""
    head = "JobID|User|Submit|Eligible|Start|End|ElapsedRaw|State|NNodes|AllocTRES|ReqTRES\n"
    row = "{}|f|{day}T00:00:00|{day}T00:00:00|{day}T01:00:00|{day}T{}:00:00|600|COMPLETED|1|gres/gpu=3|gres/gpu=3\n"
    source = tmp_path / "odd.txt"
    source.write_text(head + row.format(1, "02", day="2026-01-02") + row.format(2, "00", day="2026-01-02"))
    facts = import_trace("sacct", [source], tmp_path / "out.csv", how=Wanted(), models=False, warn=str)

    assert (1, {"without usable times": 1}) == (facts["jobs_kept"], facts["dropped"])


def test_an_empty_cell_leaves_the_gpus_to_another_column(tmp_path: Path):
    """A part in percent counts where the number of whole GPUs is empty."""
    facts, _ = own_table(tmp_path, "job_id,start,end,num_gpus,gpu_percent\na,0,3600,,30\nb,0,3600,2,\n")

    assert (2, 2.3) == (facts["jobs_kept"], pytest.approx(facts["gpu_hours"]))


@pytest.mark.parametrize("line", ["b,0", "b,0,9,1,5", "b,0,9,many", "b,never,9,1", "b,0,9,1000000000"])
def test_a_line_that_cannot_be_read_counts_as_a_job(tmp_path: Path, line: str):
    """Too few or too many cells, a cell that is not what its column holds, or a number that no job has."""
    facts, warnings = own_table(tmp_path, f"job_id,start,end,num_gpus\na,0,9,1\n{line}\n")

    assert (2, 1, {"unreadable": 1}) == (facts["jobs_seen"], facts["jobs_kept"], facts["dropped"])
    assert facts["text"].startswith("1 of 2 jobs kept")
    assert 2 == len(warnings)  # that of the line, and that the table has no time of submission


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
