"""Runs on a Dask cluster give what runs here give."""

import builtins
import tempfile
from pathlib import Path

import pytest

from aliquot.model.errors import AliquotError, UserError
from aliquot_lab.sim import parallel, remote, runs

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "sim"


@pytest.fixture(autouse=True)
def _tables_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers, here and in processes, keep the tables in a folder that goes away."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[runs.RunTask]:
    """Two policies and seeds of a trace in a file."""
    nodes, trace = EXAMPLES / "nodes.csv", EXAMPLES / "jobs.csv"
    return runs.tasks(runs.Scenario(str(nodes), str(trace)), ("bestfit", "random"), (1, 2))


def test_a_dask_cluster_gives_the_same_results_by_seed(tasks: list[runs.RunTask]):
    """Workers behind TCP find the same figures for every task, in the order of the tasks."""
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address=None
    ) as cluster:
        there = remote.run_all(f"dask:{cluster.scheduler_address}", tasks)

    here = parallel.run_all(runs.run, tasks, workers=1)

    assert tasks == list(there.results)
    assert [run.figures for run in here.results.values()] == [run.figures for run in there.results.values()]


@pytest.mark.slow
def test_without_an_address_dask_starts_workers_here(tasks: list[runs.RunTask]):
    """Processes of this machine find the same figures."""
    pytest.importorskip("distributed", reason="distributed is not installed")

    there = remote.run_all("dask", tasks)

    here = parallel.run_all(runs.run, tasks, workers=1)
    assert [run.figures for run in here.results.values()] == [run.figures for run in there.results.values()]


def test_tables_travel_with_the_runs(tasks: list[runs.RunTask], tmp_path: Path):
    """A worker that does not have the files at their path runs what was sent along."""
    carried = remote.tables_of(tasks)
    moved = {f"/nowhere/{Path(name).name}": content for name, content in carried.items()}
    scenario = runs.Scenario("/nowhere/nodes.csv", "/nowhere/jobs.csv")

    assert runs.run(tasks[0]).figures == remote.run_with(moved, runs.RunTask(scenario, "bestfit", 1)).figures


def test_tables_are_written_where_no_other_user_can(tasks: list[runs.RunTask], tmp_path: Path):
    """The folder is this process's own."""
    remote.run_with(remote.tables_of(tasks), tasks[0])

    assert 0o700 == remote._folder().stat().st_mode & 0o777


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tasks: list[runs.RunTask]):
    """It says what to install."""
    real = builtins.__import__

    def without(module: str, *rest: object, **named: object) -> object:
        if module.partition(".")[0] == "distributed":
            raise ImportError(module)
        return real(module, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(UserError, match=r"make -C .* setup EXTRAS=dask"):
        remote.run_all("dask", tasks)


def test_a_cluster_of_another_kind_is_refused(tasks: list[runs.RunTask]):
    """The sentence names the kinds that there are."""
    with pytest.raises(UserError, match="allowed are dask and dask:ADDRESS"):
        remote.run_all("slurm:head", tasks)


def test_a_cluster_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tasks: list[runs.RunTask]):
    """It names the address."""
    pytest.importorskip("distributed", reason="distributed is not installed")
    monkeypatch.setattr(remote, "WAIT_S", 0.5)

    with pytest.raises(AliquotError, match=r"--on dask:tcp://127\.0\.0\.1:1: the cluster does not answer"):
        remote.run_all("dask:tcp://127.0.0.1:1", tasks)
