"""What the policy is for: more of the public benchmark's GPUs allocated than by any published policy."""

import csv
import gzip
from pathlib import Path

import pytest

from aliquot.placement.policies.aliquot import Aliquot
from aliquot_lab.sim.openb.replay import replay
from aliquot_lab.sim.openb.results import columns
from aliquot_lab.sim.openb.trace import read_nodes, read_pods

DATA = Path(__file__).parents[2] / "data" / "openb"
NODES = DATA / "openb_node_list_gpu_node.csv"


def published_fgd(trace: str, seed: int) -> float:
    """FGD's allocation in percent when as much GPU has arrived as there is."""
    found = next(DATA.glob("expected_results/analysis_allo_discrete*"))
    opener = gzip.open if found.suffix == ".gz" else open
    with opener(found, "rt") as file:
        for row in csv.DictReader(file):
            if (row["workload"], row["sc_policy"], row["seed"]) == (f"openb_pod_list_{trace}", "06-FGD", str(seed)):
                return float(row["100"])
    raise LookupError(trace)


@pytest.mark.parametrize(("trace", "at_least", "lead"), [("default", 96.05, 0.7), ("gpuspec33", 95.2, 7.0)])
def test_more_is_allocated_than_by_fgd(trace: str, at_least: float, lead: float):
    """At 100 % arrived the allocation is the measured one of docs/policy-aliquot.md, well above FGD's."""
    pods = read_pods(DATA / f"openb_pod_list_{trace}.csv.gz")

    found = replay(read_nodes(NODES), pods, Aliquot(), 42, 1.02)

    allocation = columns(found.events).allocation[100]
    assert allocation >= at_least
    assert allocation >= published_fgd(trace, 42) + lead
