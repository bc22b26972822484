"""The measurements themselves, short, on the emulated driver: they run and say what they promise to say."""

import json

import pytest
from click.testing import CliRunner

from aliquot_lab.bench.driver_calls import memory
from aliquot_lab.cli.bench import bench
from aliquot_lab.cli.demo import demo

pytest.importorskip("cuda.bindings")


def figures(*argv: str, command=bench, emulate: str = "v100") -> dict:
    """The JSON of one measurement."""
    done = CliRunner().invoke(command, [*argv, "--emulate", emulate, "-o", "json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.real_time
def test_the_gate_is_free_of_system_calls():
    """Launches through the hook make hardly more system calls than direct ones and cost little, whatever the stream."""
    seen = figures("gate")

    assert {"gate_ns_p99", "emulated", "gpu"} <= set(seen)
    assert seen["syscalls_per_launch"] < 0.5
    assert seen["gate_ns_p50"] < 200
    assert seen["gate_ns_p50_streams"] < 200
    assert seen["gate_ns_p50_switch"] < 200


def test_handovers_are_seen():
    """Hand-overs between two tenants that take turns are counted and timed."""
    seen = figures("handover", "--tenants", "2", "--quota-ms", "30", "--seconds", "3")

    (case,) = seen["cases"]
    assert case["handovers"] > 10
    assert (
        0 <= case["handover_us_p50"] <= case["handover_us_p99"]
    )  # 0: the next began before the last one's end was seen


def test_an_allocation_is_timed():
    """Median and 99th percentile, in order, and what allocations that are held add to a completion call."""
    seen = memory("v100", allocations=1000, held=10_000, rounds=100)

    assert 0 < seen["alloc_us_p50"] <= seen["alloc_us_p99"]
    assert "completion_ns_added_held" in seen


def test_a_storm_of_registrations_is_served():
    """All processes are served."""
    seen = figures("storm", "--processes", "1000")

    assert seen["processes"] == 1000
    assert seen["seconds"] > 0


def test_an_unknown_mix_is_named():
    """A wrong mix gives one sentence with the right ones, and status 2."""
    done = CliRunner().invoke(bench, ["shares", "--mix", "sleepy"])

    assert done.exit_code == 2
    assert "steady" in done.output


def test_the_cost_of_short_kernels_is_measured():
    """A length of kernel has its own slowdown and completed time per charged time; what is not named is left out."""
    seen = figures("slowdown", "--kernel-us", "50", "--seconds", "0.5")

    (case,) = seen["by_kernel_us"]
    assert [50, []] == [case["kernel_us"], seen["quota"]]
    assert case["done_per_charged"] > 0
    assert "slowdown_percent" in case


def test_a_request_is_timed_beside_each_neighbour():
    """Alone, beside training under Aliquot and with time slices, each rate has its percentiles, and none is below the
    work itself.
    """
    seen = figures("inference", "--rate", "40", "--seconds", "1.5")

    assert ["nobody", "training", "training, time slices"] == [case["neighbour"] for case in seen["cases"]]
    for case in seen["cases"]:
        assert 5 <= case["p50_ms"] <= case["p99_ms"]
        assert case["requests"] > 0


def test_use_grows_with_requests():
    """More requests are more kernel time, and the fitted line rises."""
    seen = figures("fig5", "--rate", "20", "--rate", "60", "--seconds", "2")

    few, many = seen["cases"]
    assert many["kernel_time"] > few["kernel_time"] > 0
    assert seen["ms_per_request"] > 0


@pytest.mark.timeout(120)
def test_jobs_are_measured_beside_each_other():
    """A job alone and a pair of it run as real programs, and the figures say that the GPU is emulated."""
    seen = figures("fig12", "--job", "light=4/16", "--seconds", "1")

    (job,), (pair,) = seen["jobs"], seen["pairs"]
    assert ("light", 4, 16, True) == (job["job"], job["work_ms"], job["rest_ms"], job["kernel_time_alone"] > 0)
    assert ("light+light", 2, True) == (pair["pair"], len(pair["times_as_long"]), min(pair["times_as_long"]) > 0)
    assert seen["emulated"]


@pytest.mark.parametrize("job", ["A", "A=0/5", "A=6", "A=6/x", "A=6/14 ", "A B=1/1"])
def test_a_job_that_is_none_is_refused(job: str):
    """The option, the value and the form are named."""
    done = CliRunner().invoke(bench, ["fig12", "--job", job])

    assert 2 == done.exit_code
    assert f"--job: {job!r} is not one of up to 6 jobs" in done.output


@pytest.mark.real_time
@pytest.mark.timeout(240)
def test_the_promise_of_figure_six(tmp_path):
    """Fig. 6 of KubeShare with real CUDA clients: every share within 0.02, facts as JSON, two pictures.

    It holds in what is charged and in each one's part of what is completed; a machine that lets an emulated GPU wait
    for its processors completes less of everything.
    """
    seen = figures("fig6", "--fast", "--out", str(tmp_path), command=demo)

    assert seen["max_error"] <= 0.02
    assert [4, True] == [len(seen["phases"]), seen["emulated"]]
    assert {"fig6.svg", "fig6.png"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.real_time
@pytest.mark.timeout(240)
def test_a_share_that_changes_while_its_program_runs(tmp_path):
    """0.3, 0.6 and 0.3 again beside a neighbour that keeps its 0.3: each within 0.02, two pictures."""
    seen = figures("resize", "--out", str(tmp_path), command=demo)

    assert seen["max_error"] <= 0.02
    assert [{"a": 0.3, "b": 0.3}, {"a": 0.6, "b": 0.3}, {"a": 0.3, "b": 0.3}] == [p["expected"] for p in seen["phases"]]
    assert {"resize.svg", "resize.png"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_eight_notebooks_that_do_not_fit_together():
    """Each computes whenever it is used, with its memory as it was, and no more are awake than fit, on 16 GiB one."""
    seen = figures("notebooks", command=demo)

    assert [True, 1] == [seen["kept"], seen["max_awake"]]
    assert [2] * 8 == [len(times) for times in seen["results_s"].values()]


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.timeout(240)
def test_two_that_fill_a_gpu_do_more_by_turns_than_one_after_the_other():
    """Loops of 60 GiB that need the GPU for two fifths of their time, on 80 GiB: 1.4 times the work at least."""
    seen = figures("phases", command=demo, emulate="h100")

    assert [True, True] == [seen["kept"], seen["gain"] >= 1.4]
    assert seen["acquire_here_ms"] < 1000 * seen["acquire_moved_s"]


@pytest.mark.timeout(120)
def test_real_programs_are_held_against_the_fluid():
    """Each tenant of a mix has what it got and what the fluid would have given, beside what the arbiter charged."""
    seen = figures("turns", "--mix", "irregular", "--seconds", "17")

    (case,) = seen["cases"]
    assert ["a", "b", "c"] == [tenant["name"] for tenant in case["tenants"]]
    assert 0 <= case["error_p95"] <= case["error_worst"]
    assert case["used_of_fluid"] > 0
    assert "promise_a" in case["arbiter"]
    assert [None, True, "fluid"] == [seen["wake"], seen["emulated"], seen["turns"]]
