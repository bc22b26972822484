"""What choosing by links is worth under churn, and that the peer it is measured against is the published one."""

from statistics import fmean

import pytest
from matrices import machine

from aliquot_lab.bench.churn import POLICIES, best_effort, compare, pair_score, serve, workload

DGX = machine("dgx1v_8xv100_sxm2")
NOT_UNIFORM = [
    "aws_p3.8xlarge_4xv100",
    "dgx1v_8xv100_sxm2",
    "host_4xa30_nvbridge",
    "host_8gpu_pix_pxb_sys",
    "host_8xp100_pcie",
    "tencent_test_6gpu",
    "vm_8xv100_sxm2_phb",
]


@pytest.mark.parametrize(
    ("free", "n", "expected"),
    [
        ([0, 4, 5, 6], 2, (5, 6)),
        ([0, 1, 3], 2, (0, 3)),
        ([0, 1, 4], 2, (0, 4)),
        (range(8), 4, (0, 1, 2, 3)),
        (range(4, 8), 4, (4, 5, 6, 7)),
        (range(8), 8, tuple(range(8))),
        ([3, 5], 1, (3,)),
    ],
)
def test_the_peer_chooses_as_published(free, n, expected):
    """The best-effort policy gives what go-gpuallocator's own tests expect of it on a DGX-1 with V100.

    Left out is the one case that a PCIe switch below NVLink decides, for a matrix does not show it.
    """
    assert expected == best_effort(DGX, list(free), n)


def test_the_peer_divides_a_machine_as_published():
    """Pair after pair, a DGX-1 with V100 gives 0-3, 1-2, 4-7 and 5-6."""
    free, taken = set(range(8)), []
    while free:
        taken.append(best_effort(DGX, free, 2))
        free -= set(taken[-1])

    assert [(0, 3), (1, 2), (4, 7), (5, 6)] == taken


def test_the_peers_points_are_the_published_ones():
    """100 for each NVLink, and for PCIe 50, 40, 30, 20 or 10 from one switch to the other CPU."""
    tencent = machine("tencent_test_6gpu")

    assert [50, 30, 10] == [pair_score(tencent, 0, other) for other in (1, 2, 4)]
    assert [220, 210, 10] == [pair_score(DGX, 0, other) for other in (3, 4, 5)]


def test_every_policy_serves_the_same_jobs():
    """Which GPUs a job gets changes neither when it starts nor how many it gets, and no GPU is given twice."""
    jobs = workload(8, 300, seed=1)
    served = {name: list(serve(DGX, jobs, choose)) for name, choose in POLICIES.items()}

    assert all([job for job, _ in run] == jobs for run in served.values())
    assert all(len(set(gpus)) == job.gpus for run in served.values() for job, gpus in run)


@pytest.fixture(scope="module")
def kept():
    """Part of the best bandwidth that each policy keeps, by machine and size, on one seeded workload."""
    rows = compare({name: machine(name) for name in NOT_UNIFORM}, jobs=1500, seeds=[1, 2])
    return {(row["machine"], row["size"], row["policy"]): row["kept"] for row in rows}


@pytest.mark.parametrize("name", NOT_UNIFORM)
def test_more_bandwidth_is_kept_than_by_first_index_and_no_less_than_by_the_stock_plugin(kept, name):
    """On machines with unequal links, jobs keep more than by first-index and (to half a percent) what NVIDIA keeps."""
    for size in (size for of, size, policy in kept if (of, policy) == (name, "aliquot")):
        ours, first, stock = (kept[name, size, policy] for policy in ("aliquot", "first-index", "best-effort"))

        assert ours > first
        assert ours >= 0.995 * stock


def test_more_bandwidth_is_kept_than_by_the_stock_plugin_in_the_mean(kept):
    """Over all machines with unequal links and both sizes, the mean is above NVIDIA's."""
    means = {policy: fmean(part for (_, _, of), part in kept.items() if of == policy) for policy in POLICIES}

    assert means["first-index"] < means["best-effort"] < means["aliquot"]


def test_one_seed_gives_one_result():
    """The comparison is deterministic."""
    machines = {"dgx": DGX}

    assert compare(machines, jobs=100, seeds=[3]) == compare(machines, jobs=100, seeds=[3])
