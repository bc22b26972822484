"""Reading tables: every fault is told with its place."""

import gzip

import pytest

from aliquot.model.errors import UserError
from aliquot_lab.sim.openb.trace import read_nodes, read_pods
from aliquot_lab.sim.seeds import seed_list
from aliquot_lab.sim.tables import BadTable, read_rows, write_whole
from aliquot_lab.sim.workload import generated, read_jobs

POD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"
NODE = "sn,cpu_milli,memory_mib,gpu,model\n"
JOB = "name,arrival_s,duration_s,gpu\n"


@pytest.fixture
def table(tmp_path):
    def make(text: str):
        path = tmp_path / "table.csv"
        path.write_text(text)
        return path

    return make


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (
            read_pods,
            POD + "a,1,1,1,500\nb,x,1,1,500\n",
            "line 3 column \"cpu_milli\": 'x' is not a number of thousandths",
        ),
        (read_pods, POD + "a,-1,1,1,500\n", "line 2 column \"cpu_milli\": '-1' must be a finite number from 0"),
        (read_pods, POD + "a,nan,1,1,500\n", "line 2 column \"cpu_milli\": 'nan' must be a finite number"),
        (read_pods, POD + "a,1.5,1,1,500\n", "is not a whole number"),
        (read_pods, POD + "a,1,1,1,1500\n", 'line 2 column "gpu_milli"'),
        (read_pods, POD + "a,1,1,2,500\n", "more than one GPU is asked whole"),
        (read_pods, POD + "a,1,1,0,0\n", "no task asks for a GPU"),
        (read_pods, POD + "a,1,1\n", 'line 2 column "num_gpu": the line has 3 cells, the header 5'),
        (read_pods, "name,cpu_milli\n", 'column "memory_mib", "num_gpu", "gpu_milli" is missing'),
        (read_nodes, NODE + "n,1,1,0,\n", "no node has a GPU"),
        (read_nodes, NODE + "n,1,1,2,\n", 'line 2 column "model"'),
        (read_nodes, NODE + "n,1,1,2,T4\nn,1,1,2,T4\n", 'line 3 column "sn"'),
        (lambda path: read_jobs(path, "w"), JOB + "a,0,inf,1\n", "line 2 column \"duration_s\": 'inf'"),
        (lambda path: read_jobs(path, "w"), JOB + "a,0,1,0.3333\n", 'line 2 column "gpu"'),
        (
            lambda path: read_jobs(path, "w"),
            JOB + "a,0,1h,1\n",
            "column \"duration_s\": '1h' is not a number of seconds",
        ),
        (lambda path: read_jobs(path, "w"), JOB + "a,0,1,0\n", "no job asks for a GPU"),
    ],
)
def test_a_broken_table_is_told_by_its_place(table, read, text: str, told: str):
    """Whatever is wrong in a table, the sentence names the file, the line and the column."""
    with pytest.raises(BadTable) as error:
        read(table(text))

    assert told in str(error.value)
    assert "table.csv" in str(error.value)


def test_a_part_of_a_gpu_may_be_a_percentage(table):
    """As everywhere: 30 % is 0.3."""
    first, second = read_jobs(table(JOB + "a,0,1,30%\nb,0,1,0.3\n"), "w").jobs

    assert first.ask == second.ask


def test_a_missing_file_is_told(tmp_path):
    """A file that is not there is one sentence."""
    with pytest.raises(BadTable, match=r"nowhere\.csv: cannot be read"):
        list(read_rows(tmp_path / "nowhere.csv", ["a"]))


def test_compressed_files_are_equal_for_equal_content(tmp_path):
    """A file written twice has the same bytes, compressed or not."""
    write_whole(tmp_path / "a.csv.gz", "x\n1\n")
    first = (tmp_path / "a.csv.gz").read_bytes()
    write_whole(tmp_path / "a.csv.gz", "x\n1\n")

    assert first == (tmp_path / "a.csv.gz").read_bytes()
    assert b"x\n1\n" == gzip.decompress(first)


@pytest.mark.parametrize(
    ("text", "seeds"), [("42", [42]), ("42..44", [42, 43, 44]), ("1,3..4,3", [1, 3, 4]), ("0", [0])]
)
def test_seeds_are_read_as_people_write_them(text: str, seeds: list[int]):
    """Single seeds, ranges and lists give each seed once, in order."""
    assert seeds == seed_list(text)


@pytest.mark.parametrize("text", ["", "a", "-1", "5..3", "1..99999999", "1.5"])
def test_other_seeds_are_refused(text: str):
    """What is not a seed is one sentence."""
    with pytest.raises(UserError, match="seeds"):
        seed_list(text)


@pytest.mark.parametrize("text", ["mix:jobs=0", "mix:jobs=1.5", "mix:rate=nan", "kubeshare:speed=3", "mix:jobs"])
def test_a_generator_refuses_what_makes_no_sense(text: str):
    """Options of generators are known, finite and above 0."""
    with pytest.raises(UserError, match="--trace"):
        generated(text, 42)
