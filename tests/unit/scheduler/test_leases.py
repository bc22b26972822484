"""One leader at a time, whatever clocks, requests and candidates do; in virtual time."""

import contextlib
import datetime
import random
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kube.errors import AlreadyExists, Busy, Conflict, NotFound, Unreachable
from aliquot.kube.objects import Lease, Resource
from aliquot.scheduler.leader import Elector, Terms

TERMS = Terms(lasts_s=15, renew_within_s=10, every_s=2)


class Clock:
    """A clock of one candidate: `rate` makes it fast or slow, `off_s` is how wrong its date is."""

    def __init__(self, true: list[float], *, off_s: float = 0.0, start_s: float = 0.0) -> None:
        self.true = true
        self.off_s = off_s
        self.start_s = start_s

    def monotonic_s(self) -> float:
        return self.true[0] + self.start_s

    def wall(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(1_700_000_000 + self.true[0] + self.off_s, datetime.UTC)

    async def sleep(self, wait_s: float) -> None:
        raise AssertionError("steps are made by the test")


class Server:
    """One Lease and its version, as an API server keeps it; `faults` are done to the next writes."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.faults: list[str] = []
        self.writers: list[str] = []

    def _answer(self) -> Lease:
        assert self.lease is not None
        return msgspec.convert(self.lease, Lease)

    async def get(self, resource: Resource[Lease], name: str, *, namespace: str = "") -> Lease:
        if self.away:
            raise Unreachable("away", may_have_happened=False)
        if self.lease is None:
            raise NotFound("no lease")
        return self._answer()

    async def create(self, resource: Resource[Lease], body: Mapping[str, Any], *, namespace: str = "") -> Lease:
        if self.away:
            raise Unreachable("away", may_have_happened=False)
        if self.lease is not None:
            raise AlreadyExists("there is one")
        return self._store({"metadata": {"name": "x"}, "spec": dict(body["spec"])})

    async def patch(
        self, resource: Resource[Lease], name: str, body: Mapping[str, Any], *, namespace: str, repeat: bool
    ) -> Lease:
        if self.away:
            raise Unreachable("away", may_have_happened=False)
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("another version")
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            raise Busy("not now")
        made = self._store({**self.lease, "spec": {**self.lease["spec"], **body["spec"]}})
        if fault == "lost":
            raise Unreachable("the answer was lost", may_have_happened=True)
        return made

    def _store(self, lease: dict[str, Any]) -> Lease:
        self.version += 1
        self.lease = {**lease, "metadata": {"name": "x", "resourceVersion": str(self.version)}}
        self.writers.append(lease["spec"].get("holderIdentity") or "")
        return self._answer()


class Scene:
    """A server and candidates in one true time."""

    def __init__(self) -> None:
        self.true = [0.0]
        self.server = Server()
        self.told: list[tuple[str, bool]] = []

    def candidate(self, name: str, *, off_s: float = 0.0, start_s: float = 0.0) -> Elector:
        clock = Clock(self.true, off_s=off_s, start_s=start_s)
        return Elector(
            self.server,  # type: ignore[arg-type]
            "kube-system",
            "x",
            name,
            TERMS,
            clock,
            on_change=lambda leads: self.told.append((name, leads)),
        )

    def after(self, wait_s: float) -> None:
        self.true[0] += wait_s


def now(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing; the server here answers at once."""
    with contextlib.suppress(StopIteration):
        work.send(None)
        raise AssertionError("it waits")


def step(*electors: Elector) -> None:
    """One step of each, in order."""
    for elector in electors:
        now(elector.step())


@pytest.fixture
def scene() -> Scene:
    """A server and nobody yet."""
    return Scene()


def test_the_first_leads_and_stays(scene: Scene):
    """The first candidate takes the lease and keeps it while it renews it; the second waits."""
    a, b = scene.candidate("a"), scene.candidate("b")
    for _ in range(30):
        step(a, b)
        scene.after(2)

    assert [("a", True)] == scene.told
    assert (True, False) == (a.leads(), b.leads())
    assert "a" == b.holder


def test_a_dead_holder_is_followed_after_the_whole_duration(scene: Scene):
    """When the holder no longer renews, another takes the lease once it has seen no change for 15 s, not before."""
    a, b = scene.candidate("a"), scene.candidate("b")
    step(a, b)
    took = 0.0
    while not b.leads():
        scene.after(1)
        took += 1
        step(b)

    assert 15 == took
    assert 1 == scene.server.lease["spec"]["leaseTransitions"]  # type: ignore[index]


def test_a_stopped_holder_knows_that_it_no_longer_leads(scene: Scene):
    """After 10 s without a renewal the holder does not lead, though it heard from nobody: before 15 s are over."""
    a = scene.candidate("a")
    step(a)
    scene.after(9.9)
    before = a.leads()
    scene.after(0.2)

    assert (True, False) == (before, a.leads())


def test_dates_do_not_matter(scene: Scene):
    """Candidates whose dates are years apart neither steal the lease nor wait for ever."""
    a = scene.candidate("a", off_s=-3e8)
    b = scene.candidate("b", off_s=3e8, start_s=1e6)
    for _ in range(20):
        step(a, b)
        scene.after(2)
    stolen = b.leads()
    scene.after(16)
    step(b)

    assert (False, True) == (stolen, b.leads())


def test_a_renewal_whose_answer_is_lost_is_made_again(scene: Scene):
    """A lost answer to a renewal costs nothing: the next look finds the lease ours and renews it."""
    a, b = scene.candidate("a"), scene.candidate("b")
    step(a)
    for _ in range(6):
        scene.server.faults = ["lost"]
        scene.after(2)
        step(a, b)
        scene.after(2)
        step(a, b)

    assert [("a", True)] == scene.told


def test_a_cut_off_holder_stops_and_comes_back_as_a_candidate(scene: Scene):
    """Cut off from the server the holder stops leading; when it returns, the new holder stays."""
    a, b = scene.candidate("a"), scene.candidate("b")
    step(a, b)
    for _ in range(8):
        scene.after(2)
        scene.server.away = True
        step(a)
        scene.server.away = False
        step(b)
    step(a, b)

    assert [("a", True), ("a", False), ("b", True)] == scene.told


def test_resigning_lets_the_next_take_over_at_once(scene: Scene):
    """A holder that ends in order gives the lease back."""
    a, b = scene.candidate("a"), scene.candidate("b")
    step(a, b)
    now(a.resign())
    step(b)

    assert (False, True) == (a.leads(), b.leads())


def test_who_slept_through_the_lead_of_another_begins_anew(scene: Scene):
    """A holder that was stopped while another led and resigned is told that its lead ended before it leads again."""
    a, b = scene.candidate("a"), scene.candidate("b")
    step(a, b)
    scene.after(15)
    step(b)
    now(b.resign())
    step(a)

    assert [("a", True), ("b", True), ("b", False), ("a", False), ("a", True)] == scene.told


def test_times_must_be_in_order():
    """Terms whose times could let two lead at once are refused."""
    with pytest.raises(ValueError, match="every_s < renew_within_s < lasts_s"):
        Terms(lasts_s=10, renew_within_s=10, every_s=2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_never_two_leaders(seed: int):
    """However candidates stop, are cut off, lose answers and differ in their dates: at no moment do two lead."""
    chance = random.Random(seed)
    scene = Scene()
    electors = [scene.candidate(n, off_s=chance.uniform(-1e6, 1e6), start_s=chance.uniform(0, 1e6)) for n in "abcd"]
    for _ in range(150):
        scene.after(chance.choice([0.0, 0.1, 1.0, 2.0, 5.0, 9.0, 14.0]))
        assert 1 >= sum(e.leads() for e in electors)
        chance.shuffle(electors)
        for elector in electors[: chance.randint(0, 4)]:
            scene.server.away = chance.random() < 0.2
            scene.server.faults = [chance.choice(["", "", "lost", "refused"])]
            if chance.random() < 0.05:
                now(elector.resign())
            else:
                step(elector)
            assert 1 >= sum(e.leads() for e in electors)
