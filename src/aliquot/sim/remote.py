"""Runs on a Dask or Ray cluster: the same results by seed as here, because a run depends on its task alone.

Tables that a task names travel with it and are written once on each worker, under a name by their content, so workers
need this package and no common file system.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from aliquot.lib.files import open_plain, write_whole
from aliquot.model.errors import AliquotError, UserError
from aliquot.model.extras import adding
from aliquot.sim import runs
from aliquot.sim.figures import RunFigures
from aliquot.sim.parallel import Finished, shown_progress
from aliquot.sim.runs import RunTask

WAIT_S: Final = 30.0
Done = Iterator[tuple[int, RunFigures]]
Tables = Mapping[str, bytes]


def run_all(where: str, tasks: Sequence[RunTask]) -> Finished[RunTask, RunFigures]:
    """Do every task on the cluster that `where` names: `dask`, `dask:tcp://host:8786`, `ray` or `ray:ray://host:10001`.

    Without an address Dask starts workers on this machine, and Ray does or joins the cluster that it finds. Ctrl-C
    returns the runs that are finished.

    Raises:
        UserError: another name, or the package is not installed.
        AliquotError: the cluster cannot be reached.
    """
    name, _, address = where.partition(":")
    if name not in CLUSTERS:
        raise UserError(f"--on {where}: is no kind of cluster; allowed are dask, dask:ADDRESS, ray and ray:ADDRESS")
    carried = tables_of(tasks)
    found: dict[int, RunFigures] = {}
    complete = True
    with shown_progress("sim", len(tasks)) as advance, CLUSTERS[name](address) as submitted:
        try:
            for number, result in submitted(carried, tasks):
                found[number] = result
                advance(len(found))
        except KeyboardInterrupt:
            complete = False
    return Finished({task: found[number] for number, task in enumerate(tasks) if number in found}, complete)


def tables_of(tasks: Sequence[RunTask]) -> dict[str, bytes]:
    """The content of every file that the tasks name."""
    named = {name for task in tasks for name in (task.scenario.nodes, task.scenario.trace, task.scenario.services)}
    return {name: Path(name).read_bytes() for name in sorted(named) if os.path.isfile(name)}  # noqa: PTH113 (no file is no error there)


def run_with(carried: Tables, task: RunTask) -> RunFigures:
    """One run on a worker, with the tables that came along."""
    place = partial(_placed, carried)
    scenario = task.scenario
    here = replace(
        scenario, nodes=place(scenario.nodes), trace=place(scenario.trace), services=place(scenario.services)
    )
    return runs.run(replace(task, scenario=here))


def _placed(carried: Tables, name: str) -> str:
    """Where a table lies on this worker; other texts stand for themselves."""
    if name not in carried:
        return name
    content = carried[name]
    folder = Path(tempfile.gettempdir()) / f"aliquot-sim-{os.getuid()}-{hashlib.sha256(content).hexdigest()[:32]}"
    path = folder / Path(name).name
    with _alone(folder):
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content, synced=False)
    return str(path)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """This user's folder, made where it is missing, with no other worker in it: several write the same table at once.

    Raises:
        AliquotError: it belongs to another user, who could have links to other files in it.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise AliquotError(f"{folder} belongs to another user; remove it, or set TMPDIR to a folder of yours")
    lock = open_plain(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


@contextmanager
def _dask(address: str) -> Iterator[Callable[[Tables, Sequence[RunTask]], Done]]:
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError:
        raise UserError(f"--on dask: Dask is not installed; {adding('dask')}") from None
    try:
        cluster = None if address else LocalCluster(threads_per_worker=1, dashboard_address=None)
        client = Client(address or cluster, timeout=WAIT_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise AliquotError(f"--on dask:{address}: the cluster does not answer ({_said(error)})") from None

    def submitted(carried: Tables, tasks: Sequence[RunTask]) -> Done:
        shared = client.scatter(dict(carried), broadcast=True, hash=False)
        futures = {client.submit(run_with, shared, task, pure=False): n for n, task in enumerate(tasks)}
        for future in as_completed(futures):
            yield futures[future], future.result()

    try:
        yield submitted
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


@contextmanager
def _ray(address: str) -> Iterator[Callable[[Tables, Sequence[RunTask]], Done]]:
    try:
        import ray
    except ImportError:
        raise UserError(f"--on ray: Ray is not installed; {adding('ray')}") from None
    try:
        ray.init(address=address or None, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises bare ones when a node does not start in time
        raise AliquotError(f"--on ray:{address}: the cluster does not answer ({_said(error)})") from None

    def submitted(carried: Tables, tasks: Sequence[RunTask]) -> Done:
        shared, remote = ray.put(dict(carried)), ray.remote(run_with)
        waiting = {remote.remote(shared, task): number for number, task in enumerate(tasks)}
        while waiting:
            for ready in ray.wait(list(waiting), num_returns=1)[0]:
                yield waiting.pop(ready), ray.get(ready)

    try:
        yield submitted
    finally:
        ray.shutdown()


CLUSTERS: Final = {"dask": _dask, "ray": _ray}


def _said(error: BaseException) -> Any:
    return str(error).strip().partition("\n")[0] or type(error).__name__
