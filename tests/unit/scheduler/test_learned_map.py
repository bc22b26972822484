"""What placement has learned, kept in the API server: by the leader alone, for the one after it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import asking
from structlog.testing import capture_logs

from aliquot.kube.errors import Forbidden, KubeError, Unreachable
from aliquot.kube.objects import Resource
from aliquot.placement.cluster import Cluster
from aliquot.placement.decide import Decider
from aliquot.placement.policies.aliquot import Aliquot
from aliquot.scheduler.leader import EVERY_S, KEY, NAME, ConfigMap, LearnedConfigMap


class Server:
    """One ConfigMap as an API server keeps it; `fault` is what its answers are instead."""

    def __init__(self) -> None:
        self.data: dict[str, str] | None = None
        self.fault: KubeError | None = None
        self.writes = 0

    async def find(self, resource: Resource[ConfigMap], name: str, *, namespace: str = "") -> ConfigMap | None:
        assert (NAME, "home") == (name, namespace)
        if self.fault:
            raise self.fault
        return None if self.data is None else ConfigMap(data=dict(self.data))

    async def apply(self, resource: Resource[ConfigMap], body: Mapping[str, Any], *, manager: str) -> ConfigMap:
        if self.fault:
            raise self.fault
        assert (NAME, "home") == (body["metadata"]["name"], body["metadata"]["namespace"])
        self.data = {**(self.data or {}), **body["data"]}
        self.writes += 1
        return ConfigMap(data=self.data)


class Clock:
    """Time stands still; the test says how many waits there are before the end, and what happens in each."""

    def __init__(self, waits: int) -> None:
        self.left = waits
        self.waited_s: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def sleep(self, wait_s: float) -> None:
        self.waited_s.append(wait_s)
        self.meanwhile()
        self.left -= 1
        if self.left < 0:
            raise asyncio.CancelledError


class Replica:
    """One scheduler's memory."""

    def __init__(self, server: Server, *, leads: bool = True, waits: int = 0) -> None:
        self.leads = leads
        self.policy = Aliquot()
        Decider(Cluster(), self.policy)
        self.clock = Clock(waits)
        self.learned = LearnedConfigMap(server, "home", self.policy, lambda: self.leads, self.clock)  # type: ignore[arg-type]

    def sees(self, *millis: int) -> Replica:
        for milli in millis:
            self.policy.arrived(asking(rest_milli=milli).shape)
        return self

    def keeps(self) -> None:
        asyncio.run(self.learned.keep())

    def takes_over(self) -> Replica:
        asyncio.run(self.learned.recall())
        return self

    @property
    def arrivals(self) -> int:
        return len(self.policy.dump()["recent"])


@pytest.fixture
def server() -> Server:
    return Server()


def test_the_next_leader_goes_on_from_it(server: Server):
    """What a leader has seen is known to the one that takes over."""
    Replica(server).sees(300, 500).keeps()

    assert 2 == Replica(server).takes_over().arrivals


def test_only_the_leader_writes(server: Server):
    """A replica that waits for its turn, or has just lost it, leaves the record alone."""
    follower = Replica(server, leads=False).sees(300)
    follower.keeps()

    assert 0 == server.writes


def test_nothing_is_written_that_is_there(server: Server):
    """Without arrivals there is no write, neither by the writer nor by who has just read it."""
    first = Replica(server).sees(300)
    first.keeps()
    first.keeps()
    second = Replica(server).takes_over()
    second.keeps()

    assert 1 == server.writes


def test_a_leader_that_comes_back_keeps_what_it_saw_since(server: Server):
    """Who wrote the record itself does not fall back to it after a short time without the lease."""
    replica = Replica(server).sees(300)
    replica.keeps()
    replica.sees(500)

    assert 2 == replica.takes_over().arrivals


def test_a_record_of_another_leader_counts(server: Server):
    """Who led before another did goes on from what the other wrote."""
    first = Replica(server).sees(300)
    first.keeps()
    Replica(server).takes_over().sees(500, 700).keeps()

    assert 3 == first.takes_over().arrivals


@pytest.mark.parametrize("text", ["", "noise", "{}\n{}\n"])
def test_a_record_that_can_not_be_read_is_a_cold_start(server: Server, text: str):
    """The scheduler leads all the same, and its next write mends the record."""
    server.data = {KEY: text}
    replica = Replica(server).takes_over().sees(300)
    replica.keeps()

    assert 1 == Replica(server).takes_over().arrivals


@pytest.mark.parametrize(
    "fault", [Forbidden("configmaps is forbidden"), Unreachable("no answer", may_have_happened=True)]
)
def test_an_api_server_that_says_no_is_told_once(server: Server, fault: KubeError):
    """A missing right or a lost server is one warning, and no reason not to lead."""
    server.fault = fault
    replica = Replica(server).sees(300)
    with capture_logs() as logged:
        replica.keeps()
        replica.sees(500)
        replica.keeps()
        replica.takes_over()

    assert ["warning", "warning"] == [line["log_level"] for line in logged]
    assert "configmap home/aliquot-learned cannot be written" in logged[0]["event"]
    assert "cannot be used" in logged[1]["event"]
    assert 2 == replica.arrivals


def test_the_installation_allows_what_it_takes():
    """The plain manifests let the scheduler make, read and patch this ConfigMap and no other."""
    manifests = Path(__file__).resolve().parents[3] / "deploy" / "manifests" / "aliquot.yaml"
    documents = yaml.safe_load_all(manifests.read_text())
    (role,) = (d for d in documents if d["kind"] == "Role" and d["metadata"]["name"] == "aliquot-scheduler")
    rules = [rule for rule in role["rules"] if "configmaps" in rule["resources"]]

    assert [["create"], ["get", "patch"]] == [rule["verbs"] for rule in rules]
    assert [None, [NAME]] == [rule.get("resourceNames") for rule in rules]


def test_it_is_written_every_few_minutes(server: Server):
    """Who has taken over writes at its own pace."""
    Replica(server).sees(100).keeps()
    replica = Replica(server, waits=2).takes_over()
    replica.clock.meanwhile = lambda: replica.sees(300)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(replica.learned.run())

    assert [EVERY_S] * 3 == replica.clock.waited_s
    assert 3 == server.writes
    assert 3 == Replica(server).takes_over().arrivals
