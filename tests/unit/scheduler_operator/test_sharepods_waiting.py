"""SharePods that wait: how often each is looked at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

from aliquot.kube.custom import SharePod
from aliquot.kube.objects import Pod
from aliquot.scheduler.operator.sharepods import LOOKS_PER_S, SharePods


class Cluster:
    """So many SharePods, each with a pod that has no node."""

    def __init__(self, count: int) -> None:
        owner = [{"kind": "SharePod", "apiVersion": "aliquot.dev/v1alpha1", "controller": True}]
        spec = {"gpu": {"request": "0.5"}, "template": {"spec": {"containers": [{"name": "main"}]}}}
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

    async def patch(self, *where: object, **more: object) -> None:
        """The status is taken."""

    def look(self, key: str) -> float | None:
        """Seconds until it wants to be looked at again."""
        return asyncio.run(self.looks.look(key))


def test_the_more_wait_the_less_often_each_is_looked_at():
    """One alone is looked at every two seconds; of thousands so many a second in all, until they wait no more."""
    cluster = Cluster(12 * LOOKS_PER_S)
    waits = [cluster.look(key) for key in cluster.sharepods]
    again = cluster.look("team/s0")
    for key in list(cluster.sharepods)[5:]:
        del cluster.sharepods[key]
        assert cluster.look(key) is None

    assert [2.0, 2.0] == waits[:2] and 12.0 == waits[-1] == again
    assert 2.0 == cluster.look("team/s0")
