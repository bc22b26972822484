"""Runs on a Dask cluster: the same results by seed as here, because a run depends on its task alone.

Tables that a task names travel with it, and each process of a worker writes them once, under a name by their content;
so workers need this package and no common file system.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from aliquot.lib.files import write_whole
from aliquot.model.errors import AliquotError, UserError
from aliquot.model.extras import LAB_PACKAGE, adding
from aliquot_lab.sim import runs
from aliquot_lab.sim.figures import RunFigures
from aliquot_lab.sim.parallel import Finished, shown_progress
from aliquot_lab.sim.runs import RunTask

WAIT_S: Final = 30.0
Tables = Mapping[str, bytes]
_PLACING: Final = threading.Lock()
"""Threads of a worker place the same table at once."""


def run_all(where: str, tasks: Sequence[RunTask]) -> Finished[RunTask, RunFigures]:
    """Do every task on the Dask cluster that `where` names: `dask`, which starts workers here, or `dask:tcp://host:8786`.

    Ctrl-C returns the runs that are finished.

    Raises:
        UserError: another name, or Dask is not installed.
        AliquotError: the cluster cannot be reached.
    """
    name, _, address = where.partition(":")
    if name != "dask":
        raise UserError(f"--on {where}: is no kind of cluster; allowed are dask and dask:ADDRESS")
    carried = tables_of(tasks)
    results: dict[int, RunFigures] = {}
    complete = True
    with shown_progress("sim", len(tasks)) as advance, _connected(address) as client:
        from distributed import as_completed

        try:
            shared = client.scatter(carried, broadcast=True, hash=False)
            futures = {client.submit(run_with, shared, task, pure=False): n for n, task in enumerate(tasks)}
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                advance(len(results))
        except KeyboardInterrupt:
            complete = False
    return Finished({task: results[number] for number, task in enumerate(tasks) if number in results}, complete)


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


@cache
def _folder() -> Path:
    """A folder of this process alone, which goes away with it."""
    folder = tempfile.mkdtemp(prefix="aliquot-sim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _placed(carried: Tables, name: str) -> str:
    """Where a table lies on this worker; other texts stand for themselves."""
    if name not in carried:
        return name
    content = carried[name]
    with _PLACING:
        path = _folder() / hashlib.sha256(content).hexdigest() / Path(name).name
        if not path.is_file():
            write_whole(path, content, synced=False)
    return str(path)


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """A client of the cluster; of one on this machine where there is no address, which ends with it."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise UserError(f"--on dask: Dask is not installed; {adding('dask', LAB_PACKAGE)}") from None
    try:
        cluster = None if address else LocalCluster(threads_per_worker=1, dashboard_address=None)
        client = Client(address or cluster, timeout=WAIT_S)
    except (OSError, TimeoutError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise AliquotError(f"--on dask:{address}: the cluster does not answer ({reason})") from None
    try:
        yield client
    finally:
        client.close()
        if cluster is not None:
            cluster.close()
