"""Whose a name is, what an account may hold, and which of those that wait is next."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.quantities import Memory
from aliquot.model.requests import Device, GpuRequest, Plan
from aliquot.placement.machine import MachineLedger, NeverFits, NoRoom
from aliquot.standalone.accounts import Account, NotYours
from aliquot.standalone.engine import Engine
from aliquot.standalone.explaining import explanations
from aliquot.standalone.quota import AccountQuotas, BadQuotaFile, OverQuota
from aliquot.standalone.server import PASSED_S, RunQueue
from aliquot.standalone.wire import ExplainCall, LeaseCall

ANN, BOB, ROOT = Account(61001, 7000), Account(61002, 7000), Account(0)
GIB = 1024
T = TypeVar("T")


def ledger() -> MachineLedger:
    """Two GPUs of 16 GiB."""
    return MachineLedger([Device(g, GpuUuid(f"GPU-{g}"), "Tesla V100", 16 * GIB) for g in range(2)])


class Shares:
    """A machine on which accounts hold shares."""

    def __init__(self, text: str, folder: Path) -> None:
        (folder / "quota.yaml").write_text(text)
        self.quotas = AccountQuotas.read(folder / "quota.yaml")
        self.ledger = ledger()
        self.owners: list[Account] = []

    def take(self, owner: Account, milli: int) -> None:
        """Give an account a share, unless its quota forbids it."""
        request = GpuRequest(milli)
        plan = self.ledger.plan(request)
        self.quotas.require(self.ledger, owner, self.owners, plan, request, Plan(()))
        self.ledger.reserve(TenantName(f"{owner.name}/{len(self.owners)}"), plan, request)
        self.owners.append(owner)


def test_names_of_an_account_are_in_its_namespace():
    """A run or SharePod without a namespace is in the account's own; one that names another stays there."""
    assert ("61001/train", "61001/train") == (ANN.own_run("train"), ANN.own_run("61001/train"))
    assert "61001/61002/train" == ANN.own_run("61002/train")
    assert ("61001/nb", "61002/nb") == (ANN.own_pod("default/nb"), ANN.own_pod("61002/nb"))
    assert ("train", "default/nb") == (ROOT.own_run("train"), ROOT.own_pod("default/nb"))


def test_an_account_may_use_its_own_and_root_everything():
    """Another account is told whose it is."""
    ANN.require(ANN, "it")
    ROOT.require(ANN, "it")
    with pytest.raises(NotYours, match="the run belongs to 61001; 61001 and root can do that"):
        BOB.require(ANN, "the run")


def test_a_quota_says_whose_it_is_what_is_held_and_what_would_fit(tmp_path):
    """Beyond its bound an account is refused; others, and root, are not."""
    shares = Shares('accounts: {"61001": {limits: [{gpus: 1}]}}', tmp_path)
    shares.take(ANN, 600)
    shares.take(BOB, 400)
    shares.take(ROOT, 100)
    with pytest.raises(OverQuota) as refused:
        shares.take(ANN, 500)

    sentence = 'account "61001" holds 0.60 GPUs of 1.00 it may have, 0.50 more were asked; 0.40 more would fit'
    assert str(refused.value).startswith(sentence)
    assert issubclass(OverQuota, NoRoom)


def test_the_members_of_a_group_share_its_quota(tmp_path):
    """What one member holds counts for all; who is no member is not bound."""
    shares = Shares('groups: {"7000": {limits: [{gpus: 1}]}}', tmp_path)
    shares.take(ANN, 700)
    shares.take(Account(61003, 7003), 600)
    with pytest.raises(OverQuota, match=r'group "7000" holds 0.70 GPUs of 1.00 it may have'):
        shares.take(BOB, 400)


def test_a_request_beyond_the_whole_quota_never_fits(tmp_path):
    """It is refused for good, so that a run does not wait for it."""
    shares = Shares('accounts: {"*": {limits: [{gpus: 500m, memory: 4Gi}]}}', tmp_path)
    with pytest.raises(NeverFits, match=r'account "61001" holds 0.00 GPUs of 0.50 it may have'):
        shares.take(ANN, 600)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accounts: {nobody-of-that-name: {limits: [{gpus: 1}]}}", 'there is no account "nobody-of-that-name"'),
        ("users: {}", "a file of quotas has accounts: and groups:"),
        ("accounts: {'7': {limit: [{gpus: 1}]}}", 'accounts.7: a quota has no field "limit"; it knows limits, forbid'),
        (
            "accounts: {'7': {limits: [{gpus: 1, memroy: 4Gi}]}}",
            'limits.* has no field "memroy"; it knows model, gpus,',
        ),
        ("accounts: {'7': {limits: [{gpus: 1}], forbids: [exclusion]}}", 'no field "forbids"; it knows limits, forbid'),
        ("groups: {'7': {forbid: [nothing]}}", '"nothing" is not known; write affinity, antiAffinity or exclusion'),
        ("accounts: {'7': {limits: [{model: H100}]}}", "accounts.7: gpus and memory are both left out"),
        ("accounts: {'7': {}}", "accounts.7 bounds nothing"),
        ("accounts: {'7': [1]}", "accounts.7: the document is a list; write a mapping"),
        ("accounts: {'7': {limits: [{gpus: some}]}}", "accounts.7: "),
        ("accounts: [1]", "accounts is no map"),
    ],
)
def test_a_wrong_file_of_quotas_is_refused_in_one_sentence(tmp_path, text, said):
    """It names the entry."""
    (tmp_path / "quota.yaml").write_text(text)
    with pytest.raises(BadQuotaFile, match=said) as refused:
        AccountQuotas.read(tmp_path / "quota.yaml")
    assert "\n" not in str(refused.value)


class OneAtATime:
    """An engine that has room for one more run at each look."""

    def __init__(self) -> None:
        self.held = {ANN.uid: 0.2, BOB.uid: 0.1}
        self.admitted: list[str] = []
        self.room = 1

    def dominant_shares(self) -> dict[int, float]:
        """What each account holds."""
        return self.held

    def admit(self, name: str, request: GpuRequest, *, owner: Account, **_: Any) -> object:
        """Let one in."""
        if self.room == 0:
            raise NoRoom("full")
        self.room -= 1
        self.held[owner.uid] = self.held.get(owner.uid, 0.0) + 0.15
        self.admitted.append(name)
        return object()

    def place_waiting(self) -> None:
        """No SharePod waits."""


def test_of_the_accounts_that_wait_the_one_that_holds_the_least_is_next():
    """A place goes to the account with the smaller share, inside an account to who came first."""
    engine: Any = OneAtATime()
    queue = RunQueue(engine, engine)
    for owner, name in ((ANN, "a1"), (ANN, "a2"), (BOB, "b1"), (BOB, "b2")):
        queue.enter(LeaseCall(name, GpuRequest(100, memory=Memory(mib=100))), owner)
    for _ in range(4):
        engine.room = 1
        queue.serve()

    assert ["b1", "a1", "b2", "a2"] == engine.admitted


class Busy:
    """An engine over a ledger that BOB has filled with runs of 0.1."""

    def __init__(self) -> None:
        self.ledger = ledger()
        self.owners: dict[TenantName, Account] = {}
        for number in range(20):
            self.admit(f"b{number}", SMALL, owner=BOB)

    def admit(self, name: str, request: GpuRequest, *, owner: Account, **_: Any) -> object:
        """As an engine."""
        self.ledger.reserve(TenantName(name), self.ledger.plan(request), request)
        self.owners[TenantName(name)] = owner
        return object()

    def look(self, read: Any) -> Any:
        """As an engine."""
        return read(self.ledger)

    def dominant_shares(self) -> dict[int, float]:
        """What each account holds."""
        return {owner.uid: float([*self.owners.values()].count(owner)) for owner in (ANN, BOB)}

    def place_waiting(self) -> None:
        """No SharePod waits."""


SMALL = GpuRequest(100, memory=Memory(mib=100))


@pytest.mark.parametrize("gpu", ["", "1"])
def test_smaller_runs_pass_a_larger_one_by_for_a_while_only(gpu: str):
    """One that holds less than those behind it gets its room, though whatever ends is asked for at once again."""
    engine: Any = Busy()
    queue = RunQueue(engine, engine)
    large = queue.enter(LeaseCall("a", GpuRequest(500, memory=Memory(mib=100), gpu=gpu)), ANN)

    def one_ends(number: int) -> None:
        old = sorted(name for name in engine.owners if name.startswith("b"))[number * 7 % 13]
        engine.ledger.release(old)
        del engine.owners[old]
        queue.enter(LeaseCall(f"b{20 + number}", SMALL), BOB)
        queue.serve()

    for number in range(30):
        one_ends(number)
    assert large.tenant is None
    large.came_s -= PASSED_S
    for number in range(30, 60):
        one_ends(number)
    assert large.tenant is not None


class Explained:
    """An engine whose account ann holds 0.30 of the 0.50 GPUs that it may have, and whose queue has a run of it."""

    check_new = Engine.check_new

    def __init__(self, folder: Path) -> None:
        self.shares = Shares('accounts: {"61001": {limits: [{gpus: 500m}]}}', folder)
        self.shares.take(ANN, 300)
        self.check_quota = self.shares.quotas.require
        self.ledger = self.shares.ledger
        self.tenants = {TenantName("61001/0"): SimpleNamespace(owner=ANN)}
        self.parked: dict[TenantName, str] = {}

    def look(self, read: Callable[[MachineLedger], T]) -> T:
        """Give the ledger to a reader."""
        return read(self.shares.ledger)

    def measure(self) -> None:
        """No arbiter answers."""

    def check_context(self, request: GpuRequest) -> None:
        """Every context fits."""

    def lines(self, call: ExplainCall, caller: Account) -> list[str]:
        """What an account is told, which has SharePods none of which has room, and a run that waits."""
        pod = SimpleNamespace(name="61001/nb", phase="Pending")
        pods: Any = SimpleNamespace(
            facts=lambda *_: [pod], request_of={"61001/nb": GpuRequest(400)}.get, owner_of=lambda _: ANN
        )
        engine: Any = self
        queue = [("61001/run-7", GpuRequest(250), ANN)]
        return [line for one in explanations(engine, pods, call, caller, queue).explanations for line in one.lines]


HOLDS = 'account "61001" holds 0.30 GPUs of 0.50 it may have, 0.{} more were asked; 0.20 more would fit'


def test_a_request_beyond_the_quota_is_explained_by_the_quota(tmp_path):
    """`explain` says what a run is told; another account's request fits, and one beyond the whole quota never does."""
    engine = Explained(tmp_path)

    (line,) = engine.lines(ExplainCall("", GpuRequest(400)), ANN)
    assert line.startswith(f"the request waits: {HOLDS.format(40)}")
    (line,) = engine.lines(ExplainCall("", GpuRequest(600)), ANN)
    assert "0.60 more were asked" in line and line.endswith("ask for less")
    assert "quota" not in str(engine.lines(ExplainCall("", GpuRequest(600)), BOB))
    assert "holds" not in engine.lines(ExplainCall("", GpuRequest(600)), BOB)[0]


def test_all_that_waits_is_explained_runs_of_the_queue_among_it(tmp_path):
    """Without a name SharePods and runs are explained; by its name a run is."""
    engine = Explained(tmp_path)
    pod, run = engine.lines(ExplainCall(), BOB)

    assert pod.startswith(f"61001/nb waits: {HOLDS.format(40)}")
    assert run.startswith(f"61001/run-7 waits: {HOLDS.format(25)}")
    assert [run] == engine.lines(ExplainCall("61001/run-7"), BOB)
    assert [pod] == engine.lines(ExplainCall("61001/nb"), BOB)
