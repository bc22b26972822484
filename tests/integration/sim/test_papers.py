"""The papers' experiments come out as published, and docs/papers.md has what the commands print."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from aliquot_lab.sim.clusters import ranked, read_cluster
from aliquot_lab.sim.openb.results import FILES, Published, RunKey, sc_policy
from aliquot_lab.sim.papers import gaia, kubeshare
from aliquot_lab.sim.papers.kubeshare import Interference

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "papers.md").read_text().replace("\n", " ")
POLICIES = ("random", "dotprod", "clustering", "packing", "bestfit", "fgd")
gaia_tables, fig6, fig7, fig9 = cache(gaia.tables), cache(kubeshare.fig6), cache(kubeshare.fig7), cache(kubeshare.fig9)


def row_of(head: str, cells: Iterable[str]) -> str:
    """A row of a table of the page, or its end."""
    return f"| {' | '.join((head, *cells))} |"


def not_on_the_page(*parts: str) -> list[str]:
    """Those of some rows and sentences that docs/papers.md does not have."""
    return [part for part in parts if part not in PAGE]


def test_gaias_tables_have_the_papers_choices():
    """In each experiment exactly the GPUs of Tables I to IV are chosen; ties of Table I fall to both alike."""
    seen = gaia_tables()

    assert all(row["same_choice"] for row in seen)
    tied = seen[0]["ours"]
    assert 500 == sum(tied.values())
    assert 200 < tied["gpu2"] < 300


def test_gpu_managers_golden_cases():
    """Its allocator's test cases give the same GPUs."""
    assert [] == [row for row in gaia.golden_cases() if not row["same"]]


def test_linked_gpus_are_faster():
    """In model, the pair that Gaia gives is faster than an unlinked one for every network."""
    assert all(row["speedup"] > 1 for row in gaia.linked_against_unlinked())


def test_fig6_shares():
    """Under the production token policy every tenant has its due of Fig. 6 within two points."""
    worst = max(abs(row["ours"][name] - due) for row in fig6() for name, due in row["theirs"].items())

    assert worst <= 0.02


def test_fig7_a_short_quota_costs_little():
    """At 30 ms the GPU computes at least the published 95 % of the time, and more with longer quotas."""
    ours = [row["ours"] for row in fig7()]

    assert ours[0] >= 0.95
    assert ours == sorted(ours)


def test_the_page_has_gaias_figures():
    """Tables I to IV with the choices of both, and the steps of Fig. 12."""
    tied = gaia_tables()[0]
    counts = [", ".join(f"{gpu} {count}" for gpu, count in tied[side].items()) for side in ("theirs", "ours")]
    networks = (
        row_of(f"{row['unlinked_ms']:.{places}f} ms", [f"{row['linked_ms']:.{places}f} ms", f"{row['speedup']:.2f}"])
        for row, places in zip(gaia.linked_against_unlinked(), (2, 1, 1), strict=True)
    )

    assert [] == not_on_the_page(row_of(counts[0], counts[1:]), *networks)
    assert all(row["ours"] == row["theirs"] for row in gaia_tables()[1:])


def test_the_page_has_the_published_allocation_of_fgd():
    """The means of ten seeds at 100 % arrived, of every trace and policy, are those of the published files."""
    published = Published(REPOSITORY / "tests/data/openb/expected_results")
    traces = {path.name.split(".")[0] for path in (REPOSITORY / "tests/data/openb").glob("openb_pod_list_*.csv.gz")}

    def mean(trace: str, policy: str) -> str:
        rows = (published.row(FILES[0], RunKey(trace, sc_policy(policy), seed)) for seed in range(42, 52))
        return f"{fmean(float(row[100]) for row in rows if row is not None):.2f}"

    for trace in traces:
        random, *others = (mean(trace, name) for name in POLICIES)
        head = f"| {trace.removeprefix('openb_pod_list_')} | {random} | "
        assert re.search(re.escape(head) + r"\d\d\.\d\d " + re.escape(row_of(others[0], others[1:])), PAGE), trace


def test_the_page_has_fig_6_7_and_9():
    """Shares, throughput by quota, and makespan, use and active GPUs of one run."""
    shares = (", ".join(f"{row['ours'][name]:.3f}" for name in sorted(row["theirs"])) for row in fig6())
    whole, shared = fig9()

    assert [] == not_on_the_page(
        *(f"| {row} |" for row in shares),
        row_of("hand-over 100 µs", (f"{row['ours']:.3f}" for row in fig7())),
        row_of("hand-over 3 ms", (f"{row['with_3000_us']:.3f}" for row in fig7())),
        f"makespan {shared['makespan_s']:,.0f} s against {whole['makespan_s']:,.0f} s, {shared['used_percent']:.0f} % "
        f"against {whole['used_percent']:.0f} % of all GPU time used, {shared['active_gpus']:.1f} against "
        f"{whole['active_gpus']:.1f} active GPUs",
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_has_fig_8_and_13():
    """Jobs a minute by arrival rate, the gain by mean and deviation of the demand, and by the part of A."""
    fig8, fig13 = kubeshare.fig8(), kubeshare.fig13()
    gains = {name: [f"{row['gain']:.2f}" for row in fig8[name]] for name in ("fig8b", "fig8c")}

    assert [] == not_on_the_page(
        row_of("whole GPUs", (f"{row['whole']:.1f}" for row in fig8["fig8a"])),
        row_of("shared", (f"{row['shared']:.1f}" for row in fig8["fig8a"])),
        row_of("shared / whole", gains["fig8b"]),
        f"Ours: {', '.join(gains['fig8c'])} at ",
        row_of("shared", (f"{row['shared']:.2f}" for row in fig13)),
        row_of("shared, anti-affinity on B", (f"{row['anti']:.2f}" for row in fig13)),
    )


def test_fig8_sharing_doubles_throughput():
    """At saturation shares complete at least 2.2 times the jobs of whole GPUs, which complete 50 a minute."""
    saturated = kubeshare.KubeShareJobs(jobs=1000, per_min=150.0)
    shared, whole = (kubeshare.throughput((kubeshare.replace(saturated, whole=alone), 42)) for alone in (False, True))

    assert shared / whole >= 2.2
    assert whole == pytest.approx(50, abs=3)


def test_fig11_times_decisions():
    """Decisions are timed with so many SharePods running."""
    (row,) = kubeshare.fig11((100,))

    assert (100, True) == (row["sharepods"], row["p50_ms"] > 0)


def throughput(part_a: float, setting: str) -> float:
    nodes = ranked(read_cluster("v100x4*2"))
    return Interference(nodes, 160, part_a, 42, setting=setting).throughput_per_min()


def test_fig13_anti_affinity_pays_when_few_are_slow():
    """With B only, anti-affinity gives whole GPUs' throughput; with A only, both ways of sharing are equal."""
    whole = throughput(0.0, "whole")

    assert throughput(0.0, "shared") == pytest.approx(1.33 * whole, rel=0.02)
    assert throughput(0.0, "anti") == pytest.approx(whole, rel=0.01)
    assert throughput(1.0, "anti") == throughput(1.0, "shared") > 1.8 * whole
    assert throughput(0.6, "anti") > throughput(0.6, "shared")
