"""Memory that a tenant has yet to free after a resize, in the engine's ledger and in that of the engine after it."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kit.engine import UUIDS, engines_over, start_engine
from tenants import FakeArbiter, fake_hook

from aliquot.driver.cdi import Edits
from aliquot.driver.gpu_lock import GpuLock
from aliquot.model.errors import AliquotError
from aliquot.model.ids import TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest
from aliquot.placement.machine import NeverFits, NoRoom
from aliquot.placement.quota import Quota
from aliquot.standalone import shares
from aliquot.standalone.accounts import Account
from aliquot.standalone.arbiter_process import ArbiterOptions
from aliquot.standalone.engine import Engine
from aliquot.standalone.quota import AccountQuotas
from aliquot.standalone.tenants import RunRecord
from aliquot.standalone.wire import ShareCall
from aliquot.tenancy.machine import SharedMachine

A, B = TenantName("a"), TenantName("b")


def part(milli: int, mib: int) -> GpuRequest:
    """Of the first GPU, which has 16,000 MiB."""
    return GpuRequest(milli, 1000, Memory(mib=mib), gpu="0")


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[FakeArbiter]:
    """What every engine of the test has."""
    fake = FakeArbiter()
    with engines_over(fake, fake_hook(tmp_path)):
        yield fake


def promised(engine: Engine) -> int:
    """MiB of the first GPU that the ledger keeps for tenants."""
    pieces = [piece for plan in engine.ledger.plans.values() for piece in plan.slices]
    return sum(piece.memory_mib for piece in pieces if piece.gpu == UUIDS[0])


def test_what_is_yet_to_be_freed_is_given_to_others_as_it_is_freed(tmp_path, arbiter):
    """Time is free at once; memory when the arbiter says so."""
    engine = start_engine(tmp_path, arbiter)
    engine.admit(A, part(900, 15_000))
    arbiter.pending_mib["a"] = 9_000
    resized = engine.resize(A, part(200, 2_000))
    assert (2_000, {"a": 9_000}, 11_000) == (resized.plan.slices[0].memory_mib, engine.pending_mib(), promised(engine))
    with pytest.raises(NoRoom):
        engine.admit(B, part(800, 6_000))
    engine.admit(B, part(800, 4_000))
    arbiter.pending_mib["a"] = 1_000
    assert ({"a": 1_000}, 7_000) == (engine.pending_mib(), promised(engine))
    arbiter.pending_mib.clear()

    assert ({}, 6_000) == (engine.pending_mib(), promised(engine))


def test_a_tenant_grows_back_into_memory_that_it_has_yet_to_free(tmp_path, arbiter):
    """What is still reserved for it is its own."""
    engine = start_engine(tmp_path, arbiter)
    engine.admit(A, part(500, 15_000))
    arbiter.pending_mib["a"] = 13_000
    engine.resize(A, part(500, 2_000))
    arbiter.pending_mib["a"] = 3_000
    engine.resize(A, part(500, 12_000))
    arbiter.pending_mib.clear()

    assert ({}, 12_000) == (engine.pending_mib(), promised(engine))


@pytest.mark.parametrize(
    ("request_", "error"),
    [(part(600, 1_000), NoRoom), (part(300, 13_000), NoRoom), (part(1_000, 1_000), NeverFits)],
    ids=["time", "memory", "a whole GPU"],
)
def test_what_does_not_fit_changes_nothing(tmp_path, arbiter, request_, error):
    """Neither in the ledger nor at the arbiter."""
    engine = start_engine(tmp_path, arbiter)
    engine.admit(A, part(300, 4_000))
    engine.admit(B, part(500, 4_000))
    before = engine.ledger.plans, dict(arbiter.tenants)
    with pytest.raises(error):
        engine.resize(A, request_)

    assert before == (engine.ledger.plans, arbiter.tenants)


def test_sizes_are_decided_together_and_over_quota_says_what_the_account_has(tmp_path, arbiter):
    """Two that fit only one at a time are refused before either changes; the quota's sentence counts what it holds."""
    engine, account = start_engine(tmp_path, arbiter), Account(4711)
    a, b = TenantName("4711/a"), TenantName("4711/b")
    for name in (a, b):
        engine.admit(name, part(300, 4_000), owner=account)
    before = engine.ledger.plans
    engine.check_resizes({a: part(600, 4_000)})
    with pytest.raises(NoRoom):
        engine.check_resizes({a: part(600, 4_000), b: part(600, 4_000)})
    engine.check_quota = AccountQuotas({"4711": [Quota("4711", milli=700)]}).require
    with pytest.raises(NoRoom, match=r"holds 0\.60 GPUs of 0\.70 it may have, 0\.20 more were asked"):
        engine.resize(a, part(500, 4_000))
    engine.check_quota = AccountQuotas({"4711": [Quota("4711", milli=400)]}).require
    with pytest.raises(NeverFits, match=r"holds 0\.60 GPUs of 0\.40 it may have, 0\.20 more were asked; ask for less"):
        engine.resize(a, part(500, 4_000))

    assert before == engine.ledger.plans


def test_an_account_has_so_many_shares_by_name(tmp_path, arbiter, monkeypatch):
    """One more is refused with the way out and leaves nothing; another account has its own."""
    monkeypatch.setattr(shares, "MAX_SHARES", 2)
    monkeypatch.setattr(
        SharedMachine, "shown_driver", lambda *_: SimpleNamespace(name="1", libcuda=Path("a"), libnvml=Path("b"))
    )
    monkeypatch.setattr(SharedMachine, "container_edits", lambda *_, **__: Edits())
    engine = start_engine(tmp_path, arbiter)
    made = shares.Shares(engine)
    for name, account in (("a", 4711), ("b", 4711), ("a", 4712)):
        made.create(ShareCall(name, GpuRequest(100)), Account(account))
    with pytest.raises(shares.ShareError, match="4711 may have 2 shares at most; delete some: aliquot share delete"):
        made.create(ShareCall("c", GpuRequest(100)), Account(4711))
    made.close()

    assert {"4711/a", "4711/b", "4712/a"} == set(engine.tenants) == {share.tenant for share in made.all()}


def test_an_unanswered_growth_keeps_its_memory_from_others_until_the_arbiter_is_looked_at(tmp_path, arbiter):
    """The arbiter may have given it, and the program may use it; then the tenant has its share from before."""
    engine = start_engine(tmp_path, arbiter)
    engine.admit(A, part(300, 4_000))
    arbiter.faults.append("unanswered")
    with pytest.raises(AliquotError):
        engine.resize(A, part(500, 10_000))
    assert (300, 10_000) == (engine.tenants[A].plan.slices[0].request_milli, promised(engine))
    with pytest.raises(NoRoom):
        engine.admit(B, part(500, 8_000))
    engine._reconcile(arbiter.now())
    engine.admit(B, part(500, 8_000))

    assert 12_000 == promised(engine)
    assert 4_000 == arbiter.tenants["a"].gpus[0].memory_mib


def test_the_next_engine_reserves_what_a_run_has_yet_to_free(tmp_path, arbiter):
    """A run that is taken over has its reduced memory, and what it holds beyond that is not given away."""
    first = start_engine(tmp_path, arbiter)
    tenant = first.admit(A, part(300, 2_000))
    owner = Account(os.geteuid(), pid=os.getpid())
    run = RunRecord.of(A, tenant.folder.directory, part(300, 2_000), tenant.plan, tenant.enforce, "", owner)
    arbiter.pending_mib["a"] = 3_000
    lock = GpuLock(Path(__file__), ())
    options: Any = {"policy": "binpack", "runs": [run]}
    engine = Engine(first.runtime, first.machine, lock, ArbiterOptions(), **options)
    assert (2_000, {"a": 3_000}, 5_000) == (
        engine.tenants[A].plan.slices[0].memory_mib,
        engine.pending_mib(),
        promised(engine),
    )
    arbiter.pending_mib.clear()

    assert ({}, 2_000) == (engine.pending_mib(), promised(engine))
