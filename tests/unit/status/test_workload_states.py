"""The one word for the state of a workload that has a place, which all pages and commands show."""

import pytest

from aliquot.status.workloads import ContainerState, Standing, placed, pod_state

RUNS = ContainerState("running")
ENDED = ContainerState("terminated")
FAILED = ContainerState("terminated", exit_code=3)
STARTS = ContainerState("waiting", "ContainerCreating")
PULLS = ContainerState("waiting", "ImagePullBackOff")
CRASHES = ContainerState("waiting", "CrashLoopBackOff")


@pytest.mark.parametrize(
    ("state", "phase", "containers", "init"),
    [
        ("Running", "Running", [RUNS], []),
        ("Running", "Running", [ENDED, RUNS], [ENDED]),
        ("Scheduled", "Pending", [], []),
        ("ContainerCreating", "Pending", [STARTS], []),
        ("ContainerCreating", "Running", [ContainerState("waiting")], []),
        ("Completed", "Succeeded", [ENDED], []),
        ("Completed", "Succeeded", [], []),
        ("Error", "Failed", [FAILED], []),
        ("Error", "Running", [ENDED, FAILED, RUNS], []),
        ("CrashLoopBackOff", "Running", [CRASHES], []),
        ("CrashLoopBackOff", "Running", [RUNS, CRASHES], []),
        ("ImagePullBackOff", "Pending", [STARTS, PULLS], []),
        ("Init:0/2", "Pending", [STARTS], [RUNS, ContainerState("waiting", "PodInitializing")]),
        ("Init:1/2", "Pending", [STARTS], [ENDED, ContainerState("waiting", "PodInitializing")]),
        ("Init:CrashLoopBackOff", "Pending", [STARTS], [CRASHES]),
        ("Init:Error", "Failed", [STARTS], [FAILED]),
    ],
)
def test_the_state_is_the_word_that_kubectl_prints(
    state: str, phase: str, containers: list[ContainerState], init: list[ContainerState]
):
    """A pod in whose containers no program runs is never called Running."""
    assert state == pod_state(phase, containers, init=init)


def test_a_pod_that_leaves_is_terminating_and_an_evicted_one_says_so():
    """Deletion and the status's own reason come before and after what containers say."""
    assert "Terminating" == pod_state("Running", [CRASHES], leaving=True)
    assert "Evicted" == pod_state("Failed", [], reason="Evicted")


@pytest.mark.parametrize(
    ("failing", "states"),
    [
        (True, ["CrashLoopBackOff", "ImagePullBackOff", "Error", "OOMKilled", "Init:Error", "Unknown"]),
        (False, ["Running", "Pending", "Scheduled", "Completed", "ContainerCreating", "Init:0/1"]),
    ],
)
def test_what_does_not_run_is_failing(failing: bool, states: list[str]):
    """Every word of trouble counts, also those that are not known here; starting, running and ending well are none."""
    assert [failing] * 6 == [placed("a/b", [], Standing(state=state)).failing for state in states]
