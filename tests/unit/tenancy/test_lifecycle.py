"""One tenant from its reservation to its place at the arbiter and back, and what goes wrong on the way."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tenants import FakeArbiter, FakeDisk, fake_hook, faulty, whole_folders

from aliquot.arbiter.client import ArbiterError, NoArbiter
from aliquot.arbiter.records import TenantGpu, TenantRecord
from aliquot.driver.injection import TenantConf, TenantFolder
from aliquot.placement.cluster import LedgerError
from aliquot.tenancy.lifecycle import Tenancy, TenantRemoved

DEADLINE_S = 10.0
UUID = "GPU-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class Lodger:
    """A tenant that is nothing more than one."""

    key: str
    record: TenantRecord
    folder: TenantFolder


@dataclass
class Scene:
    """Tenants with an arbiter, a disk and a ledger that takes each key once."""

    folder: Path
    arbiter: FakeArbiter
    disk: FakeDisk
    reserved: set[str] = field(default_factory=set)

    def tenancy(self, **options: Any) -> Tenancy[Lodger]:
        """Those of a program that starts now; `running` ones are put back by the test."""
        self.arbiter.crashed = False
        self.reserved = set()
        hook = fake_hook(self.folder)
        return Tenancy(self.arbiter.connect, self.reserved.discard, hook=hook, **options)

    def lodger(self, key: str, *, name: str = "", milli: int = 500) -> Lodger:
        """A tenant with a part of the only GPU."""
        directory = self.folder / "tenants" / key
        conf = TenantConf(name or key, directory / "socket", self.folder / "libcuda.so.1", self.folder / "libnvml.so.1")
        record = TenantRecord(name or key, str(conf.socket), [TenantGpu(UUID, milli, 1000, 1024)])
        return Lodger(key, record, TenantFolder(directory, conf))

    def reserve(self, key: str) -> None:
        if key in self.reserved:
            raise LedgerError(f'tenant "{key}" has a reservation')
        self.reserved.add(key)

    def provision(self, tenancy: Tenancy[Lodger], tenant: Lodger, **how: Any) -> None:
        tenancy.provision(tenant, lambda: self.reserve(tenant.key), **how)

    def left(self) -> tuple[set[str], set[str], set[str]]:
        """What is reserved, which folders there are, and whom the arbiter knows."""
        return self.reserved, whole_folders(self.folder / "tenants"), set(self.arbiter.tenants)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A machine without tenants."""
    (tmp_path / "tenants").mkdir()
    arbiter = FakeArbiter()
    with faulty(arbiter) as disk:
        yield Scene(tmp_path, arbiter, disk)


def test_a_tenant_has_a_reservation_a_folder_and_a_place_at_the_arbiter_until_it_is_removed(scene: Scene):
    """All three are there after it was provisioned, and none of them after it was removed."""
    tenancy = scene.tenancy()

    scene.provision(tenancy, scene.lodger("a"))
    assert ({"a"}, {"a"}, {"a"}) == scene.left()
    assert tenancy.remove("a") and not tenancy.remove("a")

    assert (set(), set(), set()) == scene.left()
    assert {} == tenancy.tenants


def test_no_folder_is_made_while_the_arbiter_is_away(scene: Scene):
    """A caller that tries again and again meanwhile writes nothing."""
    tenancy = scene.tenancy()
    scene.arbiter.faults += ["away"]
    scene.disk.faults += ["crash before"]

    with pytest.raises(NoArbiter):
        scene.provision(tenancy, scene.lodger("a"))

    assert (set(), set(), set()) == scene.left()


def test_a_newcomer_waits_for_an_arbiter_that_is_restarted(scene: Scene):
    """A program that gives patience provisions across a restart, and the new arbiter knows the tenant once."""
    tenancy = scene.tenancy(patience_s=DEADLINE_S)
    scene.arbiter.faults += ["away", "away", "", "away", "forgets"]

    scene.provision(tenancy, scene.lodger("a"))

    assert ({"a"}, {"a"}, {"a"}) == scene.left()


def test_tenants_are_registered_again_with_a_new_arbiter(scene: Scene):
    """One that has forgotten them is given all tenants, also those behind one that it refuses."""
    tenancy = scene.tenancy()
    for key in "abc":
        scene.provision(tenancy, scene.lodger(key))
    scene.arbiter.restart(forget=True)
    scene.arbiter.faults += ["", "refuses"]

    with pytest.raises(ArbiterError, match="the arbiter does not take a: No space left"):
        tenancy.reconcile(scene.arbiter.now())
    assert {"b", "c"} == set(scene.arbiter.tenants)
    tenancy.reconcile(scene.arbiter.now())

    assert {"a", "b", "c"} == set(scene.arbiter.tenants)


def test_an_arbiter_with_the_same_tenants_is_not_asked_again(scene: Scene):
    """While a status says what it said before, nothing is sent."""
    tenancy = scene.tenancy()
    scene.provision(tenancy, scene.lodger("a"))
    tenancy.reconcile(scene.arbiter.now())
    scene.arbiter.calls.clear()

    tenancy.reconcile(scene.arbiter.now())

    assert [] == scene.arbiter.calls


def test_a_name_that_an_earlier_tenant_had_is_taken_over(scene: Scene):
    """An arbiter that has missed the end of the earlier one takes the later one in its place."""
    tenancy = scene.tenancy()
    scene.provision(tenancy, scene.lodger("old", name="n"))
    scene.arbiter.faults += ["away"]
    tenancy.remove("old")
    assert {"n"} == set(scene.arbiter.tenants)

    scene.provision(tenancy, scene.lodger("new", name="n", milli=300))

    assert [300] == [gpu.request_milli for gpu in scene.arbiter.tenants["n"].gpus]
    assert ({"new"}, {"new"}, {"n"}) == scene.left()


def test_a_name_that_another_tenant_has_is_refused(scene: Scene):
    """The one that has it keeps its place; nothing of the other is left."""
    tenancy = scene.tenancy()
    scene.provision(tenancy, scene.lodger("first", name="n"))

    with pytest.raises(ArbiterError, match="tenant 'n' exists with another share; remove it first"):
        scene.provision(tenancy, scene.lodger("second", name="n"))

    assert ({"first"}, {"first"}, {"n"}) == scene.left()


def test_a_tenant_that_runs_keeps_its_folder_and_is_registered_later(scene: Scene):
    """A program that starts again while the arbiter is away takes over what runs, and registers it when it can."""
    scene.provision(scene.tenancy(), scene.lodger("a"), purpose="driver 1")
    before = (scene.folder / "tenants/a/made").stat()
    scene.arbiter.restart(forget=True)
    tenancy = scene.tenancy(recovering=True)
    scene.arbiter.faults += ["away"]

    scene.provision(tenancy, scene.lodger("a"), purpose="driver 2", running=True)
    assert ["a"] == list(tenancy.tenants)
    tenancy.reconcile(scene.arbiter.now())

    assert ({"a"}, {"a"}, {"a"}) == scene.left()
    assert before == (scene.folder / "tenants/a/made").stat()


def test_a_folder_that_was_made_for_something_else_is_made_anew_with_its_socket(scene: Scene):
    """A tenant that starts with another purpose gets a folder for it, in which the arbiter listens."""
    tenancy = scene.tenancy()
    scene.provision(tenancy, scene.lodger("a"), purpose="driver 1")
    (scene.folder / "tenants/a/old").touch()

    tenancy.renew(scene.lodger("a"), purpose="driver 2")

    assert ["bound", "lib", "made", "real", "socket", "tenant.conf"] == sorted(
        path.name for path in (scene.folder / "tenants/a").iterdir()
    )


def test_a_tenant_whose_renewal_fails_keeps_its_reservation(scene: Scene):
    """It is still there, and the next renewal succeeds."""
    tenancy = scene.tenancy()
    scene.provision(tenancy, scene.lodger("a"), purpose="driver 1")
    scene.disk.faults += ["full"]

    with pytest.raises(OSError, match="No space left on device"):
        tenancy.renew(scene.lodger("a"), purpose="driver 2")
    assert ({"a"}, ["a"]) == (scene.reserved, list(tenancy.tenants))
    tenancy.renew(scene.lodger("a"), purpose="driver 2")

    assert ({"a"}, {"a"}, {"a"}) == scene.left()


def test_strangers_are_left_alone_until_the_first_sweep(scene: Scene):
    """What an earlier program of this machine had may run; only when all of it was taken over does the rest go."""
    earlier = scene.tenancy()
    scene.provision(earlier, scene.lodger("a"))
    scene.provision(earlier, scene.lodger("b"))
    tenancy = scene.tenancy(recovering=True)
    tenancy.reconcile(scene.arbiter.now())
    assert {"a", "b"} == set(scene.arbiter.tenants)
    scene.provision(tenancy, scene.lodger("a"), running=True)

    assert ["b", "b"] == tenancy.sweep(scene.folder / "tenants")

    assert ({"a"}, {"a"}, {"a"}) == scene.left()


class Thread(threading.Thread):
    """Runs something, and keeps what it raised."""

    def __init__(self, work: Any) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error

    def end(self) -> Exception | None:
        """What it raised, once it has ended."""
        self.join(DEADLINE_S)
        assert not self.is_alive()
        return self.error


def coming(tenancy: Tenancy[Lodger], key: str) -> bool:
    """Whether a tenant is seen to wait for the arbiter, soon."""
    until_s = time.monotonic() + DEADLINE_S
    while [tenant.key for tenant in tenancy.coming] != [key] and time.monotonic() < until_s:
        time.sleep(0.001)
    return [tenant.key for tenant in tenancy.coming] == [key]


def test_a_tenant_that_is_removed_while_it_waits_for_the_arbiter_is_gone(scene: Scene):
    """Its provisioning ends with that, and nothing of it is left."""
    tenancy = scene.tenancy(patience_s=60)
    scene.arbiter.faults += ["away"] * 100_000
    provisioning = Thread(lambda: scene.provision(tenancy, scene.lodger("a")))
    assert coming(tenancy, "a")

    assert tenancy.remove("a")
    scene.arbiter.faults.clear()

    assert isinstance(provisioning.end(), TenantRemoved)
    assert (set(), set(), set()) == scene.left()
    assert {} == tenancy.tenants


def test_others_are_served_while_one_waits_for_the_arbiter(scene: Scene):
    """A newcomer that waits holds up neither a removal nor the registration of the others; it is registered then."""
    tenancy = scene.tenancy(patience_s=60)
    scene.provision(tenancy, scene.lodger("b"))
    scene.provision(tenancy, scene.lodger("c"))
    scene.arbiter.faults += ["away"] * 100_000
    provisioning = Thread(lambda: scene.provision(tenancy, scene.lodger("a")))
    assert coming(tenancy, "a")

    assert tenancy.remove("b")
    scene.arbiter.faults.clear()
    scene.arbiter.restart(forget=True)
    tenancy.reconcile(scene.arbiter.now())

    assert None is provisioning.end()
    assert ({"a", "c"}, {"a", "c"}, {"a", "c"}) == scene.left()


def test_of_two_with_one_name_at_once_one_is_provisioned(scene: Scene):
    """The ledger refuses the second, whether the first waits for the arbiter or not, and the first is not disturbed."""
    tenancy = scene.tenancy(patience_s=60)
    scene.arbiter.faults += ["away"] * 100_000
    provisioning = Thread(lambda: scene.provision(tenancy, scene.lodger("a")))
    assert coming(tenancy, "a")

    with pytest.raises(LedgerError):
        scene.provision(tenancy, scene.lodger("a"))
    scene.arbiter.faults.clear()

    assert None is provisioning.end()
    assert ({"a"}, {"a"}, {"a"}) == scene.left()


def test_a_running_tenant_with_another_share_at_the_arbiter_is_resized(scene):
    """Where a crash has left the arbiter with another share of a tenant whose programs run, they are not ended."""
    tenant = scene.lodger("a", milli=500)
    scene.provision(scene.tenancy(), tenant)
    scene.arbiter.tenants["a"] = scene.lodger("a", milli=700).record
    scene.arbiter.calls.clear()
    scene.provision(scene.tenancy(end_programs=True), tenant, running=True)

    assert tenant.record == scene.arbiter.tenants["a"]
    assert ["add a", "status", "resize a"] == scene.arbiter.calls


def test_an_arbiter_that_did_not_answer_a_resize_gets_the_share_from_before(scene):
    """It may have done it; once the program has looked at it, it has the share that the program goes by."""
    tenancy, before, after = scene.tenancy(), scene.lodger("a", milli=500), scene.lodger("a", milli=700)
    scene.provision(tenancy, before)
    scene.arbiter.faults.append("unanswered")
    with pytest.raises(NoArbiter):
        tenancy.resize(after)
    assert (after.record, before) == (scene.arbiter.tenants["a"], tenancy.tenants["a"])
    scene.arbiter.calls.clear()
    tenancy.reconcile(scene.arbiter.now())

    assert before.record == scene.arbiter.tenants["a"]
    assert "remove a" not in scene.arbiter.calls
