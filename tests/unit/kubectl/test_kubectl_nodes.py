"""`kubectl aliquot nodes`: the nodes to add for pods that wait, of which type and how many."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from kit import objects
from test_kubectl_claims import claim
from test_kubectl_claims import pod as claiming_pod
from test_kubectl_words import placed, pod, scene

from aliquot.cli.kubectl.nodes import INSTANCE_TYPE, lines_of, needed, types_of
from aliquot.cli.kubectl.scene import ClusterScene
from aliquot.kube.objects import Node, Pod
from aliquot.model.errors import UserError
from aliquot.placement.entries import NodeSpec
from aliquot.standalone.machine import imagined_ledger

MIB = 16384
SMALL = {"small": "v100"}
BOTH = {"big": "h100x8", "small": "v100"}


@cache
def node_type(spec: str) -> NodeSpec:
    """A node with these GPUs."""
    return imagined_ledger(spec).spec


def added(*pods: Pod, types: dict[str, str] = SMALL, nodes: list[Node] | None = None) -> dict[str, Any]:
    """The facts for pods that wait in a cluster, without nodes where none are given."""
    return needed(
        ClusterScene(nodes or [], list(pods), [], [], [], "lab"),
        {name: node_type(spec) for name, spec in types.items()},
    )


def share(name: str, milli: int, mib: int = 0, **spec: Any) -> Pod:
    """A pod that waits for so much of one GPU, or for several."""
    return pod(name, milli // 10, notes={"aliquot.dev/gpu-memory": f"{mib}Mi"} if mib else {}, **spec)


@pytest.mark.parametrize(
    ("millis", "types", "nodes"),
    [
        ([300, 300, 300], SMALL, {"small": 1}),
        ([600, 600, 300], SMALL, {"small": 2}),
        ([300, 300, 300], BOTH, {"small": 1}),
        ([8000, 300], BOTH, {"big": 1, "small": 1}),
        ([1000] * 9, BOTH, {"big": 1, "small": 1}),
        ([2000, 2000], {"four": "v100x4"}, {"four": 1}),
    ],
)
def test_a_cluster_without_nodes_is_told_the_type_and_how_many(
    millis: list[int], types: dict[str, str], nodes: dict[str, int]
):
    """The fewest GPUs, then the fewest nodes, hold the shares that wait."""
    facts = added(*(share(f"p{n}", milli) for n, milli in enumerate(millis)), types=types)

    assert nodes == facts["add"]
    assert len(millis) == sum(len(node["pods"]) for node in facts["nodes"]) == facts["waiting"]


def test_pods_that_have_room_need_no_node():
    """What nodes of the cluster have free is used first, but on those that Kubernetes does not allow for the pod."""
    pods = [placed("here", "a", 0, 600), share("small", 300), share("kept-off", 300, nodeSelector={"zone": "b"})]
    offers = {"allocatable": {"aliquot.dev/gpu-percent": "100", "aliquot.dev/gpu-memory": "16Gi"}}
    facts = added(*pods, nodes=[objects.node("a", 1, status=offers)])

    assert {"a": ["lab/small"]} == facts["room_now"]
    assert [{"type": "small", "pods": ["lab/kept-off"]}] == facts["nodes"]


def test_claims_count_as_shares_do():
    """A pod that waits for a claim needs a node as well; one behind a gate of others does not."""
    wants = claim("c", compute="30", memory="4Gi")
    gated = share("gated", 300, schedulingGates=[{"name": "example.com/later"}])
    waiting = ClusterScene([], [claiming_pod("p", "c"), gated], [], [], [], "lab", claims=[wants])

    assert [{"type": "small", "pods": ["lab/p"]}] == needed(waiting, {"small": node_type("v100")})["nodes"]


def test_the_answer_in_words():
    """The answer first, then what fits nowhere and why."""
    facts = added(*(share(f"p{n}", 300) for n in range(3)), share("huge", 2000))

    assert [
        "4 pods wait: add 1 x small",
        'no node helps lab/huge: container "c0": node small/new-0 has 1 GPU, 2 were asked',
    ] == list(lines_of(facts))
    assert ["no pod waits for a share"] == list(lines_of(added()))


def test_types_are_those_of_the_cluster_unless_given():
    """Without --type those of nodes with GPUs count; where there is none, the answer says what to write."""
    labelled = objects.node("a", 2, metadata={"labels": {INSTANCE_TYPE: "g5.xlarge"}})

    assert {"g5.xlarge": 2} == {kind: len(spec.gpus) for kind, spec in types_of(scene(nodes=[labelled])).items()}
    with pytest.raises(UserError, match="--type big=h100x8"):
        types_of(scene())


def fewest(shares: list[tuple[int, int]], gpus: int) -> int:
    """The fewest nodes of so many GPUs that hold shares of (milli-GPU, MiB), a whole number of GPUs among them, by
    trying all ways."""

    def fits(nodes: list[list[tuple[int, int]]], left: list[tuple[int, int]]) -> bool:
        if not left:
            return True
        (milli, mib), tried = left[0], set[tuple[tuple[tuple[int, int], ...], ...]]()
        for node in nodes:
            for first in range(gpus):
                taken = range(first, first + max(1, milli // 1000))
                part = min(milli, 1000)
                before = [*node]
                if taken.stop > gpus or any(node[g][0] < part or node[g][1] < mib for g in taken):
                    continue
                for g in taken:
                    node[g] = (node[g][0] - part, node[g][1] - mib)
                node.sort()
                step = tuple(before), tuple(node)  # the same from equal nodes is the same
                if step not in tried and fits(nodes, left[1:]):
                    return True
                tried.add(step)
                node[:] = before
        return False

    largest_first, count = sorted(shares, reverse=True), 1
    while not fits([[(1000, MIB)] * gpus for _ in range(count)], largest_first):
        count += 1
    return count


@pytest.mark.timeout(600)
def test_a_thousand_mixes_need_hardly_more_nodes_than_the_best_choice():
    """Of 1,000 mixes of 1 to 10 shares, half of them small ones, on nodes of one, two or four V100, the nodes asked for
    are at most 1.05 times those of the best choice."""
    chance, asked, best = random.Random(7), 0, 0
    for mix in range(1000):
        gpus, most = (1, 1, 2, 4)[mix % 4], (1000, 500)[mix // 4 % 2]
        sizes = [(chance.randrange(50, most + 1, 50), chance.randint(1, 16 * most // 1000)) for _ in range(mix % 9 + 1)]
        shares = [(milli, 1024 * gib) for milli, gib in sizes]
        shares += [(1000 * gpus, MIB)] * (chance.random() < 0.3)
        pods = [share(f"p{n}", milli, mib if milli < 1000 else 0) for n, (milli, mib) in enumerate(shares)]
        facts = added(*pods, types={"v100": f"v100x{gpus}"})
        assert len(shares) == sum(len(node["pods"]) for node in facts["nodes"])
        asked += facts["add"]["v100"]
        best += fewest([(milli, mib if milli < 1000 else MIB) for milli, mib in shares], gpus)

    assert best <= asked <= 1.05 * best
