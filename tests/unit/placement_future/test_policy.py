"""The default policy as a whole: what it promises to whoever asks."""

import json
import random

import ledger
import pytest
from asking import asking
from conftest import Feed, cluster_of

from aliquot.model.requests import Device
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster, NodeSpec, Placement
from aliquot.placement.decide import Decider
from aliquot.placement.policies.aliquot import Aliquot, BadMemory
from aliquot.topology import parse_topo

TWO_PAIRS = """\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity
GPU0\t X \tPIX\tSYS\tSYS\t0-7
GPU1\tPIX\t X \tSYS\tSYS\t0-7
GPU2\tSYS\tSYS\t X \tPIX\t8-15
GPU3\tSYS\tSYS\tPIX\t X \t8-15
"""
SOME = (
    asking(rest_milli=470, cpu_milli=6000),
    asking(rest_milli=160, cpu_milli=2000),
    asking(rest_milli=370, cpu_milli=4000),
    asking(rest_milli=810, cpu_milli=8000),
    asking(whole=1, cpu_milli=8000),
    asking(whole=2, cpu_milli=16000),
    asking(cpu_milli=4000),
    asking(whole=1, rest_milli=250, cpu_milli=8000, models=("V100",)),
)


def pods(count: int, seed: int) -> list[Ask]:
    """Random pods of a few shapes."""
    rng = random.Random(seed)
    return [rng.choice(SOME) for _ in range(count)]


def mixed() -> Cluster:
    """Nodes of several kinds."""
    kinds = [("T4", 2, 32000), ("V100", 8, 96000), ("V100", 4, 48000), ("A10", 1, 16000)]
    return cluster_of(*(kinds[i % 4] for i in range(12)))


def run(
    policy: Aliquot, arrivals: list[Ask], idle_us: int = 0, leave: bool = True, *, rest_every: int = 1
) -> list[Placement | None]:
    """Where each pod went; when `leave`, the oldest go as soon as one does not fit."""
    cluster = mixed()
    decider = Decider(cluster, policy)
    placed: list[Placement | None] = []
    for number, ask in enumerate(arrivals):
        found = decider.decide(ask)
        placed.append(found if isinstance(found, Placement) else None)
        if isinstance(found, Placement):
            cluster.reserve(f"{number}", found, ask)
        elif leave:
            for tenant in list(cluster.tenants)[:5]:
                decider.release(tenant)
        if idle_us and number % rest_every == 0:
            policy.idle(idle_us)
    ledger.check(cluster)
    return placed


class Watched(Aliquot):
    """Counts how often it learned on the way of a decision."""

    inline = 0

    def _learn(self) -> None:
        self.inline += 1
        super()._learn()


def test_one_history_has_one_answer():
    """The same arrivals and idle slices give the same placements."""
    arrivals = pods(300, 3)

    assert run(Aliquot(), arrivals, idle_us=300) == run(Aliquot(), arrivals, idle_us=300)


def test_learning_between_arrivals_leaves_none_for_the_decision():
    """With idle slices nothing is learned on the way of a decision after the first; without them it still is."""
    rested, busy = Watched(), Watched()
    run(rested, pods(600, 4), idle_us=2000)
    run(busy, pods(600, 4))

    assert 2 >= rested.inline
    assert busy.inline > 5


def test_a_burst_of_arrivals_does_not_bring_learning_back():
    """Arrivals that come some at a time between two idle slices are decided without learning too."""
    bursts = Watched()
    run(bursts, pods(600, 4), idle_us=20_000, rest_every=6)

    assert 4 >= bursts.inline


def test_who_stops_calling_idle_still_learns():
    """After a long time without an idle slice what is due is learned on the way of a decision."""
    policy = Watched()
    run(policy, pods(100, 4), idle_us=2000)
    before = policy.inline
    for ask in pods(1100, 5):
        policy.arrived(ask.shape)

    assert before < policy.inline


def test_idle_ends():
    """Slices are bounded, and after enough of them nothing is due."""
    policy = Aliquot()
    run(policy, pods(33, 5))
    slices = 0
    while policy.idle(50):
        slices += 1

    assert slices < 1000


def test_fractions_share_a_device_when_whole_ones_are_wanted():
    """Where three of four pods want a whole GPU, a second 0.47 joins the first and leaves the other GPU untouched."""
    cluster = cluster_of(("T4", 1, 96000), ("T4", 1, 96000))
    policy = Aliquot()
    feed = Feed(Decider(cluster, policy))
    for number in range(80):
        policy.arrived(asking(rest_milli=470).shape if number % 4 == 0 else asking(whole=1).shape)
    feed(asking(rest_milli=470))
    feed(asking(rest_milli=470))

    assert {60, 1000} == set(cluster.free_milli[:, 0].tolist())


def test_whole_nodes_are_kept_for_those_who_need_them():
    """Small pods leave the one node alone on which a pod of eight GPUs fits, while there is room elsewhere."""
    cluster = cluster_of(("V100", 8, 96000), *[("V100", 1, 12000)] * 8)
    policy = Aliquot()
    decider = Decider(cluster, policy)
    for number in range(40):
        policy.arrived(asking(whole=1, cpu_milli=8000).shape if number % 8 else asking(whole=8, cpu_milli=64000).shape)
    feed = Feed(decider)
    for _ in range(8):
        feed(asking(whole=1, cpu_milli=8000))

    assert feed(asking(whole=8, cpu_milli=64000)) is not None


def test_scarce_models_are_kept_for_those_who_need_them():
    """Pods that run anywhere leave the few T4 to pods that insist on them."""
    cluster = cluster_of(("T4", 1, 16000), *[("V100", 1, 16000)] * 3)
    policy = Aliquot()
    decider = Decider(cluster, policy)
    for _ in range(20):
        policy.arrived(asking(whole=1, cpu_milli=4000, models=("T4",)).shape)
        policy.arrived(asking(whole=1, cpu_milli=4000).shape)
    feed = Feed(decider)
    for _ in range(3):
        feed(asking(whole=1, cpu_milli=4000))

    assert feed(asking(whole=1, cpu_milli=4000, models=("T4",))) is not None


def test_pods_of_several_gpus_get_linked_ones():
    """Two GPUs are a PIX pair, and a fraction opens the pair that is broken already."""
    topology = parse_topo(TWO_PAIRS)
    spec = cluster_of(("V100", 4, 96000)).spec(0)
    cluster = Cluster([NodeSpec("n0", spec.gpus, 96000, 1 << 20, topology)])
    feed = Feed(Decider(cluster, Aliquot()))
    feed(asking(whole=1))
    feed(asking(rest_milli=600))
    pair = feed(asking(whole=2))

    assert pair is not None
    assert ["GPU-0-2", "GPU-0-3"] == [piece.gpu for piece in pair.slices]


def test_nodes_come_and_go():
    """A policy that runs takes in new nodes and loses old ones, and what it had learned stays."""
    cluster = cluster_of(("T4", 1, 16000))
    policy = Aliquot()
    feed = Feed(Decider(cluster, policy))
    for _ in range(20):
        feed(asking(rest_milli=300, cpu_milli=1000))
    cluster.add_node(cluster_of(("V100", 8, 96000), ("V100", 8, 96000)).spec(1))
    arrivals = policy.dump()["recent"]

    assert feed(asking(whole=8, cpu_milli=8000)) is not None
    cluster.remove_node("n1")
    assert feed(asking(whole=8, cpu_milli=8000)) is None
    assert len(arrivals) + 2 == len(policy.dump()["recent"])


def test_what_was_learned_outlives_a_restart():
    """A policy that loads what another has learned decides like it."""
    cluster = mixed()
    old = Aliquot()
    feed = Feed(Decider(cluster, old))
    for ask in pods(64, 7):
        feed(ask)
    new = Aliquot()
    decider = Decider(cluster, new)
    new.load(json.loads(json.dumps(old.dump())))
    old._learn()

    found = [[each.decide(ask, again=True) for ask in SOME] for each in (feed.decider, decider)]
    placed = [[one for one in some if isinstance(one, Placement)] for some in found]

    assert len(placed[0]) > 3
    assert placed[0] == placed[1]


@pytest.mark.parametrize("record", [{}, {"version": 99}, {"version": 1, "shapes": [{}], "recent": [3]}, {"version": 1}])
def test_a_broken_record_is_refused_in_one_sentence(record: dict[str, object]):
    """What cannot be read is refused whole, and the policy goes on as it was."""
    policy = Aliquot()
    feed = Feed(Decider(mixed(), policy))
    feed(SOME[0])
    before = policy.dump()

    with pytest.raises(BadMemory, match="it is not a history of arrivals"):
        policy.load(record)
    assert before == policy.dump()


def test_a_machine_without_gpus_and_an_empty_cluster():
    """CPU-only pods go to machines without GPUs, which keeps the others' CPU; an empty cluster refuses."""
    cluster = cluster_of(("V100", 8, 16000), ("", 0, 16000))
    feed = Feed(Decider(cluster, Aliquot()))
    for _ in range(20):
        feed.decider.policy.arrived(asking(whole=1, cpu_milli=2000).shape)
    found = feed(asking(cpu_milli=8000))

    assert found is not None
    assert "n1" == found.node
    assert Feed(Decider(Cluster(), Aliquot()))(SOME[0]) is None


def test_memory_counts_like_compute():
    """A device whose memory is taken is no place for the future, so memory-hungry pods go together."""
    cluster = cluster_of(("T4", 1, 96000), ("T4", 1, 96000), device_mib=16000)
    policy = Aliquot()
    feed = Feed(Decider(cluster, policy))
    for _ in range(30):
        policy.arrived(asking(rest_milli=100, gpu_mib=8000, cpu_milli=1000).shape)
        policy.arrived(asking(whole=1, cpu_milli=1000).shape)
    feed(asking(rest_milli=100, gpu_mib=8000, cpu_milli=1000))
    feed(asking(rest_milli=100, gpu_mib=8000, cpu_milli=1000))

    assert feed(asking(whole=1, cpu_milli=1000)) is not None


def test_absurd_requests_do_no_harm():
    """A request beyond any machine is refused and learned from like any other."""
    feed = Feed(Decider(mixed(), Aliquot()))
    absurd = asking(whole=2**40, cpu_milli=2**50, memory_mib=2**50)

    assert [None] * 20 == [feed(absurd) for _ in range(20)]
    assert feed(SOME[0]) is not None


def test_a_node_of_unequal_devices_keeps_one_for_the_rest():
    """Two whole GPUs and 0.3 with 30,000 MiB of another fit where one device alone has so much; models are mixed."""
    sizes = {"GPU-a": ("A10", 23028), "GPU-b": ("A100", 81920), "GPU-c": ("A10", 23028), "GPU-d": ("V100", 16384)}
    gpus = tuple(Device(g, uuid, model, mib) for g, (uuid, (model, mib)) in enumerate(sizes.items()))
    cluster = Cluster([NodeSpec("mixed", gpus, 64000, 65536)])

    found = Decider(cluster, Aliquot()).decide(asking(whole=2, rest_milli=300, gpu_mib=30000, mixed=True))

    assert isinstance(found, Placement)
    assert found.slices[-1].gpu == "GPU-b"
