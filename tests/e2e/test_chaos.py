"""The scheduler killed at any moment: promises hold.

`ALIQUOT_KILLS` says how often it is killed; 200 take about a quarter of an hour.
"""

import os
import random
import time

import pytest
from cluster.control_plane import ControlPlane
from cluster.ours import OurScheduler
from scheduling import Pods, Witness, check_promises, eventually, gpu_pod, percent

KILLS = int(os.environ.get("ALIQUOT_KILLS", "3"))
MAX_PODS = 60


@pytest.fixture(scope="module", autouse=True)
def nodes(control_plane: ControlPlane) -> None:
    """Twelve GPUs on two boards, and kube-scheduler told to ask ours."""
    control_plane.fake_nodes(1, "v100", prefix="chaos")
    control_plane.fake_nodes(1, "a100", gpus=4, prefix="chaos")
    OurScheduler(control_plane).configure()


@pytest.mark.timeout(120 + 15 * KILLS)
def test_killed_at_any_moment_it_forgets_and_doubles_nothing(pods: Pods):
    """kill -9 of our scheduler during churn, again and again: promises hold at every change that the API server tells
    of and after each start, and at last every pod that fits is bound."""
    scheduler = OurScheduler(pods.plane)
    scheduler.part.start()
    chance, made = random.Random(11), 0
    try:
        with Witness(pods) as witness:
            for number in range(KILLS):
                batch = [gpu_pod(f"k{made + i}", percent(chance.choice([10, 25, 40]))) for i in range(10)]
                pods.create(*batch)
                made += len(batch)
                time.sleep(chance.uniform(0.0, 0.8))
                scheduler.part.kill()
                here = pods.staying()
                leaving = chance.sample(here, max(5, len(here) - MAX_PODS))
                for pod in leaving:
                    pods.delete(pod["metadata"]["name"])
                scheduler.part.start()
                check_promises(pods.plane, pods.all())
                assert [] == witness.faults, f"after kill {number + 1}"
            left = len(pods.staying())
            # At most 40 hundredths each: whatever the mix, twelve GPUs hold two of each at least.
            eventually(
                lambda: len([pod for pod in pods.staying() if pod["spec"].get("nodeName")]) >= min(left, 24),
                "what waited does not go on",
                90,
            )
            pods.agree(scheduler, 60)
            print(f"{KILLS} kills, {made} pods, {witness.changes} changes seen")
        assert [] == witness.faults
    finally:
        scheduler.part.stop()
