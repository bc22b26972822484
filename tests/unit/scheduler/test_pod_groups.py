"""A pod group is placed whole or not at all, also where shares run out in the middle of it."""

import asyncio

import pytest
from control_scene import Asking

from aliquot.kube.errors import NotFound
from aliquot.scheduler.groups import ASSUMED_S, PodGroups


class KubeScheduler(Asking):
    """Places groups as kube-scheduler does: it asks the filter for every pod, then binds all or none."""

    def __init__(self, *gpus: int) -> None:
        super().__init__(*gpus)
        self.needed: dict[str, int] = {}
        self.extender.groups.needed = self.needs

    async def needs(self, group: str) -> int:
        """What the API server has of a group."""
        return self.needed.get(group, 0)

    def pod(self, name: str, percent: int, group: str = "") -> str:
        """A pod that asks for so much of a GPU."""
        return self.create(name, percent, **({"schedulingGroup": {"podGroupName": group}} if group else {}))

    def group(self, count: int, percent: int = 60, name: str = "g") -> list[str]:
        return [self.pod(f"{name}{i}", percent, name) for i in range(count)]

    def asked(self, pod: str, *nodes: str) -> list[str]:
        """The nodes that the filter leaves of these, or of all."""
        return self.ask(pod, *nodes)[0]

    def bound(self, *pods: str, at_least: int = 0) -> list[str]:
        """One round over a group: the names of those that it bound."""
        chosen = {pod: found[0] for pod in pods if (found := self.asked(pod))}
        if len(chosen) < (at_least or len(pods)):
            return []
        assert {""} == {self.bind(pod, node) for pod, node in chosen.items()}
        self.catch_up()
        return list(chosen)


def test_a_group_that_fits_is_placed_whole():
    """Each of its pods is answered the node where its share is kept until the bind."""
    cluster = KubeScheduler(1, 1)

    assert ["g0", "g1"] == cluster.bound(*cluster.group(2))
    assert {"GPU-n0-0": (600, 9830), "GPU-n1-0": (600, 9830)} == cluster.scene.reserved() == cluster.truth.used()


@pytest.mark.parametrize("gpus", [(2,), (1, 1)])
def test_of_a_group_that_does_not_fit_no_pod_is_placed(gpus: tuple[int, ...]):
    """The third pod finds no share beside those that the first two were promised, however often it is tried."""
    cluster = KubeScheduler(*gpus)
    pods = cluster.group(3)

    assert [[], [], []] == [cluster.bound(*pods) for _ in range(3)]
    assert 0 == cluster.truth.binds


def test_a_group_that_failed_keeps_nothing_from_the_next_pod():
    """Its shares are free as soon as kube-scheduler asks about another pod or group."""
    cluster = KubeScheduler(2)
    failed, other, alone = cluster.group(3), cluster.group(2, name="h"), cluster.pod("alone", 30)
    cluster.bound(*failed)
    bound = cluster.bound(*other)
    cluster.bound(*failed)

    assert ["h0", "h1"] == bound
    assert ["n0"] == cluster.asked(alone)
    assert {"GPU-n0-0": (600, 9830), "GPU-n0-1": (600, 9830)} == cluster.scene.reserved()


def test_a_group_whose_first_pod_finds_no_node_keeps_nothing_from_the_next_pod():
    """What the pods after it were promised goes when another pod is asked about."""
    cluster = KubeScheduler(1)
    pods = [cluster.pod("large", 200, "g"), cluster.pod("small", 60, "g")]
    cluster.bound(*pods)

    assert ["n0"] == cluster.asked(cluster.pod("other", 60))


def test_a_group_may_start_with_as_many_pods_as_it_needs():
    """The one for which there was no share waits, the others are bound."""
    cluster = KubeScheduler(2)

    assert ["g0", "g1"] == cluster.bound(*cluster.group(3), at_least=2)


def test_a_group_that_has_as_many_as_it_needs_keeps_them_until_their_bind():
    """Who is asked about before its pods are bound gets none of their shares, though one of them found no node."""
    cluster = KubeScheduler(2)
    cluster.needed["default/g"] = 2
    pods, other = cluster.group(3), cluster.pod("other", 60)
    chosen = [cluster.asked(pod) for pod in pods]
    between = cluster.asked(other)
    bound = [cluster.bind(pod, "n0") for pod in pods[:2]]

    assert ([["n0"], ["n0"], []], [], ["", ""]) == (chosen, between, bound)


def test_a_group_that_lacks_a_pod_it_needs_keeps_nothing_from_the_next():
    """Two of three pods that are all needed are as good as none."""
    cluster = KubeScheduler(2)
    cluster.needed["default/g"] = 3
    cluster.bound(*cluster.group(3))

    assert ["n0"] == cluster.asked(cluster.pod("other", 60))


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha2"])
def test_how_many_pods_a_group_needs_is_read_in_the_version_that_the_cluster_has(version: str):
    """Versions that the API server does not know are not asked again; a group that cannot be read needs all."""
    asked: list[str] = []

    class Server:
        async def request(self, method: str, path: str, *, timeout_s: float) -> bytes:
            asked.append(path.split("/")[3])
            if version not in path:
                raise NotFound("the server could not find the requested resource")
            return b'{"spec":{"schedulingPolicy":{"gang":{"minCount":4}}}}'

    groups = PodGroups(Server())  # type: ignore[arg-type]

    assert [4, 4] == [asyncio.run(groups.needed("team/train")) for _ in range(2)]
    assert version == asked[-1] and 1 == asked.count("v1")


def test_a_large_pod_that_finds_no_node_gives_none_away_to_those_after_it():
    """Shares that were promised in a round stay promised to its end, also after one of the pods has failed."""
    cluster = KubeScheduler(2)
    pods = [cluster.pod("a", 60, "g"), cluster.pod("b", 60, "g"), cluster.pod("c", 100, "g"), cluster.pod("d", 60, "g")]

    assert [] == cluster.bound(*pods, at_least=3)


def test_a_group_that_fails_for_other_reasons_gives_its_shares_back_in_time():
    """A pod that kube-scheduler asked for and never bound keeps its share for a while only."""
    cluster = KubeScheduler(1)
    (first,), other = cluster.group(1), cluster.pod("other", 60)
    cluster.asked(first)
    during = cluster.asked(other)
    cluster.scene.clock.now_s += ASSUMED_S + 1
    after = cluster.asked(other)

    assert ([], ["n0"]) == (during, after)
    assert {} == cluster.scene.reserved()


def test_a_group_that_is_given_up_again_and_again_starves_nobody():
    """From its second try on, what it is promised goes as soon as another pod is asked about."""
    cluster = KubeScheduler(1)
    (first,), other = cluster.group(1), cluster.pod("other", 60)
    cluster.asked(first)
    once = cluster.asked(other)
    cluster.asked(first)
    again = cluster.asked(other)

    assert ([], ["n0"]) == (once, again)


def test_a_pod_of_a_group_that_is_tried_again_alone_leaves_the_others_their_shares():
    """Those that are bound hold what their plans say, whatever becomes of the one whose bind failed."""
    cluster = KubeScheduler(2)
    pods = cluster.group(2)
    chosen = [cluster.asked(pod) for pod in pods]
    assert "" == cluster.bind(pods[0], chosen[0][0])
    cluster.truth.faults = ["lost before"]
    assert "" != cluster.bind(pods[1], chosen[1][0])

    assert ["n0"] == cluster.asked(pods[1])
    assert "" == cluster.bind(pods[1], "n0")
    cluster.catch_up()
    assert cluster.truth.used() == cluster.scene.reserved()


def test_a_deleted_pod_of_a_group_keeps_nothing():
    """Its share is free when the watch shows that it has gone."""
    cluster = KubeScheduler(1)
    (first,), other = cluster.group(1), cluster.pod("other", 60)
    cluster.asked(first)
    cluster.truth.delete("g0")
    cluster.catch_up()

    assert ["n0"] == cluster.asked(other)


def test_a_pod_of_a_group_moves_when_its_node_is_not_asked_about_any_more():
    """What else kube-scheduler finds against a node counts: the share is taken where the pod may go now."""
    cluster = KubeScheduler(1, 1)
    (first,) = cluster.group(1)
    (chosen,) = cluster.asked(first)
    other = "n1" if chosen == "n0" else "n0"

    assert [other] == cluster.asked(first, other)
    assert {f"GPU-{other}-0": (600, 9830)} == cluster.scene.reserved()


def test_a_group_of_some_hundred_pods_is_placed_at_once():
    """Sixteen pods of a quarter on each of twenty nodes of four GPUs."""
    cluster = KubeScheduler(*[4] * 20)
    pods = cluster.group(320, 25)

    assert 320 == len(cluster.bound(*pods))
