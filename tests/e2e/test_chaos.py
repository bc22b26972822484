"""The scheduler killed at any moment: promises hold.

`ALIQUOT_KILLS` says how often it is killed; 200 take about a quarter of an hour.
"""

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from cluster.ours import OurScheduler
from scheduling import Witness, check_promises, eventually, gpu_pod, ledger_of, percent, pods_of

KILLS = int(os.environ.get("ALIQUOT_KILLS", "3"))
MAX_PODS = 60


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Twelve GPUs on two boards, and kube-scheduler told to ask ours."""
    names = [
        *control_plane.fake_nodes(1, "v100", prefix="chaos"),
        *control_plane.fake_nodes(1, "a100", gpus=4, prefix="chaos"),
    ]
    OurScheduler(control_plane).configure()
    yield names
    control_plane.schedule_with({})
    control_plane.remove_nodes(names)


def create(plane: ControlPlane, namespace: str, *pods: dict[str, Any]) -> None:
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", *pods)


def staying(plane: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    """The pods that nobody asked to go."""
    return [pod for pod in pods_of(plane, namespace) if not pod["metadata"].get("deletionTimestamp")]


def agree(plane: ControlPlane, scheduler: OurScheduler, namespace: str) -> None:
    """Annotations and ledger say the same, soon after the last change."""
    eventually(
        lambda: check_promises(plane, pods_of(plane, namespace)) == ledger_of(scheduler),
        "the ledger and the annotations differ",
        60,
    )


@pytest.mark.timeout(120 + 15 * KILLS)
def test_killed_at_any_moment_it_forgets_and_doubles_nothing(
    control_plane: ControlPlane, namespace: str, nodes: list[str]
):
    """kill -9 of our scheduler during churn, again and again: promises hold at every change that the API server tells
    of and after each start, and at last every pod that fits is bound."""
    scheduler = OurScheduler(control_plane)
    scheduler.part.start()
    chance, made = random.Random(11), 0
    try:
        with Witness(control_plane, namespace) as witness:
            for number in range(KILLS):
                batch = [gpu_pod(f"k{made + i}", percent(chance.choice([10, 25, 40]))) for i in range(10)]
                create(control_plane, namespace, *batch)
                made += len(batch)
                time.sleep(chance.uniform(0.0, 0.8))
                scheduler.part.kill()
                here = staying(control_plane, namespace)
                leaving = chance.sample(here, max(5, len(here) - MAX_PODS))
                for pod in leaving:
                    control_plane.api.delete(f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}")
                scheduler.part.start()
                check_promises(control_plane, pods_of(control_plane, namespace))
                assert [] == witness.faults, f"after kill {number + 1}"
            left = len(staying(control_plane, namespace))
            # At most 40 hundredths each: whatever the mix, twelve GPUs hold two of each at least.
            eventually(
                lambda: (
                    sum(bool(pod["spec"].get("nodeName")) for pod in staying(control_plane, namespace)) >= min(left, 24)
                ),
                "what waited does not go on",
                90,
            )
            agree(control_plane, scheduler, namespace)
            print(f"{KILLS} kills, {made} pods, {witness.changes} changes seen")
        assert [] == witness.faults
    finally:
        scheduler.part.stop()
