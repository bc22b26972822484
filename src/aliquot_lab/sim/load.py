"""The offered load: the GPU time that jobs ask for over the GPU time there is while they arrive.

Above 100 % no policy can keep up: the queue grows as long as jobs arrive, and which jobs wait is all that a policy
decides. A burst is the exception, in which all jobs together never want more GPUs at a time than there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Shape
from aliquot.placement.cluster import Cluster, NodeSpec
from aliquot.placement.fits import fitting_nodes
from aliquot_lab.sim.kernel import US_PER_S, Job, Workload
from aliquot_lab.sim.wording import duration, load_percent


@dataclass(frozen=True)
class Offered:
    """What a trace asks of a cluster; `percent` is None where all jobs arrive at once."""

    gpu_hours: float
    gpus: int
    span_s: float
    percent: float | None
    jobs: int
    impossible: int
    impossible_gpu_hours: float
    """What the jobs ask that fit on no node; it is not in `gpu_hours`."""
    peak_gpus: float
    """The most that is wanted at a time if no job waits."""
    why: Mapping[str, int]
    """How many jobs fit on no node, by what they ask for."""

    @property
    def too_much(self) -> bool:
        """Whether the cluster cannot hold the arrivals."""
        return self.percent is not None and self.percent > 100 and self.peak_gpus > self.gpus

    def facts(self) -> dict[str, Any]:
        """The same for `summary.json`."""
        return {
            "percent": None if self.percent is None else round(self.percent, 2),
            "gpu_hours": round(self.gpu_hours, 4),
            "gpus": self.gpus,
            "span_s": round(self.span_s, 4),
            "jobs": self.jobs,
            "impossible": self.impossible,
            "impossible_gpu_hours": round(self.impossible_gpu_hours, 4),
            "impossible_because": dict(self.why),
            "peak_gpus": round(self.peak_gpus, 3),
            "holds": not self.too_much,
        }


def ever_fits(nodes: Sequence[NodeSpec]) -> Callable[[Shape], bool]:
    """Whether the empty cluster could hold a shape; what it could not hold would wait forever."""
    empty = Cluster(nodes)
    everywhere = np.arange(len(empty.rank))

    @cache
    def fits(shape: Shape) -> bool:
        return bool(fitting_nodes(empty, shape, everywhere).any())

    return fits


def offered(load: Workload, nodes: Sequence[NodeSpec], drawn: float | None = None) -> Offered:
    """The load of jobs on a cluster; jobs that fit on no empty node never run and are left out.

    `drawn` is the load that jobs were drawn for: those that stand there at the start are not arrivals.
    """
    fits = ever_fits(nodes)
    possible = [job for job in load.jobs if fits(job.ask.shape)]
    impossible = [job for job in load.jobs if not fits(job.ask.shape)]
    why = Counter(_why(job.ask.shape, nodes) for job in impossible)
    gpus = sum(len(node.gpus) for node in nodes)
    asked_s = _gpu_seconds(possible)
    span_s = (load.jobs[-1].arrive_us - load.jobs[0].arrive_us) / US_PER_S if load.jobs else 0.0
    percent = 100 * asked_s / (gpus * span_s) if gpus and span_s > 0 else None
    return Offered(
        asked_s / 3600, gpus, span_s, percent if drawn is None else 100 * drawn, len(load.jobs),
        len(impossible), _gpu_seconds(impossible) / 3600, _peak(possible), why,
    )  # fmt: skip


def _gpu_seconds(jobs: Sequence[Job]) -> float:
    return sum(job.ask.milli * job.service_us for job in jobs) / MILLI / US_PER_S


def _why(shape: Shape, nodes: Sequence[NodeSpec]) -> str:
    """What of a request the largest node does not have."""
    gpus, cpu = max(len(node.gpus) for node in nodes), max(node.cpu_milli for node in nodes)
    memory = max(node.memory_mib for node in nodes)
    models = {device.model for node in nodes for device in node.gpus}
    if shape.models and models.isdisjoint(shape.models):
        return f"the model {'|'.join(shape.models)}, which no node has"
    if shape.whole + (shape.rest_milli > 0) > gpus:
        return f"more than the {gpus} GPU{'' if gpus == 1 else 's'} of the largest node"
    if shape.cpu_milli > cpu:
        return f"more than the {cpu / 1000:g} CPU{'' if cpu == 1000 else 's'} of the largest node"
    if shape.memory_mib > memory:
        return f"more than the {memory / 1024:,.0f} GiB of the largest node"
    return "what no node has together"


def because(why: Mapping[str, int]) -> str:
    """Why jobs fit on no node, the most frequent reasons first."""
    ordered = sorted(why.items(), key=lambda entry: -entry[1])
    return ", ".join(f"{count:,} ask{'s' if count == 1 else ''} for {what}" for what, count in ordered[:3])


def _peak(jobs: Sequence[Job]) -> float:
    """The most GPUs at a time if every job starts as it arrives; one that ends makes room for one that arrives then."""
    at_us = np.array([at for job in jobs for at in (job.arrive_us, job.arrive_us + job.service_us)], np.int64)
    milli = np.array([change for job in jobs for change in (job.ask.milli, -job.ask.milli)], np.int64)
    order = np.lexsort((milli, at_us))
    return float(np.cumsum(milli[order]).max(initial=0)) / MILLI


def sentences(offered: Mapping[str, Any]) -> list[str]:
    """What `facts` say: the offered load, and where some jobs fit on no node, what becomes of them."""
    return [line for line in (sentence(offered), left_out(offered)) if line]


def left_out(offered: Mapping[str, Any]) -> str:
    """What becomes of jobs that no node can hold, and why, from `facts`; empty where there are none."""
    count = offered["impossible"]
    if not count:
        return ""
    fit, they_are = ("fits", "it is") if count == 1 else ("fit", "they are")
    reasons = because(offered["impossible_because"])
    return (
        f"{count:,} of {offered['jobs']:,} jobs {fit} on no node even when it is empty; {they_are} left out: {reasons}"
    )


def sentence(offered: Mapping[str, Any]) -> str:
    """The offered load in words, from `facts`, with what follows from it."""
    percent = offered["percent"]
    asked = f"{offered['gpu_hours']:,.1f} GPU-hours asked of {offered['gpus']:,} GPUs"
    if percent is None:
        return f"{asked} at once: there is no offered load where all jobs arrive together"
    verdict = "; waits grow as long as jobs arrive"
    if offered["holds"]:
        verdict = ", but never more GPUs at a time than there are" if percent > 100 else ""
    return f"offered load {load_percent(percent)} %: {asked} in {duration(offered['span_s'])} of arrivals{verdict}"
