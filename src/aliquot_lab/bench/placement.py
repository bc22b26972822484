"""How fast placement decides: one run of the openb benchmark, and single decisions on large clusters.

A decision is timed in a cluster that lives: before each one a pod chosen at random leaves, after it the new pod is
reserved and the policy may learn; neither is timed, for both happen between arrivals. All policies see the same
cluster, the same pods and the same order. The whole sequence is repeated, and of each decision the quickest repetition
counts, so that what else the machine does is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device, GpuRequest
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policy import POLICIES, Policy
from aliquot_lab.bench.figures import percentile
from aliquot_lab.sim.openb.replay import replay
from aliquot_lab.sim.openb.results import read_nodes_once, read_pods_once
from aliquot_lab.sim.papers.fgd import NODES, data_folder
from aliquot_lab.sim.policies import made

TRACE: Final = "openb_pod_list_default"
SEED: Final = 42
GPUS_PER_NODE: Final = 8
SIZES: Final = ((1000, 4000), (5000, 20000))
DECISIONS: Final = 1000
REPEATS: Final = 3
# A mix as the openb trace has it: CPU in milli, milli-GPU, weight.
MIX: Final = (
    (4000, 0, 8), (8000, 0, 4), (2000, 50, 4), (3000, 160, 5), (4000, 250, 4), (6000, 460, 5), (6000, 500, 6),
    (8000, 810, 13), (8000, 1000, 20), (12000, 1000, 15), (4000, 1000, 10), (24000, 2000, 1), (48000, 4000, 1),
    (88000, 8000, 1),
)  # fmt: skip
_BUDGET_US: Final = 1000


@dataclass(frozen=True)
class _Scene:
    """A cluster with pods on it, and the pods that arrive and leave while it is measured."""

    nodes: list[NodeSpec]
    running: list[tuple[str, Placement, Ask]]
    arriving: list[Ask]
    leaving: list[int]


def placement(
    policies: Sequence[str] = (),
    data: Path | None = None,
    *,
    decisions: int = DECISIONS,
    sizes: Sequence[tuple[int, int]] = SIZES,
) -> dict[str, Any]:
    """Seconds of one openb run and milliseconds of a decision, for each policy; `sizes` are (nodes, running pods).

    Raises:
        UserError: an unknown policy, or no trace where it is looked for.
    """
    names = list(policies) or list(POLICIES)
    for name in names:
        made(name)
    folder = data_folder(data)
    openb = [{"policy": name, "seconds": round(min(_openb_s(folder, name) for _ in range(2)), 3)} for name in names]
    cases = []
    for nodes, pods in sizes:
        scene = _scene(nodes, pods, decisions)
        for name in names:
            took = [min(times) for times in zip(*(_decisions_ms(scene, name) for _ in range(REPEATS)), strict=True)]
            cases.append(
                {"policy": name, "nodes": nodes, "gpus_per_node": GPUS_PER_NODE, "pods": pods,
                 "p50_ms": round(percentile(took, 50), 4), "p99_ms": round(percentile(took, 99), 4)}
            )  # fmt: skip
    return {"openb": openb, "decision": cases}


def _openb_s(folder: Path, name: str) -> float:
    """One run of 10.9k pods, reading of the files not counted."""
    trace = next(path for end in (".csv", ".csv.gz") if (path := folder / f"{TRACE}{end}").is_file())
    nodes, pods = read_nodes_once(folder / NODES), read_pods_once(trace)
    start = perf_counter()
    replay(nodes, pods, name, SEED)
    return perf_counter() - start


def _scene(nodes: int, pods: int, decisions: int) -> _Scene:
    rng = np.random.Generator(np.random.PCG64(SEED))
    weights = np.array([weight for _, _, weight in MIX], dtype=np.float64)
    drawn = rng.choice(len(MIX), pods * 2 + decisions, p=weights / weights.sum()).tolist()
    asks = [Ask(GpuRequest(milli), cpu) for cpu, milli, _ in MIX]
    machines = []
    for number in range(nodes):
        name = f"node-{number:05}"
        devices = tuple(Device(index, GpuUuid(f"{name}/{index}"), "V100", 16384) for index in range(GPUS_PER_NODE))
        machines.append(NodeSpec(name, devices, 96_000, 768 * 1024, rank=number))
    cluster = Cluster(machines)
    decider = Decider(cluster, made("binpack"))
    running: list[tuple[str, Placement, Ask]] = []
    for number, kind in enumerate(drawn[: 2 * pods]):
        found = decider.decide(asks[kind])
        if isinstance(found, Placement):
            cluster.reserve(f"{number}", found, asks[kind])
            running.append((f"{number}", found, asks[kind]))
        if len(running) == pods:
            break
    leaving = rng.integers(0, pods, decisions).tolist()
    return _Scene(machines, running, [asks[kind] for kind in drawn[2 * pods :]], leaving)


def _decisions_ms(scene: _Scene, name: str) -> list[float]:
    cluster = Cluster(scene.nodes)
    for tenant, where, ask in scene.running:
        cluster.reserve(tenant, where, ask)
    policy = made(name, Counter(ask.shape for _, _, ask in scene.running))
    decider = Decider(cluster, policy, seed=SEED)
    _warm_up(decider, policy, [ask for _, _, ask in scene.running[:2048]])
    tenants = [tenant for tenant, _, _ in scene.running]
    took = []
    for number, (ask, leaver) in enumerate(zip(scene.arriving, scene.leaving, strict=True)):
        decider.release(tenants[leaver])
        _learn(policy)
        start = perf_counter()
        found = decider.decide(ask)
        took.append(1000 * (perf_counter() - start))
        if isinstance(found, Placement):
            tenants[leaver] = f"new-{number}"
            cluster.reserve(tenants[leaver], found, ask)
        _learn(policy)
    return took


def _warm_up(decider: Decider, policy: Policy, asks: Sequence[Ask]) -> None:
    """Let the policy see what has arrived, and the decider every shape once."""
    for ask in asks:
        policy.arrived(ask.shape)
        _learn(policy)
    for ask in dict.fromkeys(asks):
        decider.decide(ask, again=True)


def _learn(policy: Policy) -> None:
    while policy.idle(_BUDGET_US):
        pass
