"""A cluster that lives: pods arrive and leave, and what does not fit waits.

Pods are drawn from a trace of the FGD benchmark together with the time they ran, at Poisson arrivals; the load is the
GPU time offered over the capacity. Set-up A is an eighth of the cluster, set-up B all of it. The first quarter of the
arrivals is not counted. Waits are over all pods that need a GPU or not; a pod that waits at the end has waited until
then. This table was never published, so BestFit and FGD are our own runs of them; FGD gets the whole mix.

Source: docs/policy-aliquot.md; the traces are those of FGD (USENIX ATC'23), which places arrivals only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from aliquot.model.errors import UserError
from aliquot.placement.cluster import NodeSpec
from aliquot.placement.policy import Policy
from aliquot_lab.sim import figures
from aliquot_lab.sim.engine import SimSettings, Simulation
from aliquot_lab.sim.kernel import Workload, job_class
from aliquot_lab.sim.openb.trace import TraceNode, node_specs, read_nodes, read_pods
from aliquot_lab.sim.papers.fgd import NODES
from aliquot_lab.sim.parallel import Finished, part_done, run_all
from aliquot_lab.sim.policies import made
from aliquot_lab.sim.record import Outcome
from aliquot_lab.sim.tables import csv_text, write_whole
from aliquot_lab.sim.workload import Draws, drawn, service_s, timed

TIMES: Final = "default"
WARM_UP: Final = 0.25
POLICIES: Final = ("bestfit", "fgd", "aliquot")
LOADS: Final = {"A": (0.85, 0.95), "B": (0.90, 0.95)}
ARRIVALS: Final = {"A": 40_000, "B": 60_000}
SHARE: Final = {"A": 8, "B": 1}
TRACES: Final = ("default", "multigpu30", "gpushare60", "cpu250", "gpuspec33")


@dataclass(frozen=True)
class Run:
    """One run to do: `traces` is the folder of the benchmark's tables, `load` offered GPU time over capacity."""

    traces: str
    setup: str
    trace: str
    load: float
    policy: str
    seed: int
    arrivals: int


@dataclass(frozen=True)
class Living:
    """What one run came to; percentages are of the cluster's GPUs, waits in seconds."""

    allocation_percent: float
    waiting_percent: float
    fragmentation_percent: float
    wait_mean_s: float
    wait_p90_s: float
    wait_p99_s: float
    wait_fractional_s: float
    wait_one_s: float
    wait_multi_s: float
    wait_multi_p99_s: float


FIGURES: Final = tuple(Living.__dataclass_fields__)


def runs(
    traces: Path, setup: str, names: Sequence[str], loads: Sequence[float], policies: Sequence[str],
    seeds: Sequence[int], arrivals: int | None = None,
) -> list[Run]:  # fmt: skip
    """Every combination, the traces looked for first.

    Raises:
        UserError: a table is not in the folder, the set-up is not A or B, or there would be no arrival.
    """
    if setup not in SHARE:
        raise UserError(f"--setup {setup}: there are A (an eighth of the cluster) and B (all of it)")
    count = ARRIVALS[setup] if arrivals is None else arrivals
    if count < 4:
        raise UserError(f"--arrivals {count}: a run needs at least 4")
    for path in [_table(traces, TIMES), *(_table(traces, name) for name in names)]:
        if not path.is_file():
            raise UserError(f"{path} is missing; --data names the folder with the benchmark's tables")
    return [
        Run(str(traces), setup, name, load, policy, seed, count)
        for name in names
        for load in loads
        for policy in policies
        for seed in seeds
    ]


def run_setup(todo: Sequence[Run], workers: int | None = None) -> Finished[Run, Living]:
    """Do all runs, by default on all cores."""
    return run_all(living, todo, workers=workers, title="churn")


def living(run: Run) -> Living:
    """One run."""
    nodes, load = _nodes(run.traces, run.setup), workload(run)
    return simulate(nodes, load, made(run.policy, Counter(job.ask.shape for job in load.jobs)), run.seed)


def simulate(nodes: Sequence[NodeSpec], load: Workload, policy: Policy, seed: int) -> Living:
    """One run of a workload under a policy, up to its last arrival."""
    settings = SimSettings(until_us=load.jobs[-1].arrive_us)
    ran = Simulation(nodes, load.jobs, policy, seed=seed, settings=settings, tell_part=part_done).run()
    return measured(ran, nodes)


def workload(run: Run) -> Workload:
    """The jobs of a run: the same for every policy."""
    folder = Path(run.traces)
    pods = read_pods(_table(folder, run.trace))
    services = None if any(service_s(pod) for pod in pods) else timed(read_pods(_table(folder, TIMES)))
    gpus = sum(len(node.gpus) for node in _nodes(run.traces, run.setup))
    return drawn(timed(pods), run.trace, gpus, run.seed, Draws(run.load, run.arrivals), services=services)


def part_of(nodes: Sequence[TraceNode], share: int) -> list[TraceNode]:
    """Every so-many-th node, those of one kind side by side, so that the mix stays."""
    kinds = sorted(nodes, key=lambda node: (node.model, node.gpus, node.cpu_milli, node.name))
    kept = {node.name for node in kinds[share // 2 :: share]}
    return [node for node in nodes if node.name in kept]


def measured(outcome: Outcome, nodes: Sequence[NodeSpec]) -> Living:
    """Means over time and waits over pods, after the warm-up."""
    came = [number for number, job in enumerate(outcome.jobs) if job.arrive_us > 0]
    first = came[int(len(came) * WARM_UP)]
    seen = figures.measured(outcome, nodes, first)
    counted = [job for job, never in zip(outcome.jobs[first:], outcome.impossible[first:], strict=True) if not never]
    multi = seen.waits_s[[job_class(job.ask) == "multi" for job in counted]]
    of_run = seen.figures
    return Living(
        **{name: of_run[name] for name in FIGURES if name in of_run},
        wait_fractional_s=of_run.get("wait_mean_fractional_s", 0.0),
        wait_one_s=of_run.get("wait_mean_one_s", 0.0),
        wait_multi_s=of_run.get("wait_mean_multi_s", 0.0),
        wait_multi_p99_s=float(np.percentile(multi, 99)) if len(multi) else 0.0,
    )


def means(done: Mapping[Run, Living]) -> dict[tuple[str, str, float, str], dict[str, float]]:
    """Means over seeds by (set-up, trace, load, policy), in the order of the runs; `seeds` is how many there were."""
    groups: dict[tuple[str, str, float, str], list[Living]] = {}
    for run, found in done.items():
        groups.setdefault((run.setup, run.trace, run.load, run.policy), []).append(found)
    return {
        key: {
            "seeds": float(len(some)),
            **{name: round(float(np.mean([getattr(one, name) for one in some])), 2) for name in FIGURES},
        }
        for key, some in groups.items()
    }


def facts_of(done: Finished[Run, Living], asked: int) -> dict[str, Any]:
    """Means over seeds, a row for each set-up, trace, load and policy; `complete` unless the runs were interrupted."""
    rows = [
        {"setup": setup, "workload": trace, "load": load, "policy": policy, **mean}
        for (setup, trace, load, policy), mean in means(done.results).items()
    ]
    return {"experiment": "churn", "complete": done.complete, "runs": len(done.results), "asked": asked, "rows": rows}


def write(out: Path, done: Finished[Run, Living], facts: Mapping[str, Any]) -> None:
    """Write churn.csv (every run) and summary.json (means over seeds) to a folder."""
    header = ["setup", "workload", "load", "policy", "seed", "arrivals", *FIGURES]
    rows = [
        [run.setup, run.trace, run.load, run.policy, run.seed, run.arrivals]
        + [round(getattr(found, name), 4) for name in FIGURES]
        for run, found in done.results.items()
    ]
    write_whole(out / "churn.csv", csv_text(header, rows))
    write_whole(out / "summary.json", json.dumps(facts, indent=2) + "\n")


def text(facts: Mapping[str, Any]) -> str:
    """The table of the page: allocation, waiting demand, waits."""
    lines = [
        "set-up  trace       load  policy   alloc %  waits %  wait s     p99    frac   1 GPU    multi multi p99  frag %"
    ]
    for row in facts["rows"]:
        lines.append(
            f"{row['setup']:<7} {row['workload']:<11} {row['load'] * 100:4.0f}  {row['policy']:<8} "
            f"{row['allocation_percent']:7.2f} {row['waiting_percent']:8.1f} {row['wait_mean_s']:7,.0f} "
            f"{row['wait_p99_s']:7,.0f} {row['wait_fractional_s']:7,.0f} {row['wait_one_s']:7,.0f} "
            f"{row['wait_multi_s']:8,.0f} {row['wait_multi_p99_s']:9,.0f} {row['fragmentation_percent']:7.1f}"
        )
    return "\n".join(lines)


def _table(folder: Path, name: str) -> Path:
    plain = folder / f"openb_pod_list_{name}.csv"
    packed = folder / f"openb_pod_list_{name}.csv.gz"
    return packed if packed.is_file() else plain


@lru_cache(maxsize=2)
def _nodes(folder: str, setup: str) -> tuple[NodeSpec, ...]:
    return tuple(node_specs(part_of(read_nodes(Path(folder) / NODES), SHARE[setup])))
