"""Groups that kube-scheduler does not know: coscheduling's, JobSets, LeaderWorkerSets. All pods have a share before one
of them has its node."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from control_scene import Asking

from aliquot.kube.errors import NotFound, Unreachable
from aliquot.kube.objects import Pod
from aliquot.scheduler.groups import HOLD_S, GroupSizes, held_group_of

GANG = {"scheduling.x-k8s.io/pod-group": "g"}


class Taking(Asking):
    """kube-scheduler over groups of which the API server says how many pods they need."""

    def __init__(self, *gpus: int, needed: int = 0) -> None:
        super().__init__(*gpus)
        self.needed: int | Exception = needed
        self.held.needed = self.needs

    async def needs(self, group: str) -> int:
        """What the API server has of a group."""
        if isinstance(self.needed, Exception):
            raise self.needed
        return self.needed

    def group(self, count: int, name: str = "g") -> list[str]:
        """Pods of the group, of which two do not share a GPU."""
        return [self.create(f"{name}{number}", 60, labels=GANG) for number in range(count)]


def test_a_group_that_fits_is_placed_across_nodes():
    """Its shares are kept from others from the first pod's node on."""
    cluster = Taking(1, 1, needed=2)
    names = cluster.group(2)
    first = cluster.place(names[0])
    between = cluster.place(cluster.create("other", 60))

    assert ({"n0", "n1"}, "") == ({first, cluster.place(names[1])}, between)
    assert cluster.truth.used() == cluster.scene.reserved()


def test_of_a_group_that_does_not_fit_no_pod_is_placed():
    """It keeps nothing from others, and the reason is that of the pod without a place, for which nobody is evicted."""
    cluster = Taking(1, 1, needed=3)
    answers = [cluster.ask(name) for name in cluster.group(3)]

    assert [[]] * 3 == [nodes for nodes, _ in answers]
    assert "is left out: 2 of 3 pods of the group have room now; another waits: asks 0.60 GPU" in answers[0][1]
    assert {} == cluster.scene.reserved() and cluster.place(cluster.create("other", 60))


def test_a_group_waits_for_its_pods():
    """None is placed before so many are there as are needed."""
    cluster = Taking(2, needed=2)
    (first,) = cluster.group(1)
    alone = cluster.ask(first)
    (second,) = cluster.group(1, "h")

    assert ([], "is left out: 2 pods of its group are needed at once, 1 are there") == alone
    assert ["n0", "n0"] == [cluster.place(first), cluster.place(second)]


@pytest.mark.parametrize(
    ("gpus", "needed", "nodes"),
    [
        (2, 2, ["n0", "n0", ""]),  # where two are enough the third waits as any pod does
        (1, 0, ["n0", ""]),  # without its PodGroup, a label is a label
    ],
)
def test_as_many_as_are_needed_may_start(gpus: int, needed: int, nodes: list[str]):
    """The pods of a group are placed one by one beyond those that it needs."""
    cluster = Taking(gpus, needed=needed)

    assert nodes == [cluster.place(name) for name in cluster.group(len(nodes))]


def test_a_pod_that_takes_the_place_of_a_failed_one_is_placed_alone():
    """The others of its group run already."""
    cluster = Taking(2, needed=2)
    names = cluster.group(2)
    for name in names:
        cluster.place(name)
    cluster.truth.delete(names[0])
    (again,) = cluster.group(1, "h")

    assert "n0" == cluster.place(again)


def test_a_group_whose_size_cannot_be_read_waits():
    """It could be half placed otherwise."""
    cluster = Taking(2)
    cluster.needed = Unreachable("the API server does not answer", may_have_happened=False)
    nodes, why = cluster.ask(*cluster.group(1))

    assert not nodes and "how many pods its group needs is not known now: the API server" in why


def test_what_is_not_bound_in_time_is_given_up():
    """Shares of pods that kube-scheduler leaves lying are free again."""
    cluster = Taking(2, needed=2)
    names = cluster.group(2)
    cluster.place(names[0])
    cluster.scene.clock.now_s += HOLD_S + 1
    cluster.held.settle()

    assert cluster.truth.used() == cluster.scene.reserved()


def test_a_pod_whose_node_kube_scheduler_rules_out_goes_where_it_may():
    """The rest of its group keeps what it has."""
    cluster = Taking(1, 1, 1, needed=2)
    names = cluster.group(2)
    first = cluster.place(names[0])
    (held,), _ = cluster.ask(names[1])
    (other,) = {"n0", "n1", "n2"} - {first, held}
    cluster.ask(names[1], other)
    nodes, _ = cluster.ask(names[1], other)

    assert [other] == nodes
    assert "" == cluster.bind(names[1], other)


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"taints": [{"key": "no", "effect": "NoSchedule"}]}, False),
        ({}, True),
    ],
)
def test_nodes_that_kubernetes_closes_do_not_count(spec: dict[str, Any], fits: bool):
    """A group is not promised a GPU that its pod cannot reach."""
    cluster = Taking(1, 1, needed=2)
    cluster.scene.nodes[1].spec = msgspec.convert(spec, type(cluster.scene.nodes[1].spec))

    assert fits == bool(cluster.ask(cluster.group(2)[0])[0])


def test_the_processors_that_the_group_itself_takes_count():
    """Two pods of 3 CPUs do not fit on one node of 4, though each does."""
    cluster = Taking(2, needed=2)
    offered = {"cpu": "4", "aliquot.dev/gpu-percent": "200"}
    cluster.scene.nodes[0].status = msgspec.convert({"allocatable": offered}, type(cluster.scene.nodes[0].status))
    names = []
    for number in range(2):
        cluster.truth.create(f"c{number}", {"aliquot.dev/gpu-percent": 60, "cpu": "3"}, labels=GANG)
        names.append(f"c{number}")
    cluster.catch_up()

    assert [] == cluster.ask(names[0])[0]


def a_pod(labels: dict[str, str], **spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"namespace": "team", "labels": labels}, "spec": spec}, Pod)


class Server:
    """An API server whose objects have this spec, None for one that does not know their kind."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *, timeout_s: float) -> bytes:
        self.asked.append(path)
        if self.spec is None:
            raise NotFound("no such kind")
        return json.dumps({"spec": self.spec}).encode()


@pytest.mark.parametrize(
    ("labels", "path", "spec", "size"),
    [
        (GANG, "scheduling.x-k8s.io/v1alpha1/namespaces/team/podgroups/g", {"minMember": 3}, 3),
        (
            {"jobset.sigs.k8s.io/jobset-name": "j"},
            "jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/j",
            {
                "replicatedJobs": [
                    {"template": {"spec": {"parallelism": 4, "completions": 2}}, "replicas": 3},
                    {"template": {"spec": {}}},
                ]
            },
            7,
        ),
        (
            {"jobset.sigs.k8s.io/jobset-name": "j"},
            "jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/j",
            {"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": []},
            0,
        ),
        (
            {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "1"},
            "leaderworkerset.x-k8s.io/v1/namespaces/team/leaderworkersets/l",
            {"leaderWorkerTemplate": {"size": 5}},
            5,
        ),
        (
            {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"},
            "leaderworkerset.x-k8s.io/v1/namespaces/team/leaderworkersets/l",
            {"leaderWorkerTemplate": {"size": 5}, "startupPolicy": "LeaderReady"},
            0,
        ),
    ],
)
def test_the_size_of_a_group_is_read_from_its_object(labels: dict[str, str], path: str, spec: Any, size: int):
    """Once in some seconds; those whose pods start one after another are no groups."""
    api: Any = Server(spec)
    sizes, group = GroupSizes(api, lambda: 0.0), held_group_of(a_pod(labels))

    assert [size, size] == [asyncio.run(sizes.needed(group)) for _ in range(2)]
    assert [f"/apis/{path}"] == api.asked


def test_a_group_without_an_object_is_none():
    """Nor is one that kube-scheduler binds together by itself."""
    api: Any = Server(None)

    assert 0 == asyncio.run(GroupSizes(api, lambda: 0.0).needed("team/podgroups/g"))
    assert "" == held_group_of(a_pod(GANG, schedulingGroup={"podGroupName": "native"}))
