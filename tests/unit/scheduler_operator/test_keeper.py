"""Certificates in a Secret that replicas share, and in what the API server trusts."""

import asyncio
import base64
import copy
import datetime
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.kube.errors import AlreadyExists, Conflict
from aliquot.kube.objects import Resource
from aliquot.scheduler.admission.certificates import SECRET, CertificateBundle, CertificateManager

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
from webhook_config import configurations

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Truth:
    """An API server with Secrets and webhook configurations, which are written by compare and swap."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            made["kind"]: made | {"metadata": {"name": "aliquot", "resourceVersion": "1"}}
            for made in configurations("gpu")
        }
        self.version = 1
        self.writes = 0

    async def find(self, resource: Resource[Any], name: str, *, namespace: str = "") -> Any:
        """An object of the kind, or None."""
        await asyncio.sleep(0)
        found = self.objects.get(resource.kind)
        return msgspec.convert(copy.deepcopy(found), resource.type) if found else None

    async def create(self, resource: Resource[Any], body: dict[str, Any], *, namespace: str) -> None:
        if resource.kind in self.objects:
            raise AlreadyExists("it is there")
        self._put(resource.kind, body)

    async def patch(self, resource: Resource[Any], name: str, body: dict[str, Any], *, namespace: str = "") -> None:
        """A merge patch with a version."""
        held = self.objects[resource.kind]
        if body["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
            raise Conflict("another version")
        self._put(resource.kind, {**held, **body, "metadata": held["metadata"]})

    def _put(self, kind: str, document: dict[str, Any]) -> None:
        self.version += 1
        self.writes += 1
        self.objects[kind] = copy.deepcopy(document)
        self.objects[kind]["metadata"]["resourceVersion"] = str(self.version)

    def bundles(self) -> set[bytes]:
        """What the API server trusts."""
        hooks = [h for kind, made in self.objects.items() if kind != "Secret" for h in made["webhooks"]]
        return {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks}


class Clock:
    """A clock that the test turns."""

    now = BEGIN

    def wall(self) -> datetime.datetime:
        return self.now


def keeper(truth: Truth, clock: Clock, shown: list[CertificateBundle], *, leads: bool = True) -> CertificateManager:
    return CertificateManager(truth, "gpu", ("hook.gpu.svc",), lambda: leads, shown.append, clock=clock)  # type: ignore[arg-type]


def test_the_leader_makes_them_and_the_others_read_them():
    """A replica that does not lead writes nothing and waits; then both show the same, and the API server trusts it."""
    truth, clock = Truth(), Clock()
    first: list[CertificateBundle] = []
    second: list[CertificateBundle] = []
    follower = keeper(truth, clock, second, leads=False)
    assert not asyncio.run(follower.reconcile()) and 0 == truth.writes
    asyncio.run(keeper(truth, clock, first).reconcile())
    asyncio.run(follower.reconcile())

    assert first == second and {first[0].bundle} == truth.bundles()
    assert SECRET == truth.objects["Secret"]["metadata"]["name"]


def test_nothing_is_written_while_nothing_changes():
    """A second look reads only, and nobody is told again."""
    truth, clock = Truth(), Clock()
    shown: list[CertificateBundle] = []
    kept = keeper(truth, clock, shown)
    asyncio.run(kept.reconcile())
    writes = truth.writes
    asyncio.run(kept.reconcile())

    assert writes == truth.writes and 1 == len(shown)


def test_two_that_begin_at_once_agree():
    """Both think they lead: one of them makes the Secret, the other is told of a conflict and reads."""
    truth, clock = Truth(), Clock()
    shown: list[list[CertificateBundle]] = [[], []]
    both = [keeper(truth, clock, each) for each in shown]

    async def begin() -> list[Any]:
        return await asyncio.gather(*(one.reconcile() for one in both), return_exceptions=True)

    assert [Conflict] == [type(result) for result in asyncio.run(begin()) if result is not True]
    for one in both:
        asyncio.run(one.reconcile())
    assert shown[0][-1] == shown[1][-1]


@pytest.mark.parametrize("broken", ["", "no base64!", base64.b64encode(b"no certificate").decode()])
def test_a_broken_secret_is_mended(broken: str):
    """Whatever somebody wrote into it."""
    truth, clock = Truth(), Clock()
    shown: list[CertificateBundle] = []
    asyncio.run(keeper(truth, clock, shown).reconcile())
    truth.objects["Secret"]["data"]["tls.crt"] = broken
    asyncio.run(keeper(truth, clock, shown).reconcile())

    assert truth.objects["Secret"]["data"]["tls.crt"] != broken and {shown[-1].bundle} == truth.bundles()


def test_who_does_not_lead_waits_for_a_broken_secret_to_be_mended():
    """A replica never shows what cannot be served with, such as a key that is not the certificate's."""
    truth, clock = Truth(), Clock()
    shown: list[CertificateBundle] = []
    asyncio.run(keeper(truth, clock, shown).reconcile())
    data = truth.objects["Secret"]["data"]
    data["tls.key"] = data["ca.key"]
    seen: list[CertificateBundle] = []
    ready = asyncio.run(keeper(truth, clock, seen, leads=False).reconcile())

    assert (False, []) == (ready, seen)


def test_a_bundle_that_an_upgrade_wiped_is_put_back():
    """A chart writes its configuration anew, without a bundle: it is there again at the next look."""
    truth, clock = Truth(), Clock()
    shown: list[CertificateBundle] = []
    kept = keeper(truth, clock, shown)
    asyncio.run(kept.reconcile())
    for hook in truth.objects["ValidatingWebhookConfiguration"]["webhooks"]:
        del hook["clientConfig"]["caBundle"]
    asyncio.run(kept.reconcile())

    assert {shown[0].bundle} == truth.bundles() and 1 == len(shown)


def test_through_three_years_of_looks_nobody_is_cut_off():
    """Ten days between two looks: what is shown is always signed by what the API server trusts at that time."""
    from test_certs import trusted

    truth, clock = Truth(), Clock()
    shown: list[CertificateBundle] = []
    kept = keeper(truth, clock, shown)
    for _ in range(110):
        asyncio.run(kept.reconcile())
        (bundle,) = truth.bundles()
        assert trusted(bundle, shown[-1])
        clock.now += datetime.timedelta(days=10)
    assert len(shown) > 10
