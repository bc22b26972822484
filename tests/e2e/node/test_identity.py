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
from scheduling import PROFILE, Witness, check_promises, ledger_of

from aliquot.kube.plan import read_plan
from aliquot.model.requests import Slice

ROUNDS = int(os.environ.get("ALIQUOT_IDENTITY_ROUNDS", "1"))
PODS = 8
GLANCE = ("python3", "-S", "-E", "/probe/glance.py")
KILLS = ("agent and kubelet", "nobody", "agent", "kubelet")
KILLS_OF_ALL = ("agent, kubelet and scheduler", "scheduler", "agent", "nobody", "kubelet", "agent and scheduler")


@pytest.mark.timeout(60 + 60 * ROUNDS)
def test_equal_pods_at_once_each_get_their_own(scene: Scene):
    """Rounds of equal pods of two containers, with kubelet and agent killed in between: inside and in the runtime's
    own specification each container has the planned GPU and memory, and afterwards nothing is left."""
    chance = random.Random(7)
    checked = 0
    for number in range(ROUNDS):
        checked += one_round(scene, number, KILLS[number % len(KILLS)], chance)
        scene.clear()
        until(lambda: not scene.held(), "no ids held")
    assert 2 * PODS * ROUNDS == checked


def one_round(scene: Scene, number: int, kill: str, chance: random.Random) -> int:
    """One round; how many containers were checked. A kubelet that is killed amid a creation fails it, so it is made
    again by the pod's policy."""
    until(scene.fit, "a fit agent", 60)
    plans = {}
    for pod in range(PODS):
        order = [0, 1] if chance.random() < 0.5 else [1, 0]
        # Every container has another memory, so that it can be told from all the others.
        plans[f"r{number}-{pod}"] = {
            name: scene.slice(order[place], 100, mib=512 + 16 * (2 * pod + place))
            for place, name in enumerate(("left", "right"))
        }
    names = list(plans)
    chance.shuffle(names)
    for name in names:
        scene.create(name, plans[name], *GLANCE, restartPolicy="Always")
    time.sleep(chance.uniform(0, 2))
    for part in (scene.agent, scene.plane["kubelet"]):
        if part.name in kill:
            part.kill()
            part.launch()
    return sum(settle(scene, name, plans[name]) for name in names)


def settle(scene: Scene, name: str, plan: dict[str, Any]) -> int:
    """How many containers of the pod were checked; one that kubelet did not admit is made again, as controllers do."""
    for _ in range(3):
        if checked := check(scene, name, plan):
            return checked
        scene.delete(name)
        until(scene.fit, "a fit agent", 60)
        scene.create(name, plan, *GLANCE, restartPolicy="Always")
    return check(scene, name, plan)


def check(scene: Scene, name: str, plan: dict[str, Any]) -> int:
    """How many containers of the pod run, each by its plan; a pod that kubelet did not admit has none."""

    def settled() -> str:
        pod = scene.plane.pod(scene.namespace, name)
        phase = pod["status"]["phase"]
        started = [s for s in pod["status"].get("containerStatuses", ()) if "running" in s["state"]]
        return phase if phase == "Failed" or (phase == "Running" and len(started) == len(plan)) else ""

    try:
        phase = until(settled, f"{name} to run or fail", 60)
    except TimeoutError as error:
        states = {s["name"]: s["state"] for s in scene.plane.pod(scene.namespace, name)["status"]["containerStatuses"]}
        raise AssertionError(f"{error}: {states}") from None
    if phase == "Failed":
        assert "UnexpectedAdmissionError" == scene.plane.pod(scene.namespace, name)["status"]["reason"]
        return 0
    for container, piece in plan.items():
        compare(scene, name, container, piece)
    return len(plan)


def compare(scene: Scene, name: str, container: str, piece: Slice) -> None:
    """Inside the container and in the runtime's own specification stands what was planned."""
    seen = scene.told(name, container)
    assert ([piece.gpu], piece.memory_mib, {0}) == (seen["uuids"], seen["total_mib"], set(seen["statuses"]))
    assert f"{scene.namespace}/{name}/{container}" == seen["tenant"]
    spec = scene.node.container_spec(scene.namespace, name, container)
    assert f"CUDA_VISIBLE_DEVICES={scene.gpus.index(piece.gpu)}" in spec["process"]["env"]
    assert f"ALIQUOT_TENANT={scene.namespace}/{name}/{container}" in spec["process"]["env"]


# -- with the scheduler ------------------------------------------------------------------------------------------------


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
    with Witness(scene.plane, scene.namespace) as witness:
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
