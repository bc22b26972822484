"""What the engine says about tenants that it cannot park."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.requests import Device, GpuRequest
from aliquot.placement.machine import MachineLedger
from aliquot.standalone.parking import NotParked, Parking


def test_one_that_ends_while_it_is_to_be_parked_is_not_reported(capsys: pytest.CaptureFixture[str]):
    """The log says only of those that are still there that they stay on their GPU."""
    ledger, request = MachineLedger([Device(0, GpuUuid("GPU-0"), "Tesla V100", 16384)]), GpuRequest(300)
    ledger.reserve(TenantName("here"), ledger.plan(request), request)
    engine = cast(Any, SimpleNamespace(look=lambda read: read(ledger)))
    parking = Parking(engine, Path("/nowhere"), Path("/no/libcuda"), Path("/no/libnvml"), emulated=False)

    def refuse(name: TenantName, **_: object) -> int:
        raise NotParked(f"{name} stays on its GPU")

    with mock.patch.object(parking, "park", refuse):
        parked = [parking._try_to_park(TenantName(name)) for name in ("here", "gone")]

    said = capsys.readouterr().err
    assert ([False, False], True, False) == (parked, "here stays" in said, "gone" in said)
