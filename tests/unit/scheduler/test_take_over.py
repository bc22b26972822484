"""Who begins to lead binds nothing before it has seen all that the one before did."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from aliquot.kube.custom import GPUQuota
from aliquot.kube.reflector import Change
from aliquot.scheduler.program import Scheduler
from aliquot.scheduler.settings import SchedulerSettings

NOBODY: Any = None


class Taking:
    """A scheduler that has the lease; each step of a take-over waits until the test lets it go on."""

    def __init__(self, *, lead: bool = True) -> None:
        self.scheduler = Scheduler(SchedulerSettings(leader_elect=lead), NOBODY)
        self.steps: list[tuple[str, asyncio.Future[None]]] = []
        self.scheduler.pods.synced.set()
        has_it: Any = lambda: lead  # noqa: E731
        self.scheduler.elector.leads = has_it  # type: ignore[method-assign]
        self.scheduler.pods.renew = self._step("renew")  # type: ignore[method-assign]
        self.scheduler.learned.recall = self._step("recall")  # type: ignore[method-assign]
        self.scheduler.operator.recover = self._step("recover")  # type: ignore[method-assign]

    def _step(self, name: str) -> Callable[[], Awaitable[None]]:
        async def wait() -> None:
            self.steps.append((name, asyncio.get_running_loop().create_future()))
            await self.steps[-1][1]

        return wait

    async def goes_on(self, steps: int) -> list[str]:
        """So many steps of whoever waits longest come to their end; which."""
        went = []
        for _ in range(steps):
            await asyncio.sleep(0)
            name, end = self.steps.pop(0)
            if not end.done():
                end.set_result(None)
                went.append(name)
        for _ in range(3):
            await asyncio.sleep(0)
        return went


async def test_what_one_lead_saw_does_not_count_for_the_next():
    """A take-over that the end of the lead interrupts does not let the next lead begin before its own is done."""
    taking = Taking()
    taking.scheduler._lead_changed(True)
    await taking.goes_on(1)
    taking.scheduler._lead_changed(False)
    taking.scheduler._lead_changed(True)
    went = await taking.goes_on(3)
    early = taking.scheduler.leads()
    went += await taking.goes_on(1)

    assert ["renew", "recall", "recover"] == went
    assert (False, True) == (early, taking.scheduler.leads())


async def test_a_take_over_that_fails_ends_the_program():
    """One that has the lease and can never bind makes room for another."""
    taking = Taking()
    taking.scheduler._lead_changed(True)
    await asyncio.sleep(0)
    taking.steps.pop()[1].set_exception(RuntimeError("a defect"))
    await asyncio.wait_for(taking.scheduler.stopping.wait(), 5)

    assert not taking.scheduler.leads()


async def test_without_an_election_it_takes_over_too():
    """A scheduler that is alone knows quotas and what was being given back before it binds; it lists the pods once."""
    taking = Taking(lead=False)
    taking.scheduler._lead_changed(True)
    went = await taking.goes_on(1)
    before = taking.scheduler.leads()
    went += await taking.goes_on(1)

    assert ["recall", "recover"] == went
    assert (False, True) == (before, taking.scheduler.leads())


def test_quotas_are_read_once_each():
    """Of many quotas one that changes is read anew, and one that is deleted or empty bounds nobody."""
    scheduler = Scheduler(SchedulerSettings(), NOBODY)

    def quota(name: str, *limits: dict[str, str]) -> GPUQuota:
        document = {"metadata": {"name": name, "namespace": name}, "spec": {"limits": list(limits)}}
        return msgspec.convert(document, GPUQuota)

    one, two = quota("one", {"gpus": "1"}), quota("two", {"gpus": "2"})
    bounds = []
    for change in (
        Change("added", one),
        Change("added", two),
        Change("modified", quota("one"), one),
        Change("deleted", two, two),
    ):
        scheduler.operator.quota_changed(change)
        bounds.append({key: [bound.milli for bound in found] for key, found in scheduler.operator.bounds.items()})

    assert [{"one/one": [1000]}, {"one/one": [1000], "two/two": [2000]}, {"two/two": [2000]}, {}] == bounds
    assert {} == scheduler.ledger.decider.quotas._by_namespace
