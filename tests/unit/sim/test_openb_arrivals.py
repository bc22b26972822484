"""The order of arrivals and of nodes: Go's random stream, shuffle, tuning."""

import csv
import hashlib
from itertools import groupby
from pathlib import Path

import pytest

from aliquot_lab.sim.openb.replay import GoRand, arrivals
from aliquot_lab.sim.openb.trace import PodRow, read_pods

OPENB = Path(__file__).resolve().parents[2] / "data" / "openb"
NODES, GPUS = 1213, 6212


def table(name: str) -> list[dict[str, str]]:
    with (OPENB / "replay" / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("seed", range(42, 52))
def test_the_stream_is_gos(seed: int):
    """A seed's outputs are those of Go's generator."""
    theirs = {int(row["i"]): int(row["uint64"]) for row in table("go_rand_check.csv") if row["seed"] == str(seed)}
    stream = GoRand(seed)

    ours = [stream.uint64() for _ in range(607)]

    assert theirs == {at: ours[at] for at in theirs}


def test_seeds_without_published_outputs_have_a_stream_too():
    """Go's documented first numbers of seed 1 come out: rand.Intn(100) gives 81, 87, 47, 59, 81, 18, 25, 40, 56, 0."""
    stream = GoRand(1)

    assert [81, 87, 47, 59, 81, 18, 25, 40, 56, 0] == [stream.intn(100) for _ in range(10)]


def digest(texts: list[str]) -> str:
    return hashlib.sha256(",".join(texts).encode()).hexdigest()[:16]


CHECKED = sorted(
    (workload, list(rows))
    for workload, rows in groupby(table("arrival_check.csv"), key=lambda row: row["workload"])
    if (OPENB / f"{workload}.csv.gz").exists()
)


@pytest.mark.parametrize(("workload", "rows"), CHECKED, ids=[workload for workload, _ in CHECKED])
def test_pods_arrive_in_the_published_order(workload: str, rows: list[dict[str, str]]):
    """For the first and the last seed of every trace, pods and node order are those of the artifact."""
    pods = read_pods(OPENB / f"{workload}.csv.gz")
    for row in (rows[0], rows[-1]):
        seen = arrivals(pods, NODES, GPUS, int(row["seed"]))

        assert (int(row["n_pods"]), int(row["total_gpu_milli"])) == (
            len(seen.pods),
            sum(pod.total_milli for pod in seen.pods),
        )
        assert row["sha256_16_pod_names"] == digest([pod.name for pod in seen.pods])
        assert row["sha256_16_node_rank"] == digest([str(rank) for rank in seen.ranks])


def pod(name: str, num_gpu: int = 1, gpu_milli: int = 1000) -> PodRow:
    return PodRow(name, 1000, 1024, num_gpu, gpu_milli, ())


def test_a_trace_that_asks_too_much_loses_pods():
    """Pods are removed until the rest asks for no more than the tuned amount."""
    seen = arrivals([pod(f"p{number}") for number in range(40)], nodes=2, gpus=10, seed=42)

    assert 13 == len(seen.pods)


def test_a_trace_that_asks_too_little_is_repeated():
    """The trace comes first, each pod once; what is appended was drawn from it."""
    pods = [pod(f"p{number}") for number in range(5)]

    seen = arrivals(pods, nodes=2, gpus=10, seed=42)

    assert 13 == len(seen.pods)
    assert {p.name for p in pods} == {p.name for p in seen.pods[:5]}
