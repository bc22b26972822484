"""Dry runs on one machine's ledger."""

import pytest

from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.requests import Device, GpuRequest
from aliquot.placement.machine import MachineLedger
from aliquot.placement.read_model import explain_request, explain_tenant, ledger_gpus, try_request
from aliquot.web.pages.trying import request_of


@pytest.fixture
def ledger() -> MachineLedger:
    """Two V100, the first with six tenths taken."""
    ledger = MachineLedger([Device(n, GpuUuid(f"GPU-{n}"), "V100", 16384) for n in range(2)], node="here")
    request = GpuRequest(600, 1000)
    ledger.reserve(TenantName("a"), ledger.plan(request), request)
    return ledger


def tried(ledger: MachineLedger, **ask: str):
    """A trial on this ledger."""
    return try_request(ledger, ledger_gpus(ledger.cluster, ledger.node), request_of(ask))


def test_a_trial_goes_where_the_engine_would_go(ledger: MachineLedger):
    """The pieces of a trial are the plan that the ledger itself makes."""
    trial = tried(ledger, request="0.3")

    assert trial.fits
    assert [piece.uuid for piece in trial.pieces] == ledger.plan(GpuRequest(300)).uuids


def test_a_trial_shows_what_it_would_leave(ledger: MachineLedger):
    """The touched GPU is shown as it is and as it would be."""
    trial = tried(ledger, request="0.3", memory="2Gi", gpu="0")

    assert (400, 100) == (trial.before[0].free_milli, trial.after[0].free_milli)
    assert 2048 == trial.before[0].free_mib - trial.after[0].free_mib
    assert "your-request" == trial.after[0].shares[-1].tenant


def test_a_trial_reserves_nothing(ledger: MachineLedger):
    """After a trial the ledger is as before."""
    tried(ledger, request="1.0")

    assert [400, 1000] == [gpu.free_milli for gpu in ledger_gpus(ledger.cluster, ledger.node)]


def test_what_does_not_fit_now_says_why(ledger: MachineLedger):
    """A request that has to wait is told device by device."""
    trial = tried(ledger, request="2")

    assert not trial.fits and trial.nearest
    asked = "It waits: asks 2 GPUs close to each other; node here does not have 2 free GPUs."
    assert f"{asked} It needs 2 whole GPUs, 1 is free (GPU 1)." == trial.sentence
    assert [("GPU 0", "has 0.40 free, 1.00 were asked")] == [(r.where, r.text) for r in trial.reasons]


def test_what_never_fits_says_so(ledger: MachineLedger):
    """A request that the empty machine could not hold is told apart."""
    assert "never fits" in tried(ledger, request="3").sentence
    assert "never fits" in tried(ledger, request="0.5", memory="40Gi").sentence


@pytest.mark.parametrize(
    "ask", [{"request": "x"}, {"request": "0"}, {"request": "0.5", "limit": "0.2"}, {"memory": "x"}]
)
def test_nonsense_is_refused(ledger: MachineLedger, ask: dict[str, str]):
    """A request that makes no sense is the user's mistake."""
    with pytest.raises(UserError):
        tried(ledger, **ask)


def test_a_waiting_workload_is_explained(ledger: MachineLedger):
    """The explanation names what was asked, what stands against it and what would help."""
    why = explain_request(ledger, "x/a", GpuRequest(2000, 2000))

    assert why.sentence.startswith("x/a waits: asks 2 GPUs")
    assert ["GPU 0"] == [reason.where for reason in why.reasons]
    assert why.nearest


def test_pages_have_every_way_out_that_the_command_prints(ledger: MachineLedger):
    """A waiting request's ways out are the lines of `aliquot explain`: the nearest, then the others."""
    for n in range(2):
        request = GpuRequest(300, 300, gpu=str(n))
        ledger.reserve(TenantName(f"b{n}"), ledger.plan(request), request)
    request = GpuRequest(800, 800)
    printed = [line for line in ledger.explain(request).lines("x/a") if line.startswith(("Nearest: ", "Or: "))]

    assert 1 < len(printed)
    assert printed == explain_request(ledger, "x/a", request).ways == tried(ledger, request="0.8", limit="0.8").ways


def test_a_tenant_is_explained_where_it_is(ledger: MachineLedger):
    """A tenant's explanation says its GPU; one that is not in the ledger has ended."""
    index = {device.uuid: device.index for device in ledger.devices}
    place = index[ledger.plans[TenantName("a")].uuids[0]]

    assert f"a is on GPU {place} of here: asks 0.60 GPU." == explain_tenant(ledger, TenantName("a")).sentence
    assert "has ended" in explain_tenant(ledger, TenantName("z")).sentence


@pytest.mark.parametrize("other_milli", [0, 250])
def test_what_runs_is_told_with_and_without_it(other_milli: int):
    """What is free beside a tenant is not called free now while the tenant holds its part."""
    ledger = MachineLedger([Device(0, GpuUuid("GPU-0"), "V100", 16384)], by="binpack")
    for name, milli in (("other", other_milli), ("a", 350)):
        if milli:
            ledger.reserve(TenantName(name), ledger.plan(GpuRequest(milli)), GpuRequest(milli))
    told = "; ".join(explain_tenant(ledger, TenantName("a")).why)

    without, with_it = 1000 - other_milli, 650 - other_milli
    assert f"GPU 0 of here: without it {without / 1000:.2f} free, with it {with_it / 1000:.2f}" in told
    assert "now" not in told
