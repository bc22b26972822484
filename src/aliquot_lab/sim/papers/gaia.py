"""Gaia Scheduler's experiments: Tables I to IV, gpu-manager's golden cases, decision time, linked against unlinked.

The paper's machine has four GPUs in two pairs, gpu2 and gpu3 closer than gpu0 and gpu1. Its text gives no link names;
PIX for the one pair, PHB for the other and SYS between them is the order that all four tables need.

Source: Song et al. (Gaia Scheduler, ISPA'18), section V; tkestack/gpu-manager, the cases of its allocator tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from time import perf_counter_ns
from typing import Any, Final

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, GpuRequest, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policies.gaia import Gaia
from aliquot.placement.policy import Policy, policy
from aliquot.topology import Topology, bandwidth_gbps

REPETITIONS: Final = 500
GPU_MIB: Final = 7611
# Gradient size in MB and compute time of a step in ms: assumed, of the order that a P4 shows.
NETWORKS: Final = (("LeNet (MNIST)", 1.7, 1.0), ("ResNet-50", 102.0, 250.0), ("VGG-16", 553.0, 420.0))
_X: Final = "X"
PAPER_MACHINE: Final = Topology.of(
    ((_X, "PHB", "SYS", "SYS"), ("PHB", _X, "SYS", "SYS"), ("SYS", "SYS", _X, "PIX"), ("SYS", "SYS", "PIX", _X))
)
GOLDEN_MACHINE: Final = Topology.of(
    tuple(
        tuple(_X if a == b else "PIX" if a // 2 == b // 2 else "PHB" if max(a, b) < 4 else "SYS" for b in range(6))
        for a in range(6)
    )
)


@dataclass(frozen=True)
class Experiment:
    """A row of the paper's tables, or a case of gpu-manager's tests, of which each has one answer.

    `taken` is what is given already, as (GPU, milli-GPU), and `theirs` what was chosen how often.
    """

    name: str
    taken: tuple[tuple[int, int], ...]
    ask_milli: int
    theirs: dict[str, int]


EXPERIMENTS: Final = (
    Experiment("Table I, 1 GPU, nothing taken", (), 1000, {"gpu2": 227, "gpu3": 273}),
    Experiment("Table I, 2 GPUs, nothing taken", (), 2000, {"gpu2&gpu3": 500}),
    Experiment("Table II, 0.4 with half of gpu2 taken", ((2, 500),), 400, {"gpu2": 500}),
    Experiment("Table II, then 0.1", ((2, 500), (2, 400)), 100, {"gpu2": 500}),
    Experiment("Table III, 1 GPU with gpu2 taken", ((2, 1000),), 1000, {"gpu3": 500}),
    Experiment("Table IV, 2 GPUs with gpu2 taken", ((2, 1000),), 2000, {"gpu0&gpu1": 500}),
)


GOLDEN: Final = (
    Experiment("link, 3 GPUs of an empty machine", (), 3000, {"gpu0&gpu1&gpu2": 1}),
    Experiment("link, 2 GPUs with gpu2 taken", ((2, 1000),), 2000, {"gpu0&gpu1": 1}),
    Experiment("2 GPUs leave the larger group whole", (), 2000, {"gpu4&gpu5": 1}),
    Experiment("1 GPU with gpu4 taken", ((4, 1000),), 1000, {"gpu5": 1}),
    Experiment("half a GPU of an empty machine", (), 500, {"gpu0": 1}),
    Experiment("0.6 with half of gpu0 taken", ((0, 500),), 600, {"gpu1": 1}),
)


def machine(topology: Topology | None, count: int, taken: Sequence[tuple[int, int]]) -> Cluster:
    """One node of so many GPUs with some milli-GPU of some of them taken."""
    devices = tuple(Device(index, GpuUuid(f"gpu{index}"), "Tesla P4", GPU_MIB) for index in range(count))
    cluster = Cluster([NodeSpec("node", devices, 28_000, 256_000, topology)])
    for number, (gpu, milli) in enumerate(taken):
        ask = Ask(GpuRequest(milli))
        piece = Slice(GpuUuid(f"gpu{gpu}"), milli, milli, GPU_MIB * milli // 1000)
        cluster.reserve(f"taken-{number}", Placement("node", (piece,)), ask)
    return cluster


def chosen(cluster: Cluster, how: Policy, milli: int, seed: int) -> list[str]:
    """The GPUs that a policy gives to a request, sorted; empty when there is no room."""
    found = Decider(cluster, how, seed=seed).decide(Ask(GpuRequest(milli)))
    return sorted(piece.gpu for piece in found.slices) if isinstance(found, Placement) else []


def tables(repetitions: int = REPETITIONS) -> list[dict[str, Any]]:
    """Tables I to IV: how often each set was chosen; ties are drawn, the seed is the repetition."""
    rows = []
    for each in EXPERIMENTS:
        cluster = machine(PAPER_MACHINE, 4, each.taken)
        seen = Counter(
            "&".join(chosen(cluster, Gaia(random_ties=True), each.ask_milli, seed)) for seed in range(repetitions)
        )
        theirs = each.theirs
        same = set(seen) == set(theirs)
        rows.append(
            {"experiment": each.name, "theirs": theirs, "ours": dict(sorted(seen.items())), "same_choice": same}
        )
    return rows


def golden_cases() -> list[dict[str, Any]]:
    """gpu-manager's cases on its six-GPU machine, lowest id on ties."""
    rows = []
    for each in GOLDEN:
        ours = "&".join(chosen(machine(GOLDEN_MACHINE, 6, each.taken), Gaia(), each.ask_milli, 0))
        (theirs,) = each.theirs
        rows.append({"case": each.name, "theirs": theirs, "ours": ours, "same": ours == theirs})
    return rows


def decision_times(repetitions: int = REPETITIONS) -> list[dict[str, Any]]:
    """Fig. 10: microseconds of a decision by Gaia and by `spread`, which sees no links, both without Kubernetes."""
    rows = []
    for each in EXPERIMENTS:
        took = {}
        for name, topology in (("gaia", PAPER_MACHINE), ("spread", None)):
            cluster = machine(topology, 4, each.taken)
            decider = Decider(cluster, policy(name))
            ask = Ask(GpuRequest(each.ask_milli))
            samples = []
            for _ in range(repetitions):
                cluster.set_cordoned("node", False)  # a change, so that nothing is remembered
                before = perf_counter_ns()
                decider.decide(ask)
                samples.append(perf_counter_ns() - before)
            took[name] = round(fmean(sorted(samples)[: repetitions * 9 // 10]) / 1000, 1)
        rows.append({"experiment": each.name, "gaia_us": took["gaia"], "spread_us": took["spread"]})
    return rows


def linked_against_unlinked() -> list[dict[str, Any]]:
    """Fig. 12 in model: a data-parallel step on the pair that Gaia gives and on the pairs that others may give.

    A step computes, then exchanges its gradients once (2(n-1)/n of their size per GPU at the pair's bandwidth). The
    networks differ in gradient size and compute time; the bandwidth is a table's (see `bandwidth_gbps`), not measured.
    """
    cluster = machine(PAPER_MACHINE, 4, ())
    names = chosen(cluster, Gaia(), 2000, 0)
    ours = tuple(int(name.removeprefix("gpu")) for name in names)
    linked = bandwidth_gbps(PAPER_MACHINE.links[ours[0]][ours[1]])
    others = [pair for pair in combinations(range(4), 2) if PAPER_MACHINE.links[pair[0]][pair[1]] == "SYS"]
    unlinked = fmean(bandwidth_gbps(PAPER_MACHINE.links[a][b]) for a, b in others)
    rows = []
    for network, gradient_mb, compute_ms in NETWORKS:
        step = [compute_ms + gradient_mb / (gbps * 1000) * 1000 for gbps in (linked, unlinked)]
        rows.append(
            {"network": network, "linked_gbps": linked, "unlinked_gbps": unlinked, "linked_ms": round(step[0], 2),
             "unlinked_ms": round(step[1], 2), "speedup": round(step[1] / step[0], 3)}
        )  # fmt: skip
    return rows


def reproduce(repetitions: int = REPETITIONS) -> dict[str, Any]:
    """Everything, with a verdict: every table has the paper's choices, every golden case its GPUs."""
    seen, cases = tables(repetitions), golden_cases()
    return {
        "paper": "Gaia Scheduler (ISPA 2018)",
        "repetitions": repetitions,
        "tables": seen,
        "golden": cases,
        "fig10": decision_times(repetitions),
        "fig12": linked_against_unlinked(),
        "agrees": all(row["same_choice"] for row in seen) and all(row["same"] for row in cases),
    }


def text(facts: dict[str, Any]) -> str:
    """The facts as lines, ours beside theirs."""
    lines = [f"{facts['paper']}, {facts['repetitions']} repetitions", f"  {'EXPERIMENT':42}{'THEIRS':28}OURS"]
    for row in facts["tables"]:
        lines.append(f"  {row['experiment']:42}{_counts(row['theirs']):28}{_counts(row['ours'])}")
    lines.append(f"  {'GOLDEN CASE':42}{'THEIRS':28}OURS")
    for row in facts["golden"]:
        lines.append(f"  {row['case']:42}{row['theirs']:28}{row['ours']}")
    lines.append(f"  {'FIG. 10, µs A DECISION HERE':42}{'SPREAD, WITHOUT LINKS':28}GAIA")
    lines += [f"  {row['experiment']:42}{row['spread_us']:<28}{row['gaia_us']}" for row in facts["fig10"]]
    lines.append(f"  {'FIG. 12 IN MODEL, ms A STEP':42}{'UNLINKED':28}LINKED")
    lines += [
        f"  {row['network']:42}{row['unlinked_ms']:<28}{row['linked_ms']} ({row['speedup']:.2f} times as fast)"
        for row in facts["fig12"]
    ]
    lines.append("Every choice agrees." if facts["agrees"] else "Choices DIFFER from the published ones.")
    return "\n".join(lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
