"""The decider: what it remembers, what it asks the policy, and what it leaves alone."""

import numpy as np
import pytest
from scene import Scene, ask, node

from aliquot.placement import decide
from aliquot.placement.asks import Shape
from aliquot.placement.decide import NEVER
from aliquot.placement.policy import BasePolicy


class Told(BasePolicy):
    """A policy that prefers the node it was told, and writes down what it was asked."""

    name = "told"

    def __init__(self, stable: bool = True) -> None:
        self.stable = stable
        self.favourite = 0
        self.asked: list[list[int]] = []
        self.seen: list[Shape] = []
        self.left: list[Shape] = []

    def scores(self, shape, nodes):
        self.asked.append(nodes.tolist())
        return (nodes == self.favourite).astype(np.int64)

    def arrived(self, shape):
        self.seen.append(shape)

    def departed(self, shape):
        self.left.append(shape)


@pytest.fixture
def told() -> Told:
    return Told()


def test_only_nodes_that_changed_are_scored_again(told):
    """The second time a shape comes, the policy is asked about the node that took the first, and no other."""
    scene = Scene(*(node(f"n{i}", 4, rank=i) for i in range(5)), by=told)
    scene.place(300)
    scene.place(300)
    scene.place(500)

    assert [[0, 1, 2, 3, 4], [0], [0, 1, 2, 3, 4]] == told.asked


def test_scores_are_forgotten_when_the_policy_says_so(told):
    """A policy that learned something raises its epoch, and is asked anew about every node."""
    scene = Scene(node("a", 2), node("b", 2, rank=1), by=told)
    first = scene.where(300)
    told.favourite = 1
    unchanged = scene.where(300)
    told.epoch += 1

    assert (["a/0"], ["a/0"], ["b/0"]) == (first, unchanged, scene.where(300))


def test_a_policy_that_looks_at_all_candidates_is_asked_every_time():
    """One that is not stable is asked about all fitting nodes, in the order of ranks."""
    policy = Told(stable=False)
    scene = Scene(node("c", 1, rank=3), node("a", 1, rank=1), node("b", 1, rank=2), by=policy)
    scene.place(600)
    scene.place(600)

    assert [[1, 2, 0], [1, 2]] == policy.asked


def test_nodes_that_do_not_fit_are_never_scored(told):
    """The policy sees fitting nodes only, and the others have no score."""
    scene = Scene(node("a", 1), node("b", 2), node("c", 0), by=told)
    scores = scene.decider.scores(ask(2000))

    assert [[1]] == told.asked
    assert [NEVER, 0, NEVER] == scores.tolist()


def test_arrivals_and_departures_are_told_once(told):
    """A pod that is asked again is not counted again; what is placed or refused is counted alike."""
    scene = Scene(node("a", 1), by=told)
    scene.place(700, "t")
    scene.decide(700)
    scene.decider.decide(ask(700), again=True)
    scene.decider.release("t")
    scene.decider.release("nobody")

    assert ([Shape(0, 700)] * 2, [Shape(0, 700)]) == (told.seen, told.left)


def test_what_is_remembered_is_bounded(told, monkeypatch):
    """With room for two shapes the oldest is forgotten, and answers stay the same."""
    monkeypatch.setattr(decide, "MEMO_BYTES", 2 * 2 * 16)
    scene = Scene(node("a", 4), node("b", 4, rank=1), by=told)
    places = [scene.where(milli) for milli in (100, 200, 300, 400, 100, 200)]

    assert [["a/0"]] * 6 == places
    assert 6 == len(told.asked)


def test_a_node_chosen_by_others_is_obeyed(told):
    """On a node that somebody named the devices are chosen, or it is refused with its reason; no score is asked."""
    scene = Scene(node("a", 2), node("b", 1, rank=1), by=told)

    assert "b/0" == scene.decider.place_on(ask(300), "b").slices[0].gpu
    assert "node-few-gpus" == scene.decider.place_on(ask(2000), "b").reasons()[1].reason.code
    assert [] == told.asked


def test_an_empty_cluster_refuses():
    """Without nodes everything is refused."""
    assert () == Scene().decide(300).reasons()


def test_limits_and_memory_travel_in_the_slices():
    """Of 2.5 GPUs with a limit of 2.8 and 4 GiB: two whole ones with all memory, the rest with limit 0.8 and 4 GiB."""
    found = Scene(node("a", 3)).decide(2500, limit_milli=2800, gpu_mib=4096)

    assert [(1000, 1000, 16384), (1000, 1000, 16384), (500, 800, 4096)] == [
        (piece.request_milli, piece.limit_milli, piece.memory_mib) for piece in found.slices
    ]
