"""Whatever a pod's author writes: the pod is understood or refused with its faults, in few words."""

import json
from typing import Any

import msgspec
import pytest
from any_pod import pods
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.kube.requests import FAULT_LENGTH, MAX_FAULTS, BadPod, ClusterDevices
from aliquot.scheduler.admission.rules import Admission, answer

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@SETTINGS
@given(pods())
def test_a_pod_is_read_or_its_faults_are_named(document: dict[str, Any]):
    """Reading ends in an ask whose requests can be placed, in none, or in faults; nothing else is raised."""
    pod = msgspec.convert(document, Pod)
    try:
        ask = read(pod)
    except BadPod as error:
        assert error.faults
    else:
        assert ask is None or ask.units(ClusterDevices(("V100",), ("GPU-a",)))


@SETTINGS
@given(pods(), st.booleans())
def test_every_review_is_answered(document: dict[str, Any], whole: bool):
    """The webhook takes the pod, changes it or refuses it; it fails over none."""
    review = {"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": document}}
    said = answer(json.dumps(review).encode(), Admission(whole=whole, default_limit_milli=500).mutate)["response"]

    assert said["allowed"] or said["status"]["message"].startswith("aliquot: ")


@pytest.mark.parametrize(
    "annotations",
    [
        {f"aliquot.dev/unknown-{number}": "" for number in range(5000)},
        {"aliquot.dev/affinity": "x" * 200_000},
        {"aliquot.dev/gpu-model": ",".join(["V100"] * 50_000)},
    ],
)
def test_faults_are_as_long_as_a_person_reads(annotations: dict[str, str]):
    """A pod of many or very long annotations gets an answer of some kilobytes, for it is told once for every node."""
    limits = {"aliquot.dev/gpu-percent": 10}
    document = {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "a", "resources": {"limits": limits}}]},
    }
    with pytest.raises(BadPod) as refused:
        read(msgspec.convert(document, Pod))

    assert len(str(refused.value)) < (MAX_FAULTS + 2) * FAULT_LENGTH
