"""What one review costs: lines are counted, because time would say as much of the machine."""

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from aliquot.kube.requests import MAX_ANNOTATION_BYTES, MAX_CONTAINERS
from aliquot.scheduler.admission.rules import Admission, answer

TraceFunction = Callable[[FrameType, str, Any], Any]
OURS = {"aliquot.dev/gpu-percent": "1"}
LIMIT = "aliquot.dev/gpu-limit"


def containers(count: int, name: str = "c", limits: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """So many containers with these limits, ours if none are given."""
    return [{"name": f"{name}{i}", "resources": {"limits": limits or OURS}} for i in range(count)]


def review(main: list[dict[str, Any]], first: list[dict[str, Any]] | None = None, **notes: str) -> bytes:
    """A review of a pod with these containers and init containers."""
    pod = {"metadata": {"name": "p", "annotations": notes}, "spec": {"containers": main, "initContainers": first or []}}
    return json.dumps({"request": {"uid": "1", "kind": {"kind": "Pod"}, "object": pod}}).encode()


def said(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = answer(body, Admission().mutate)["response"]
    return found


def lines(body: bytes) -> int:
    """How many lines of Python a review runs, each turn of a loop counted."""
    count = 0

    def traced(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        said(body)
    finally:
        sys.settrace(before)
    return count


PODS: dict[str, Callable[[int], bytes]] = {
    "containers": lambda n: review(containers(n)),
    "plain": lambda n: review(containers(n, limits={"cpu": "1"})),
    "privileged": lambda n: review([c | {"securityContext": {"privileged": True}} for c in containers(n)]),
    "nvidia": lambda n: review(containers(n, limits={"nvidia.com/gpu": "1"})),
    "hami": lambda n: review(containers(n, limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"})),
    "tencent": lambda n: review(containers(n, limits={"tencent.com/vcuda-core": "1", "tencent.com/vcuda-memory": "1"})),
    "limits of each": lambda n: review(containers(n), None, **{f"{LIMIT}.c{i}": "1" for i in range(n)}),
    "limits of none": lambda n: review(containers(n), None, **{f"{LIMIT}.x{i}": "1" for i in range(n)}),
    "misspelt": lambda n: review(containers(n), None, **{f"aliquot.dev/gpu-limti{i}": "1" for i in range(n)}),
    "init": lambda n: review(containers(1), containers(n, "i")),
}


@pytest.mark.parametrize("kind", PODS)
def test_the_cost_of_a_review_grows_with_the_pod(kind: str):
    """Four times the containers or annotations cost four times the work, whatever they are."""
    make, few = PODS[kind], MAX_CONTAINERS // 5

    assert 4.1 > lines(make(4 * few)) / lines(make(few))


def test_a_pod_beyond_the_bound_costs_less_than_one_within():
    """What has too many containers is not read: sixteen times as many cost less than the most that there may be."""
    within = review(containers(MAX_CONTAINERS))

    assert lines(within) > lines(review(containers(16 * MAX_CONTAINERS)))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (review(containers(MAX_CONTAINERS + 1)), "spec has 257 containers and init containers"),
        (review(containers(1), containers(MAX_CONTAINERS, "i")), "spec has 257 containers and init containers"),
        (review(containers(40_000, limits={"nvidia.com/gpu": "1"})), "spec has 40000 containers and init containers"),
        (review(containers(1), None, x="y" * MAX_ANNOTATION_BYTES), "metadata.annotations have 262145 characters"),
        (
            review(containers(5, limits={"aliquot.dev/gpu-percent": "64"}), None, **{"aliquot.dev/gpu-parts": "64"}),
            "it asks for 320 parts of GPUs in all",
        ),
    ],
)
def test_a_pod_that_is_too_large_is_refused(body: bytes, why: str):
    """One sentence says what there is too much of, and how much a pod may have."""
    refused = said(body)

    assert not refused["allowed"] and why in refused["status"]["message"]
    assert 200 > len(refused["status"]["message"])


def test_a_large_pod_that_asks_for_no_gpu_is_not_our_business():
    """The bound is for pods that ask for GPUs; others are let in as they are."""
    assert {"uid": "1", "allowed": True} == said(review(containers(MAX_CONTAINERS + 1, limits={"cpu": "1"})))
