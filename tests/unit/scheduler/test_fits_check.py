"""The admission check for Kueue: a Workload is Ready once all of its pods have a place, which is kept for them."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
from typing import Any

import msgspec
import pytest
from control_scene import Asking
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kube.errors import Conflict, NotFound, Unreachable
from aliquot.kube.objects import Resource
from aliquot.kube.reflector import Change
from aliquot.scheduler.groups import HOLD_S
from aliquot.scheduler.operator.admission_check import CHECKS, FLAVORS, LEAVING_S, STALE_S, FitsCheck, Workload

CHECK = "gpus-fit"


class Queue(Asking):
    """Kueue's part, over nodes with so many GPUs: it reserves quota, obeys the answers, and makes the pods."""

    def __init__(self, *gpus: int) -> None:
        self.workloads: dict[str, dict[str, Any]] = {}
        self.active: dict[str, Any] = {}
        self.flavor: dict[str, Any] = {}
        self.lost = False
        super().__init__(*gpus)

    def start(self) -> None:
        """A scheduler starts, as after a crash."""
        super().start()
        for pod in self.scene.cache.values():
            self.held.pods.changed(Change("added", pod))
        api: Any = self
        self.fits = FitsCheck(api, self.held, lambda: True, clock=self.scene.clock)
        check = {"metadata": {"name": CHECK}, "spec": {"controllerName": "aliquot.dev/fits"}}
        self.fits.checks._store[CHECK] = msgspec.convert(check, CHECKS.type)
        if self.flavor:
            self.fits.flavors._store["special"] = msgspec.convert(self.flavor, FLAVORS.type)

    def recover(self) -> None:
        """What a new leader does before it binds."""
        for name in self.workloads:
            self.fits.workloads._store[f"default/{name}"] = self.read(name)
        for reflector in (self.fits.checks, self.fits.flavors, self.fits.workloads):
            reflector.synced.set()
        self.fits.workloads.renew = self.renew  # type: ignore[method-assign]
        asyncio.run(self.fits.recover())

    async def renew(self) -> None:
        """The list is that of now."""

    # The client's methods

    async def request(self, method: str, path: str) -> bytes:
        return b"{}"

    async def apply(self, kind: Resource[Any], body: dict[str, Any], *, manager: str, sub: str) -> Any:
        """A server-side apply of a status; of another version than the present one it is refused."""
        if kind is CHECKS:
            self.active = body
            return None
        document = self.workloads[body["metadata"]["name"]]
        if body["metadata"]["resourceVersion"] != document["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        (entry,) = body["status"]["admissionChecks"]
        document["status"]["admissionChecks"] = [entry]
        self.touch(document)
        if self.lost:
            raise Unreachable("no answer", may_have_happened=True)
        return self.read(document["metadata"]["name"])

    # What happens

    def touch(self, document: dict[str, Any], **conditions: bool) -> None:
        """The workload has a new version, and these conditions."""
        self.truth.version += 1
        document["metadata"]["resourceVersion"] = str(self.truth.version)
        now = self.scene.clock.wall().isoformat()
        held = {c["type"]: c for c in document["status"]["conditions"]}
        for kind, holds in conditions.items():
            held[kind] = {"type": kind, "status": str(holds), "lastTransitionTime": now}
        document["status"]["conditions"] = list(held.values())

    def read(self, name: str) -> Workload:
        """A workload as a client decodes it."""
        return msgspec.convert(json.loads(json.dumps(self.workloads[name])), Workload)

    def submit(self, name: str, count: int, percent: int, flavor: str = "", **annotations: str) -> None:
        """A job of so many pods; quota is reserved for it at once."""
        limits = {"aliquot.dev/gpu-percent": percent}
        notes = {f"aliquot.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        template = {
            "metadata": {"annotations": notes},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        assigned = {"name": "main", "flavors": {"aliquot.dev/gpu-percent": flavor} if flavor else {}, "count": count}
        self.workloads[name] = {
            "metadata": {"name": name, "namespace": "default", "uid": f"w-{name}"},
            "spec": {"podSets": [{"name": "main", "count": count, "template": template}]},
            "status": {
                "conditions": [],
                "admission": {"podSetAssignments": [assigned]},
                "admissionChecks": [{"name": CHECK, "state": "Pending", "message": ""}],
            },
        }
        self.touch(self.workloads[name], QuotaReserved=True)

    def requeue(self, name: str) -> None:
        """Quota is given back, and reserved again."""
        document = self.workloads[name]
        document["status"]["admissionChecks"] = [{"name": CHECK, "state": "Pending", "message": ""}]
        self.touch(document, QuotaReserved=True, Evicted=False, Admitted=False)

    def look(self, name: str) -> tuple[str, str]:
        """The check is asked about a workload: its state and message."""
        self.fits.workloads._store[f"default/{name}"] = self.read(name)
        asyncio.run(self.fits.reconcile(f"workload/default/{name}"))
        (entry,) = self.workloads[name]["status"]["admissionChecks"]
        return entry["state"], entry["message"]

    def admit(self, name: str) -> None:
        """All checks are Ready: the pods are made, with what the check has written for them."""
        document = self.workloads[name]
        (entry,) = document["status"]["admissionChecks"]
        assert "Ready" == entry["state"]
        self.touch(document, Admitted=True)
        (pod_set,) = document["spec"]["podSets"]
        (update,) = entry["podSetUpdates"]
        for number in range(pod_set["count"]):
            notes = pod_set["template"]["metadata"]["annotations"] | update["annotations"]
            limits = pod_set["template"]["spec"]["containers"][0]["resources"]["limits"]
            labels = {"kueue.x-k8s.io/podset": "main"}
            self.truth.create(f"{name}-{number}", limits, annotations=notes, labels=labels)
        self.catch_up()

    def pod(self, name: str, percent: int) -> str:
        """A pod of nobody's: its node."""
        return self.place(self.create(name, percent))

    def leaving(self, name: str) -> None:
        """A pod that holds most of a GPU and is being deleted."""
        self.pod(name, 80)
        self.truth.pods[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.truth._tell("modified", self.truth.pods[name])
        self.catch_up()

    def later(self, wait_s: float) -> None:
        """Time goes by, for all clocks."""
        self.scene.clock.now_s += wait_s
        before, now = self.scene.clock.wall(), datetime.timedelta(seconds=wait_s)
        self.scene.clock.wall = lambda: before + now  # type: ignore[method-assign]


def test_a_workload_is_ready_when_all_of_its_pods_have_a_place():
    """The scene in which counts are wrong: 0.8 of a GPU are free in two GPUs, 0.1 and 0.7, for two pods of 0.4."""
    queue = Queue(2)
    running = [queue.pod(f"r{i}", 30) for i in range(4)]
    queue.submit("blue", 2, 40)
    before, why = queue.look("blue")
    for number in range(4):
        queue.truth.end(f"r{number}")
    queue.catch_up()
    queue.requeue("blue")
    after, _ = queue.look("blue")
    queue.admit("blue")

    assert (["n0"] * 4, "Retry", "Ready") == (running, before, after)
    assert why.startswith("1 of 2 pods of the group have room now; another waits: asks 0.40 GPU; node n0 does not have")
    assert "Nearest: ask 0.10 GPU less" in why and "Or: after default/r0/main (0.30, 4.8 GiB) has ended" in why
    assert ["n0", "n0"] == [queue.place(f"blue-{i}") for i in range(2)]
    assert queue.truth.used() == queue.scene.reserved()


def test_two_workloads_never_get_one_place():
    """What one was promised is nobody else's, neither another workload's nor a pod's, until its pods are bound."""
    queue = Queue(1, 1)
    queue.submit("first", 2, 60)
    queue.submit("second", 1, 60)
    answers = [queue.look("first")[0], queue.look("second")[0]]
    between = queue.pod("quick", 60)
    queue.admit("first")

    assert (["Ready", "Retry"], "") == (answers, between)
    assert {"n0", "n1"} == {queue.place("first-0"), queue.place("first-1")}


def test_what_nobody_takes_is_given_up_in_time():
    """Shares are free again some time after the admission, and not before it, however long other checks take."""
    queue = Queue(1)
    queue.submit("lazy", 1, 60)
    queue.look("lazy")
    queue.later(10 * HOLD_S)
    queue.requeue("lazy")
    queue.workloads["lazy"]["status"]["admissionChecks"][0]["state"] = "Ready"
    queue.look("lazy")
    held = queue.held.holds("workload/w-lazy")
    queue.touch(queue.workloads["lazy"], Admitted=True)
    queue.look("lazy")
    queue.later(HOLD_S + 1)
    queue.held.settle()

    assert held and {} == queue.scene.reserved()


@pytest.mark.parametrize("how", ["deleted", "evicted", "finished", "without quota"])
def test_a_workload_that_is_gone_holds_nothing(how: str):
    """However it ends before its pods are there."""
    queue = Queue(1)
    queue.submit("short", 1, 60)
    queue.look("short")
    held = queue.scene.reserved()
    if how == "deleted":
        queue.fits.workload_changed(Change("deleted", queue.read("short")))
    else:
        condition = {"evicted": "Evicted", "finished": "Finished"}.get(how, "QuotaReserved")
        queue.touch(queue.workloads["short"], **{condition: how != "without quota"})
        queue.look("short")

    assert held and {} == queue.scene.reserved()


@pytest.mark.parametrize(
    ("condition", "answer"),
    [("Admitted", ("Ready", "its pods run already")), ("Evicted", ("Pending", ""))],
)
def test_a_workload_that_does_not_wait_is_not_asked_to_try_again(condition: str, answer: tuple[str, str]):
    """Retry would evict what runs when the check is added to its queue, and stay for ever on what is evicted now."""
    queue = Queue(1)
    queue.submit("old", 4, 90)
    queue.touch(queue.workloads["old"], **{condition: True})

    assert answer == queue.look("old")


def test_an_answer_to_an_old_version_is_not_given():
    """A Retry that crosses a preemption would not be taken back: it is refused with the version it was made from."""
    queue = Queue(1)
    queue.submit("crossed", 4, 60)
    queue.fits.workloads._store["default/crossed"] = queue.read("crossed")
    queue.touch(queue.workloads["crossed"], Evicted=True)
    with pytest.raises(Conflict):
        asyncio.run(queue.fits.reconcile("workload/default/crossed"))

    assert "Pending" == queue.workloads["crossed"]["status"]["admissionChecks"][0]["state"]


def test_a_workload_is_answered_once_per_reservation():
    """While the watch shows what was there before the answer, no second one is given."""
    queue = Queue(1)
    queue.submit("once", 4, 60)
    old = queue.read("once")
    queue.look("once")
    version = queue.workloads["once"]["metadata"]["resourceVersion"]
    queue.fits.workloads._store["default/once"] = old
    asyncio.run(queue.fits.reconcile("workload/default/once"))

    assert version == queue.workloads["once"]["metadata"]["resourceVersion"]


def test_a_retry_that_was_left_is_set_back():
    """Kueue has left it when the time to try again is long over and no quota is reserved."""
    queue = Queue(1)
    queue.submit("stuck", 4, 60)
    queue.look("stuck")
    queue.touch(queue.workloads["stuck"], QuotaReserved=False)
    early = queue.look("stuck")[0]
    queue.later(STALE_S + 3)

    assert ("Retry", "Pending") == (early, queue.look("stuck")[0])


def test_pods_that_are_being_deleted_are_waited_for():
    """Those of a gang that was preempted hold devices for their grace: no answer is given meanwhile."""
    queue = Queue(1)
    queue.leaving("leaving")
    queue.submit("next", 1, 60)
    during = queue.look("next")[0]
    queue.truth.delete("leaving")
    queue.catch_up()
    after = queue.look("next")[0]

    assert ("Pending", "Ready") == (during, after)


def test_pods_that_do_not_leave_are_not_waited_for_long():
    """After the longest usual grace the quota goes to others."""
    queue = Queue(1)
    queue.leaving("hangs")
    queue.submit("next", 1, 60)
    queue.later(LEAVING_S + 1)

    assert "Retry" == queue.look("next")[0]


def test_the_controller_says_that_it_is_there():
    """Kueue uses no ClusterQueue whose checks have no active controller."""
    queue = Queue(1)
    asyncio.run(queue.fits.reconcile(f"check/{CHECK}"))

    assert "True" == queue.active["status"]["conditions"][0]["status"]


def test_a_flavor_closes_other_nodes():
    """Kueue will put the flavor's labels on the pods; nodes without them do not count."""
    queue = Queue(1, 1)
    queue.flavor = {"metadata": {"name": "special"}, "spec": {"nodeLabels": {"kind": "special"}}}
    queue.scene.nodes[1].metadata.labels["kind"] = "special"
    queue.start()
    queue.submit("one", 1, 60, "special")
    queue.submit("more", 2, 60, "special")
    more, one = queue.look("more")[0], queue.look("one")[0]

    assert ("Retry", "Ready", {"GPU-n1-0"}) == (more, one, {*queue.scene.reserved()})


@pytest.mark.parametrize(
    ("count", "percent", "labels", "state"),
    [
        (2, 10, {"anti_affinity": "a"}, "Ready"),
        (3, 10, {"anti_affinity": "a"}, "Retry"),
        (2, 60, {"affinity": "a"}, "Retry"),
        (1, 10, {"gpu_model": "H100"}, "Retry"),
        (1, 150, {}, "Ready"),
        (2, 100, {"exclusion": "a"}, "Ready"),
    ],
)
def test_models_and_labels_count(count: int, percent: int, labels: dict[str, str], state: str):
    """The pods are placed as the scheduler would place them, on two GPUs."""
    queue = Queue(2)
    queue.submit("labelled", count, percent, **labels)

    assert state == queue.look("labelled")[0]


def test_a_template_that_contradicts_itself_says_so():
    """Its sentence is the reason."""
    queue = Queue(1)
    queue.submit("wrong", 1, 60, gpu_limit="0.1")
    state, why = queue.look("wrong")

    assert "Retry" == state and "gpu-limit" in why


def test_an_answer_without_an_answer_keeps_what_it_promised():
    """Whether Kueue has it is not known, so the shares stay until the workload says."""
    queue = Queue(1)
    queue.submit("lost", 1, 60)
    queue.lost = True
    with pytest.raises(Unreachable):
        queue.look("lost")

    assert queue.scene.reserved()


def test_without_kueue_a_take_over_waits_for_nothing():
    """A cluster that does not have its kinds is recovered at once."""
    queue = Queue(1)

    async def nothing(method: str, path: str) -> bytes:
        raise NotFound("no kueue")

    queue.request = nothing  # type: ignore[method-assign]
    asyncio.run(queue.fits.recover())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_no_gang_is_half_placed_in_any_history(seed: int):
    """Gangs and other pods arrive, are placed one by one and end, and the scheduler is killed anywhere: whatever was
    admitted gets all of its nodes, and no GPU is given away twice."""
    chance, queue, names = random.Random(seed), Queue(2, 1, 2), iter(range(10**6))
    for _ in range(30):
        match chance.choice(
            ["submit", "submit", "look", "look", "look", "admit", "place", "place", "pod", "end", "kill"]
        ):
            case "submit":
                queue.submit(f"g{next(names)}", chance.randint(1, 4), chance.choice([20, 40, 60, 100]))
            case "look" if queue.workloads:
                queue.look(chance.choice(list(queue.workloads)))
            case "admit":
                for name, document in queue.workloads.items():
                    admitted = any(c["type"] == "Admitted" for c in document["status"]["conditions"])
                    if document["status"]["admissionChecks"][0]["state"] == "Ready" and not admitted:
                        queue.admit(name)
                        break
            case "place":
                gang = [
                    name for name, pod in queue.truth.pods.items() if not pod["spec"].get("nodeName") and name[0] == "g"
                ]
                if gang:
                    name = chance.choice(gang)
                    assert queue.place(name), f"{name} of an admitted gang has no place"
            case "pod":
                queue.pod(f"p{next(names)}", chance.choice([10, 30, 50]))
            case "end":
                alone = [
                    n for n, pod in queue.truth.pods.items() if n[0] == "p" and pod["status"]["phase"] == "Pending"
                ]
                if alone:
                    queue.truth.end(chance.choice(alone))
                    queue.catch_up()
            case "kill":
                queue.start()
                queue.recover()
        assert all(milli <= 1000 for milli, _ in queue.scene.reserved().values())
    for name, pod in list(queue.truth.pods.items()):
        assert name[0] != "g" or pod["spec"].get("nodeName") or queue.place(name)
