"""The scheduler killed at any moment and at every step of a bind, its clock set forward and back: promises hold.

`ALIQUOT_KILLS` says how often it is killed; 200 take about a quarter of an hour.
"""

import datetime
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.control_plane import ControlPlane
from cluster.ours import PORT, OurScheduler, surroundings
from cluster.parts import Part
from crashing import CRASHES
from scheduling import Witness, check_promises, eventually, gpu_pod, ledger_of, percent, pods_of, wait_bound
from wallclock import WallClock

KILLS = int(os.environ.get("ALIQUOT_KILLS", "3"))
MAX_PODS = 60
HARDEST = ("held", "posted", "answered")
"""Steps at which something is promised or done that nobody knows of; the others are in the long form."""

CRASHING = Path(__file__).with_name("crashing.py")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/aliquot-scheduler"


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
    """Create pods."""
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


def test_a_clock_that_jumps_changes_nothing(control_plane: ControlPlane, namespace: str, nodes: list[str]):
    """The leader's date jumps an hour forward and further back: it goes on leading and binding, nobody else takes over,
    and the ledger agrees."""
    clock = WallClock(control_plane.rooms.state)
    scheduler, standby = OurScheduler(control_plane), OurScheduler(control_plane, 8771)
    scheduler.part._environment = {**(scheduler.part._environment or {}), **clock.environment}
    scheduler.part.start()
    standby.part.launch()
    try:
        eventually(lambda: control_plane.answers(8771, "/readyz"), "the standby is not ready")
        before = control_plane.api.get(LEASE)["spec"]
        made = 0
        for ahead_s in (0, 3600, -240):
            clock.set(ahead_s)
            create(control_plane, namespace, *(gpu_pod(f"j{made + i}", percent(20)) for i in range(6)))
            made += 6
            wait_bound(control_plane, namespace, made)
            eventually(lambda by=ahead_s: abs(renewed_ahead_s(control_plane) - by) < 30, "the lease is not renewed")
            time.sleep(2.5)  # more than one renewal
            assert not control_plane.answers(8771, "/leadz")
        after = control_plane.api.get(LEASE)["spec"]

        assert (before["holderIdentity"], before["leaseTransitions"]) == (
            after["holderIdentity"],
            after["leaseTransitions"],
        )
        agree(control_plane, scheduler, namespace)
    finally:
        standby.part.stop()
        scheduler.part.stop()


def renewed_ahead_s(plane: ControlPlane) -> float:
    """By how many seconds the lease's last renewal is later than now, by the holder's clock."""
    written = datetime.datetime.fromisoformat(plane.api.get(LEASE)["spec"]["renewTime"].replace("Z", "+00:00"))
    return (written - datetime.datetime.now(datetime.UTC)).total_seconds()


@pytest.fixture(scope="module")
def one_gpu(control_plane: ControlPlane, nodes: list[str]) -> Iterator[dict[str, str]]:
    """Selects a node with one GPU, so that a share that is lost or doubled is missed at once."""
    (name,) = control_plane.fake_nodes(1, "v100", gpus=1, prefix="chaos-one")
    yield {"kubernetes.io/hostname": name}
    control_plane.remove_nodes([name])


def crashing(plane: ControlPlane, step: str) -> Part:
    """The scheduler that will end at a step."""
    where = ("--bind", f"127.0.0.1:{PORT}", "--identity", f"scheduler-{PORT}", "--kubeconfig", str(plane.kubeconfig))
    return Part(
        f"crashing-{step}",
        plane.rooms,
        lambda: [sys.executable, str(CRASHING), "scheduler", *where],
        lambda: plane.answers(PORT, "/leadz"),
        environment=surroundings(HOME=str(plane.rooms.state), CRASH_AT=step),
    )


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step in HARDEST else [pytest.mark.slow]) for step in sorted(CRASHES)]
)
def test_a_crash_between_the_steps_of_a_bind_loses_and_doubles_nothing(
    control_plane: ControlPlane, namespace: str, one_gpu: dict[str, str], step: str
):
    """Killed at this step and started again, all pods are bound, and the GPU has exactly the room that is left."""

    def ask(name: str, share: int) -> None:
        create(control_plane, namespace, gpu_pod(name, percent(share), nodeSelector=one_gpu))

    def message(name: str) -> str:
        conditions: list[dict[str, Any]] = control_plane.pod(namespace, name)["status"].get("conditions", [])
        return " ".join(condition.get("message", "") for condition in conditions)

    doomed, scheduler = crashing(control_plane, step), OurScheduler(control_plane)
    doomed.start()
    try:
        with Witness(control_plane, namespace) as witness:
            for name in ("first", "second"):
                ask(name, 40)
            eventually(lambda: not doomed.running, f"it did not come to the step {step}")
            scheduler.part.start()
            wait_bound(control_plane, namespace, 2)
            ask("rest", 20)
            wait_bound(control_plane, namespace, 3)
            ask("beyond", 10)
            eventually(lambda: "gpu-percent" in message("beyond"), "a pod finds room that is not there")
        used, reserved = check_promises(control_plane, pods_of(control_plane, namespace)), ledger_of(scheduler)
    finally:
        doomed.stop()
        scheduler.part.stop()

    assert [1000] == [milli for milli, _ in used.values()]
    assert used == reserved
    assert [] == witness.faults
