"""SharePods that wait: how often each is looked at, and which of their generations is in force."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from aliquot.kube.custom import SharePod
from aliquot.kube.objects import Pod
from aliquot.kube.sharepods import spec_digest
from aliquot.scheduler.operator.sharepods import LOOKS_PER_S, SharePods


class Cluster:
    """So many SharePods, each with a pod that has no node."""

    def __init__(self, count: int) -> None:
        owner = [{"kind": "SharePod", "apiVersion": "aliquot.dev/v1alpha1", "controller": True}]
        spec = {"gpu": {"request": "0.5"}, "template": {"spec": {"containers": [{"name": "main"}]}}}
        self.status: dict[str, Any] = {}
        self.sharepods, self.pods = dict[str, SharePod](), dict[str, Pod]()
        for number in range(count):
            meta = {"name": f"s{number}", "namespace": "team", "uid": f"u{number}"}
            owners = [{**owner[0], "name": meta["name"], "uid": meta["uid"]}]
            self.sharepods[f"team/s{number}"] = msgspec.convert({"metadata": meta, "spec": spec}, SharePod)
            pod = {"metadata": {**meta, "uid": f"p{number}", "ownerReferences": owners}, "spec": {"containers": []}}
            self.pods[f"team/s{number}"] = msgspec.convert(pod, Pod)
        pool: Any = SimpleNamespace(owner=SimpleNamespace(coexists=False))
        nothing: Any = None
        api: Any = self
        self.looks = SharePods(api, nothing, pool, self.sharepods.get, self.pods.get, nothing)

    async def patch(self, kind: object, name: str, body: dict[str, Any], **more: object) -> None:
        """The status is taken."""
        self.status = body["status"]

    def reconcile(self, key: str) -> float | None:
        """Seconds until it wants to be looked at again."""
        return asyncio.run(self.looks.reconcile(key))


def test_the_more_wait_the_less_often_each_is_looked_at():
    """One alone is looked at every two seconds; of thousands so many a second in all, until they wait no more."""
    cluster = Cluster(12 * LOOKS_PER_S)
    waits = [cluster.reconcile(key) for key in cluster.sharepods]
    again = cluster.reconcile("team/s0")
    for key in list(cluster.sharepods)[5:]:
        del cluster.sharepods[key]
        assert cluster.reconcile(key) is None

    assert [2.0, 2.0] == waits[:2] and 12.0 == waits[-1] == again
    assert 2.0 == cluster.reconcile("team/s0")


@pytest.mark.parametrize(("gpu", "observed"), [({"request": "0.50"}, 3), ({"request": "0.5", "limit": "0.6"}, 1)])
def test_another_spelling_of_what_a_pod_was_made_of_is_in_force(gpu: dict[str, str], observed: int):
    """The generation of equal amounts is observed, and no condition tells of a change; other amounts are a change."""
    cluster = Cluster(1)
    sharepod = cluster.sharepods["team/s0"]
    notes = cluster.pods["team/s0"].metadata.annotations
    notes |= {"aliquot.dev/sharepod-generation": "1", "aliquot.dev/sharepod-spec": spec_digest(sharepod)}
    sharepod.metadata.generation = 3
    sharepod.spec.gpu = msgspec.convert(gpu, type(sharepod.spec.gpu))
    cluster.reconcile("team/s0")

    assert observed == cluster.status["observedGeneration"]
    assert ("is not in force" in cluster.status["conditions"][0]["message"]) == (observed == 1)


@pytest.mark.parametrize(("deleted", "observed"), [(None, 1), ("2026-01-01T00:00:00Z", 3)])
def test_the_observed_generation_is_the_one_in_force(deleted: str | None, observed: int):
    """An edit that came after the pod was made is not observed, and the message says so; a deletion is no edit."""
    cluster = Cluster(1)
    meta = cluster.sharepods["team/s0"].metadata
    meta.generation, meta.deletion_timestamp = 3, deleted
    cluster.pods["team/s0"].metadata.annotations["aliquot.dev/sharepod-generation"] = "1"
    cluster.reconcile("team/s0")
    scheduled = cluster.status["conditions"][0]

    assert observed == cluster.status["observedGeneration"] == scheduled["observedGeneration"]
    assert ("since generation 1 is not in force" in scheduled["message"]) == (deleted is None)
