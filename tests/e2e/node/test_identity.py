"""Not one container with another GPU than planned, whatever is killed meanwhile.

`ALIQUOT_IDENTITY_ROUNDS` says how many rounds each test has; 200 of one take about an hour.
"""

import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.ours import OurScheduler
from cluster.parts import until
from node_scene import Scene
from scheduling import PROFILE, Pods, Witness, check_promises, ledger_of

from aliquot.kube.plan import read_plan
from aliquot.model.requests import Slice

ROUNDS = int(os.environ.get("ALIQUOT_IDENTITY_ROUNDS", "1"))
PODS = 8
GLANCE = ("python3", "-S", "-E", "/probe/glance.py")
KILLS_OF_ALL = ("agent, kubelet and scheduler", "scheduler", "agent", "nobody", "kubelet", "agent and scheduler")


def compare(scene: Scene, name: str, container: str, piece: Slice) -> None:
    """Inside the container and in the runtime's own specification stands what was planned."""
    seen = scene.told(name, container)
    assert ([piece.gpu], piece.memory_mib, {0}) == (seen["uuids"], seen["total_mib"], set(seen["statuses"]))
    assert f"{scene.namespace}/{name}/{container}" == seen["tenant"]
    spec = scene.node.container_spec(scene.namespace, name, container)
    assert f"CUDA_VISIBLE_DEVICES={scene.gpus.index(piece.gpu)}" in spec["process"]["env"]
    assert f"ALIQUOT_TENANT={scene.namespace}/{name}/{container}" in spec["process"]["env"]


@pytest.fixture
def scheduler(scene: Scene) -> Iterator[OurScheduler]:
    """Our scheduler, asked by the stock one; ended with the test's pods."""
    ours = OurScheduler(scene.plane)
    scene.plane.parts["aliquot-scheduler"] = ours.part
    ours.part.start()
    try:
        ours.configure()
        yield ours
        scene.clear()
    finally:
        scene.plane.parts.pop("aliquot-scheduler")
        ours.part.stop()
        scene.plane.schedule_with({})


@pytest.mark.timeout(120 + 60 * ROUNDS)
def test_equal_pods_of_a_replica_set_each_get_their_own(scene: Scene, scheduler: OurScheduler):
    """Rounds of pods that nothing but the name tells apart, placed by the scheduler while agent, kubelet and scheduler
    are killed: each container has what the plan says, no GPU is ever over its capacity, and every ledger ends empty."""
    chance = random.Random(11)
    with Witness(Pods(scene.plane, scene.namespace)) as witness:
        for number in range(ROUNDS):
            killed = KILLS_OF_ALL[number % len(KILLS_OF_ALL)]
            replicated_round(scene, scheduler, f"s{number}", killed, chance)
            scene.clear()
            until(lambda: not scene.held(), "no ids held")
            until(lambda: not ledger_of(scheduler), "the scheduler's ledger to be empty")
    assert witness.changes and [] == witness.faults


def replicated_round(scene: Scene, scheduler: OurScheduler, name: str, killed: str, chance: random.Random) -> None:
    """One round; what kubelet did not admit, the ReplicaSet has made again."""
    until(scene.fit, "a fit agent", 60)
    like = scene.slice(0, 100)
    scene.create(name, {"left": like, "right": like}, *GLANCE, replicas=PODS, schedulerName=PROFILE)
    time.sleep(chance.uniform(0, 3))
    for part in (scene.agent, scene.plane["kubelet"], scheduler.part):
        if part.name.removeprefix("aliquot-").partition("-")[0] in killed:
            part.kill()
            part.launch()
    pods = until(lambda: all_running(scene, name), f"{PODS} pods of {name} to run", 120)
    check_promises(scene.plane, pods)
    for pod in pods:
        plan = read_plan(pod["metadata"]["annotations"])
        assert plan is not None and {"left", "right"} == set(plan.containers)
        for container, given in plan.containers.items():
            (piece,) = given.slices
            compare(scene, pod["metadata"]["name"], container, piece)


def all_running(scene: Scene, name: str) -> list[dict[str, Any]]:
    """The pods of a ReplicaSet when all of them run; before that, none."""
    pods = scene.pods_of(name)
    for pod in pods:
        if pod["status"]["phase"] == "Failed":
            assert "UnexpectedAdmissionError" == pod["status"]["reason"]
    running = [
        pod for pod in pods if sum("running" in s["state"] for s in pod["status"].get("containerStatuses", ())) == 2
    ]
    return running if len(running) == PODS else []
