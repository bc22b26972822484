"""The published benchmark through the production core: every column of a sample of runs, with no tolerance."""

from pathlib import Path

import pytest

from aliquot_lab.sim.openb.results import BatchTask, Published, compare, run

OPENB = Path(__file__).resolve().parents[2] / "data" / "openb"
DETERMINISTIC = ("dotprod", "clustering", "packing", "bestfit", "fgd")
SAMPLE = (("default", 42), ("multigpu40", 51), ("gpuspec33", 47))


@pytest.fixture(scope="module")
def published() -> Published:
    return Published(OPENB / "expected_results")


def task(trace: str, policy: str, seed: int) -> BatchTask:
    return BatchTask(
        OPENB / "openb_node_list_gpu_node.csv", OPENB / f"openb_pod_list_{trace}.csv.gz", policy, seed, 1.3
    )


@pytest.mark.parametrize(("trace", "seed"), SAMPLE)
@pytest.mark.parametrize("policy", DETERMINISTIC)
def test_every_column_is_the_published_one(published: Published, trace: str, seed: int, policy: str):
    """Allocation, fragmentation and its ratio agree in all 131 columns, traces with GPU models included."""
    done = run(task(trace, policy, seed))

    verdict = compare([done.columns], published)

    assert (1, 0, "") == (verdict.compared, verdict.differing, verdict.first)


def test_a_difference_is_told_with_its_place(published: Published):
    """The first column that differs is named with file, workload, policy and seed."""
    done = run(task("multigpu40", "bestfit", 42))
    done.columns.columns.frag[17] += 0.01

    verdict = compare([done.columns], published)

    assert not verdict.equal
    assert "analysis_frag_discrete: openb_pod_list_multigpu40, 05-BestFit, seed 42, column 17" in verdict.first
