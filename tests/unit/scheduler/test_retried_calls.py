"""A pod that waits is not left beside free room, whoever learns of a freed share first."""

import asyncio

import pytest
from control_scene import Clock
from served import HALF, Served, pod

from aliquot.scheduler.extender.server import LATE_S


class Waiting:
    """kube-scheduler with one pod that waits: a refusal in new words goes into the pod's condition, and wakes it."""

    def __init__(self) -> None:
        self.served, self.clock = Served(), Clock()
        self.served.extender.wording.clock = self.clock
        self.gpu = str(self.served.scene.ledger.cluster.spec(1).gpus[0].uuid)
        self.version, self.condition = 1, ""
        self.served.scene.ledger.close(self.gpu)

    def call(self) -> str:
        """Call the filter for the only node: "fits", "called again" (it is woken by its own condition) or "sleeps"."""
        asked = pod()
        asked["metadata"]["resourceVersion"] = str(self.version)
        answer = self.served.post("filter", {"Pod": asked, "NodeNames": ["m"]})[1]
        if answer["NodeNames"]:
            return "fits"
        said, had = answer["FailedNodes"]["m"], self.condition
        self.condition = said
        self.version += said != had
        return "sleeps" if said == had else "called again"


@pytest.mark.parametrize("since_s", [0.02, 0.5, 5.0])
def test_a_share_of_which_kube_scheduler_learns_first_is_not_missed(since_s: float):
    """However soon after a refusal a share is freed, a call that comes before the ledger knows of it is repeated."""
    waiting = Waiting()
    before = [waiting.call(), waiting.call()]
    waiting.clock.now_s += since_s

    too_early = waiting.call()
    waiting.served.scene.ledger.reopen(waiting.gpu)

    assert ["called again", "sleeps", "called again", "fits"] == [*before, too_early, waiting.call()]


def test_a_retry_waits_for_a_ledger_that_is_behind():
    """It is answered once the ledger has seen the pod as kube-scheduler changed it, and so the share freed before."""
    waiting, asked = Waiting(), []

    def has_seen(version: str) -> bool:
        asked.append(version)
        if len(asked) == 3:
            waiting.served.scene.ledger.reopen(waiting.gpu)
        return len(asked) == 3

    waiting.served.extender.has_seen = has_seen

    assert ["called again", "fits"] == [waiting.call(), waiting.call()]
    assert ["2"] * 3 == asked


def test_a_ledger_that_hangs_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch):
    """A retry waits half a second at most, and the next ones do not, so that kube-scheduler has its answers."""
    waiting, asked = Waiting(), []
    clock = waiting.served.extender.binder.clock = waiting.clock

    async def sleep(wait_s: float) -> None:
        clock.now_s += wait_s

    monkeypatch.setattr(clock, "sleep", sleep)
    waiting.served.extender.has_seen = lambda version: bool(asked.append(version))
    began_s = clock.now_s

    assert ["called again", "sleeps", "called again", "sleeps"] == [waiting.call() for _ in range(4)]
    assert LATE_S <= clock.now_s - began_s < LATE_S + 0.01
    assert ["2", "3"] == sorted(set(asked)) and 1 == asked.count("3")


def test_a_pod_that_is_woken_is_refused_in_other_words():
    """The reason stays the same, and the repeated call has the same words, so that it ends there."""
    waiting, heard = Waiting(), []
    for wait_s in (0, 0.01, 5, 0.01):
        waiting.clock.now_s += wait_s
        waiting.call()
        heard.append(waiting.condition)

    reason = "does not have a GPU with 0.50 free"
    assert [reason, reason, f"{reason} now", f"{reason} now"] == heard


def test_a_pod_that_no_freed_share_lets_in_is_always_refused_in_the_same_words():
    """A reason that lasts has no "now" behind it, and is no news for kube-scheduler however often the pod is woken."""
    served, heard = Served(), set()
    served.extender.wording.clock = clock = Clock()
    for version in range(4):
        asked = pod(**{"aliquot.dev/gpu-model": "A100"})
        asked["metadata"]["resourceVersion"] = str(version // 2)
        heard.add(served.post("filter", {"Pod": asked, "NodeNames": ["m"]})[1]["FailedAndUnresolvableNodes"]["m"])
        clock.now_s += 5

    assert {"has no GPU of model A100"} == heard


def test_no_second_set_of_victims_goes_while_the_ledger_has_not_seen_the_first_go():
    """kube-scheduler calls preempt again when the filter, whose watch is behind, refused the room that was made."""
    served = Served()
    low = served.scene.truth.create("low", HALF)
    served.scene.catch_up()
    assert "" == asyncio.run(served.scene.bind(low, "m"))
    served.scene.catch_up()
    high = pod({"aliquot.dev/gpu-percent": 70})
    high["spec"]["priority"] = 10
    message = {"Pod": high, "NodeNameToMetaVictims": {"m": {"Pods": []}}}

    def evicted() -> dict[str, list[str]]:
        answer = served.post("preempt", message)[1]["NodeNameToMetaVictims"]
        return {node: [victim["UID"] for victim in victims["Pods"]] for node, victims in answer.items()}

    first = evicted()
    high["status"] = {"nominatedNodeName": "m"}
    again = evicted()
    served.scene.truth.delete("low")
    served.scene.catch_up()

    assert [{"m": [low.metadata.uid]}, {}, {"m": []}] == [first, again, evicted()]
