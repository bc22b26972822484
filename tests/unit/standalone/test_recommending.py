"""What a tenant requests when it starts, where its request is to follow what it used."""

from collections.abc import Callable
from typing import Any

import pytest

from aliquot.model.ids import GpuUuid
from aliquot.model.quantities import Memory
from aliquot.model.requests import Device, GpuRequest, Plan, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Placement
from aliquot.placement.machine import MachineLedger
from aliquot.standalone.accounts import own_account
from aliquot.standalone.quota import OverQuota
from aliquot.standalone.recommending import Recommending
from aliquot.status.history import ControllerUse, Percentiles, Uses


class Stage:
    """An engine of one GPU of which a neighbour has 0.4, and its past, in which the run `a` used so much of a GPU."""

    def __init__(self, used_milli: int, *, over_quota: bool = False, damaged: bool = False) -> None:
        self.past = self
        self._uses = [ControllerUse("", "Run/a", "", 7200, 0, Percentiles(p95=used_milli), Percentiles())]
        self._over_quota, self._damaged = over_quota, damaged
        self._ledger = MachineLedger([Device(0, GpuUuid("GPU-0"), "V100", 16384)], node="here")
        slices = (Slice(GpuUuid("GPU-0"), 400, 1000, 1024),)
        self._ledger.decider.commit("neighbour", Placement("here", slices), Ask(GpuRequest(400)))

    def uses(self, _: object) -> Uses:
        """What was used."""
        if self._damaged:
            raise OSError("the history cannot be read")
        return Uses(0, 0, self._uses)

    def look(self, read: Callable[[MachineLedger], Any]) -> Any:
        """As `Engine.look`."""
        return read(self._ledger)

    def check_new(self, _owner: object, _request: GpuRequest, _plan: Plan) -> None:
        """As `Engine.check_new`."""
        if self._over_quota:
            raise OverQuota("it is")


def started(request: GpuRequest, *, name: str = "a", default: str = "initial", **stage: Any) -> GpuRequest:
    """The request with which a run starts."""
    recommending = Recommending(Stage(**stage), default)
    recommending.facts = Stage(**stage)
    return recommending.at_start(name, request, own_account(), "Run")


@pytest.mark.parametrize(
    ("asked", "used_milli", "milli"),
    [(GpuRequest(500), 100, 120), (GpuRequest(300), 400, 460), (GpuRequest(300, 420), 400, 420),
     (GpuRequest(500, recommend="initial"), 100, 120)],
    ids=["less", "more", "up to the limit", "as it says itself"],
)  # fmt: skip
def test_a_run_starts_with_what_it_used(asked: GpuRequest, used_milli: int, milli: int):
    """Its request is the recommended one up to its limit; its memory and its limit are those that it asks for."""
    default = "show" if asked.recommend else "initial"
    found = started(asked, used_milli=used_milli, default=default)

    assert milli == found.request_milli
    assert (asked.memory_on(16384), asked.ceiling_milli) == (found.memory_on(16384), found.ceiling_milli)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (GpuRequest(300), {"used_milli": 600}),
        (GpuRequest(300), {"used_milli": 400, "over_quota": True}),
        (GpuRequest(300), {"used_milli": 250}),
        (GpuRequest(300), {"used_milli": 100, "name": "b"}),
        (GpuRequest(300), {"used_milli": 100, "damaged": True}),
        (GpuRequest(300), {"used_milli": 100, "default": "auto"}),
        (GpuRequest(300, recommend="show"), {"used_milli": 100}),
        (GpuRequest(1000, memory=Memory(mib=1024)), {"used_milli": 100}),
    ],
    ids=["no room", "quota", "close enough", "another's past", "no past", "auto", "it says show", "a whole GPU"],
)
def test_a_run_starts_with_what_it_asks_for(asked: GpuRequest, given: dict[str, Any]):
    """Where more has no room or is over quota, nothing better is known, or it is not to follow, it is as it asks."""
    assert asked == started(asked, **given)
