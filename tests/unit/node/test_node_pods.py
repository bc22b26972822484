"""The node's pods: by the watch, and for a while by a question that went past it."""

import asyncio
from typing import cast

import msgspec
import pytest

from aliquot.kube.api import Api
from aliquot.kube.objects import Meta
from aliquot.kube.reflector import Change
from aliquot.node import pods as module
from aliquot.node.pods import FETCHED_S, NodePod, NodePods

POD = NodePod(metadata=Meta(name="a", namespace="ns", uid="uid-a"))


class Server:
    """An API server that has the pod; `meanwhile` happens while it answers."""

    def __init__(self) -> None:
        self.pods: NodePods | None = None
        self.meanwhile: list[Change[NodePod]] = []

    async def request(self, *_: object, **__: object) -> bytes:
        for change in self.meanwhile:
            assert self.pods is not None
            self.pods._changed(change)
        return msgspec.json.encode({"items": [POD]})


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def pods(server: Server) -> NodePods:
    server.pods = NodePods(cast("Api", server), "node-1", lambda _: None)
    return server.pods


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still at its last entry."""
    moments = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: moments[-1])
    return moments


def test_a_pod_that_was_asked_for_is_known_before_the_watch_brings_it(pods: NodePods, now_s: list[float]):
    """And goes on being known once it has."""
    asyncio.run(pods.refresh())
    assert (["uid-a"], True) == (list(pods.keys()), pods.lives("uid-a"))

    pods._changed(Change("added", POD))
    now_s.append(1000 + 2 * FETCHED_S)

    assert pods.lives("uid-a")
    pods._changed(Change("deleted", POD, POD))
    assert not pods.lives("uid-a")


def test_a_pod_that_ended_while_it_was_asked_for_is_not_known_for_ever(
    pods: NodePods, server: Server, now_s: list[float]
):
    """The watch told its end before the answer came and will not tell it again: its tenant would never be left."""
    server.meanwhile = [Change("added", POD), Change("deleted", POD, POD)]
    asyncio.run(pods.refresh())

    now_s.append(1000 + 2 * FETCHED_S)

    assert (None, [], {}) == (pods.get("uid-a"), list(pods), pods.keys())
