"""Recommendations: what a share should be by what was used of it, when nothing is said, and how to make the change."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.status import Share
from aliquot.status.history import ControllerUse, Percentiles, names_of_use, spread
from aliquot.status.rightsize import Recommendation, Size, command_for, recommend, unused

SIZE = Size(500, 800, 12_288)


def use(milli: Sequence[int], mib: int, *, hours: float = 24.0) -> ControllerUse:
    """What a tenant used in minutes that stand for the whole time, and held at most."""
    recorded_s = int(hours * 3600)
    idle_s = recorded_s * list(milli).count(0) // len(milli)
    sums = spread({value: list(milli).count(value) for value in milli})
    return ControllerUse("lab", "Job/a", "main", recorded_s, idle_s, sums, Percentiles(mib, mib, mib))


@pytest.mark.parametrize(
    ("milli", "mib", "wanted", "why"),
    [
        (
            [200],
            4096,
            Size(230, 800, 4864),
            ["request: 95 of 100 minutes used 0.20 or less", "memory: at most"],
        ),
        ([200] * 98 + [780] * 2, 12_000, Size(230, 980, 12_288), ["request: 95", "limit: a minute used 0.78 of 0.80"]),
        ([0], 12_288, Size(10, 800, 12_288), ["request: no minute had work"]),
        ([700], 12_288, Size(810, 810, 12_288), ["request: 95 of 100 minutes used 0.70"]),
        ([400, 440], 11_000, SIZE, ["what is asked fits what is used"]),
    ],
)
def test_a_share_follows_what_was_used(milli: list[int], mib: int, wanted: Size, why: list[str]):
    """The request is the 95th percentile and a margin, the memory the peak and one, and a reached limit is raised."""
    found, reasons = recommend(SIZE, use(milli, mib))

    assert wanted == found
    assert len(why) == len(reasons) and all(map(str.startswith, reasons, why)), reasons


def test_nothing_is_said_before_an_hour_is_recorded():
    """Without a history, or with a short one, the share stays as it is and the reason says how much is missing."""
    short = recommend(SIZE, use([10], 100, hours=0.9))

    assert (SIZE, ["54m are recorded, and a recommendation takes 60m"]) == short
    assert (SIZE, ["0s are recorded, and a recommendation takes 60m"]) == recommend(SIZE, None)


sizes = st.builds(
    lambda request, more, mib: Size(request, min(1000, request + more), mib),
    st.integers(1, 1000), st.integers(0, 999), st.integers(256, 81_920),
)  # fmt: skip
uses = st.builds(use, st.lists(st.integers(0, 100).map(lambda n: n * 10), min_size=1), st.integers(0, 81_920))


@given(sizes, uses)
def test_a_recommendation_is_within_bounds_and_enough(asked: Size, used: ControllerUse):
    """It is a share that exists, not below what 95 of 100 minutes used, and of memory not below what was held."""
    found, _ = recommend(asked, used)

    assert 0 < found.request_milli <= found.limit_milli <= 1000
    assert found.request_milli >= used.milli.p95
    assert min(asked.memory_mib, used.memory_mib.peak) <= found.memory_mib <= asked.memory_mib
    assert found.limit_milli >= asked.limit_milli


@given(sizes, uses, st.floats(0.85, 1.0))
def test_a_recommendation_that_was_followed_stays(asked: Size, used: ControllerUse, less: float):
    """With the same use nothing more is recommended, and a request that was changed stays with a little less use."""
    followed, _ = recommend(asked, used)
    slack = Percentiles(*(-int(-getattr(used.milli, name) * less // 10) * 10 for name in ("p50", "p95", "peak")))
    again = ControllerUse("lab", "Job/a", "main", used.recorded_s, used.idle_s, slack, used.memory_mib)

    assert followed == recommend(followed, used)[0]
    if followed.request_milli != asked.request_milli:
        assert followed.request_milli == recommend(followed, again)[0].request_milli


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9))))
def test_percentiles_are_those_of_the_list(weighted: list[tuple[int, int]]):
    """Of values with weights they are what a sorted list with each value as often as its weight has at that place."""
    sums: dict[int, int] = {}
    for value, weight in weighted:
        sums[value] = sums.get(value, 0) + weight
    plain = sorted(value for value, weight in sums.items() for _ in range(weight)) or [0]

    places = (-(-len(plain) * percent // 100) - 1 for percent in (50, 95, 100))
    assert Percentiles(*(plain[place] for place in places)) == spread(sums)


@pytest.mark.parametrize(
    ("tenant", "owner", "names"),
    [
        ("default/notebook", "SharePod/notebook", ("default", "SharePod/notebook", "")),
        ("train", "Run", ("", "Run/train", "")),
        ("alice/train", "Run", ("alice", "Run/train", "")),
        ("web/api-7f-x2/main#1", "Deployment/api", ("web", "Deployment/api", "main")),
    ],
)
def test_tenants_of_one_controller_are_one(tenant: str, owner: str, names: tuple[str, str, str]):
    """Pods of a controller are alike, their containers are not, and a run is a workload of its own."""
    assert names == names_of_use(tenant, owner)


@pytest.mark.parametrize(
    ("program", "tenant", "owner", "command"),
    [
        ("aliquot", "default/notebook", "SharePod/notebook",
         "aliquot resize notebook --gpu-request 0.23 --gpu-mem 4864Mi"),
        ("kubectl aliquot", "lab/n-0/main", "SharePod/n",
         "kubectl aliquot resize sharepod/n -n lab --gpu-request 0.23 --gpu-mem 4864Mi"),
        ("kubectl aliquot", "web/api-7f-x2/main", "Deployment/api",
         "kubectl -n web set resources deployment/api -c main "
         "--limits=aliquot.dev/gpu-percent=23,aliquot.dev/gpu-memory=4864Mi"),
        ("kubectl aliquot", "web/alone/main", "Pod/alone",
         "kubectl aliquot resize pod/alone -n web -c main --gpu-request 0.23 --gpu-mem 4864Mi"),
    ],
)  # fmt: skip
def test_the_command_makes_the_change(program: str, tenant: str, owner: str, command: str):
    """It is a resize of what runs, and of a controller's pods a change of its template."""
    found = command_for(program, Share(tenant, 500, 800, 0, 12_288, 0, owner=owner), SIZE, Size(230, 800, 4864))

    assert command == found


def test_what_could_be_free_is_summed_by_namespace():
    """Every share of a controller counts, and one that should grow frees nothing of the others."""
    shrinks, grows = Size(230, 800, 4864), Size(810, 810, 12_288)
    lines = [
        Recommendation("lab", "Job/a", "main", 3, SIZE, shrinks, use([200], 4096), [], ""),
        Recommendation("lab", "Job/b", "main", 1, SIZE, grows, use([700], 12_288), [], ""),
        Recommendation("web", "Job/c", "main", 1, SIZE, SIZE, None, [], ""),
    ]
    lab, web = unused(lines)

    assert ("lab", 2000, 3 * 200 + 700, 3 * 270) == (lab.namespace, lab.promised_milli, lab.used_milli, lab.freed_milli)
    assert (4 * 12_288, 3 * (12_288 - 4864)) == (lab.promised_mib, lab.freed_mib)
    assert ("web", 500, 0, 0) == (web.namespace, web.promised_milli, web.used_milli, web.freed_milli)
