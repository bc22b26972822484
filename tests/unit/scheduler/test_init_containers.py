"""A pod holds of each GPU what the largest of its phases has there, as Kubernetes counts, while that lasts."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from control_scene import Scene, Truth
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.objects import node

from aliquot.kube.plan import PodPlan, read_plan
from aliquot.kube.requests import effective
from aliquot.placement.fits import phases
from aliquot.scheduler.allocations import parts_of


def container(name: str, percent: int, memory: str = "1Gi", *, always: bool = False) -> dict[str, Any]:
    """A container that asks for so much, one that goes on running if `always`."""
    limits = {"aliquot.dev/gpu-percent": percent} | ({"aliquot.dev/gpu-memory": memory} if memory else {})
    limits = limits if percent else {}
    return {"name": name, "resources": {"limits": limits}} | ({"restartPolicy": "Always"} if always else {})


class Cluster:
    """One node of some GPUs, with pods that are bound by hand."""

    def __init__(self, gpus: int = 1) -> None:
        self.truth = Truth()
        self.scene = Scene(self.truth, [node("n", gpus)])

    def run(self, name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **notes: str) -> str:
        """Create and bind a pod; the error, or nothing."""
        self.truth.create(name, {}, annotations={f"aliquot.dev/{key.replace('_', '-')}": v for key, v in notes.items()})
        self.truth.pods[name]["spec"] = {"containers": list(containers), "initContainers": list(init)}
        self.scene.catch_up()
        self.scene.cache[f"default/{name}"] = self.truth.pod(name)
        said = asyncio.run(self.scene.bind(self.truth.pod(name), "n"))
        self.scene.catch_up()
        return said

    def initialized(self, name: str) -> None:
        """The pod's init containers have ended."""
        self.truth.pods[name]["status"]["conditions"] = [{"type": "Initialized", "status": "True"}]
        self.truth._tell("modified", self.truth.pods[name])
        self.scene.catch_up()

    def plan(self, name: str) -> PodPlan:
        """The plan of a pod."""
        plan = read_plan(self.truth.pods[name]["metadata"]["annotations"])
        assert plan is not None
        return plan

    @property
    def milli(self) -> list[int]:
        """What is reserved of each GPU that is in use."""
        return sorted(milli for milli, _ in self.scene.reserved().values())


@pytest.mark.parametrize(
    ("main", "warm", "during", "after"),
    [
        ((30, "2Gi"), (50, "1Gi"), (500, 2048), (300, 2048)),
        ((80, "2Gi"), (10, "12Gi"), (800, 12288), (800, 2048)),  # memory and compute have their own peaks
    ],
)
def test_a_larger_init_container_shares_the_place_of_what_comes_after_it(
    main: tuple[int, str], warm: tuple[int, str], during: tuple[int, int], after: tuple[int, int]
):
    """While the first runs the ledger holds the most of compute and of memory, when it has ended the rest."""
    cluster = Cluster()
    assert "" == cluster.run("p", container("main", *main), init=(container("warm", *warm),))
    assert {"GPU-n-0": during} == cluster.scene.reserved()
    cluster.initialized("p")

    assert {"GPU-n-0": after} == cluster.scene.reserved()
    assert {"main": 0, "warm": 1} == {name: given.init for name, given in cluster.plan("p").containers.items()}


def test_what_an_init_container_held_is_there_for_the_next_pod():
    """A pod that waited for it is bound when it has ended, and not before."""
    cluster = Cluster()
    cluster.run("p", container("main", 30), init=(container("warm", 70),))
    before = cluster.run("next", container("main", 60))
    cluster.initialized("p")

    assert "0.30 free, 0.60 were asked" in before
    assert "" == asyncio.run(cluster.scene.bind(cluster.truth.pod("next"), "n"))
    cluster.scene.catch_up()
    assert [900] == cluster.milli


@pytest.mark.parametrize(
    ("init", "main", "peak", "after"),
    [
        ([50, 80, 20], [30], 800, 300),  # the largest of those that run one after another
        ([50], [30, 40], 700, 700),  # less than the others' sum
        ([90], [30, 40], 900, 700),  # more than it
        ([60], [0], 600, 0),  # nothing after it
        ([-20, 50], [30], 700, 500),  # beside the sidecar before it
        ([50, -20], [30], 500, 500),  # the sidecar after it comes when it has ended
        ([-20, 50, -30, 60], [10], 1100, 600),
    ],
)
def test_phases_are_counted_as_kubernetes_counts_them(init: list[int], main: list[int], peak: int, after: int):
    """The larger of each init container with the sidecars (negative here) before it, and of all that stay."""
    cluster = Cluster(2)
    inits = [container(f"i{n}", abs(size), always=size < 0) for n, size in enumerate(init)]

    assert "" == cluster.run("p", *(container(f"m{n}", size) for n, size in enumerate(main)), init=tuple(inits))
    during = sum(cluster.milli)
    cluster.initialized("p")
    assert (peak, after) == (during, sum(cluster.milli))


def test_an_init_container_that_fits_beside_nobody_else_is_refused():
    """What is free has to hold each phase, also the one that passes."""
    cluster = Cluster()
    cluster.run("other", container("main", 60))

    assert "0.40 free, 0.50 were asked" in cluster.run("p", container("main", 30), init=(container("warm", 50),))
    assert [600] == cluster.milli


def test_an_init_container_with_whole_gpus_gives_back_all_that_is_not_needed():
    """Two whole GPUs before a part of one."""
    cluster = Cluster(3)
    cluster.run(
        "p",
        container("main", 30, "1Gi"),
        init=({"name": "all", "resources": {"limits": {"aliquot.dev/gpu-percent": 200}}},),
    )
    during = cluster.milli
    cluster.initialized("p")

    assert ([1000, 1000], [300]) == (during, cluster.milli)


def test_labels_of_a_pod_do_not_keep_its_own_phases_apart():
    """A pod that wants no neighbour with its label may have its phases on one GPU."""
    cluster = Cluster()

    assert "" == cluster.run(
        "p", container("main", 30), init=(container("warm", 50),), anti_affinity="noisy", exclusion="mine"
    )
    assert [500] == cluster.milli


SIZES = st.lists(st.sampled_from([-40, -20, 10, 30, 50, 90, 120, 200]), max_size=5)


@given(
    SIZES, st.lists(st.sampled_from([10, 30, 50, 120]), min_size=1, max_size=3), st.lists(st.integers(1, 9), max_size=3)
)
@settings(max_examples=40, deadline=None)
def test_any_pod_holds_at_least_what_kubernetes_counts_and_no_phase_more_than_the_gpus(
    init: list[int], main: list[int], others: list[int]
):
    """Each phase fits by the plan, the ledger holds the largest of them, and all is given back in the end."""
    cluster = Cluster(3)
    for number, tenths in enumerate(others):
        cluster.run(f"o{number}", container("main", 10 * tenths, ""))
    before = cluster.scene.reserved()
    inits = tuple(container(f"i{n}", abs(size), "", always=size < 0) for n, size in enumerate(init))
    mains = [container(f"m{n}", size, "") for n, size in enumerate(main)]
    said = cluster.run("p", *mains, init=inits)
    if said:
        assert before == cluster.scene.reserved()
        return
    parts = parts_of("default/p", cluster.plan("p"))
    for phase in phases(parts):
        used = Counter({gpu: milli for gpu, (milli, _) in before.items()})
        for part in phase:
            used.update({str(piece.gpu): piece.request_milli for piece in part.slices})
        assert all(milli <= 1000 for milli in used.values())
    held = sum(cluster.milli) - sum(milli for milli, _ in before.values())
    assert 10 * effective(cluster.truth.pod("p"), "aliquot.dev/gpu-percent", lambda v: int(v)) <= held
    cluster.initialized("p")
    stays = sum(cluster.milli) - sum(milli for milli, _ in before.values())
    assert 10 * (sum(main) + sum(-size for size in init if size < 0)) == stays <= held
    cluster.truth.end("p")
    cluster.scene.catch_up()
    assert before == cluster.scene.reserved()


@pytest.mark.parametrize("ended", [False, True])
def test_a_ledger_made_anew_holds_what_the_old_one_held(ended: bool):
    """The plan and the pod's condition say it all."""
    cluster = Cluster(2)
    cluster.run("p", container("main", 30), container("side", 40), init=(container("warm", 90), container("dump", 100)))
    if ended:
        cluster.initialized("p")
    before = cluster.scene.reserved()
    cluster.scene.start()

    assert before == cluster.scene.reserved()
    assert ({}, 700 if ended else 1000) == (cluster.scene.ledger.inconsistent, sum(cluster.milli))
