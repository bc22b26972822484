"""Whatever a pod's author writes: the pod is understood or refused with its faults, in few words."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aliquot.kube import names
from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.kube.requests import FAULT_LENGTH, MAX_FAULTS, BadPod, ClusterDevices
from aliquot.scheduler.admission.rules import Admission, answer

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
RESOURCES = (
    *names.RESOURCES,
    *("tencent.com/vcuda-core", "tencent.com/vcuda-memory", "aliyun.com/gpu-mem", "aliyun.com/gpu-count"),
    *("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"),
    *("nvidia.com/priority", "cpu", "memory"),
)
NOTES = (
    *names.ASK_ANNOTATIONS,
    *(names.PLAN, names.DIALECT, "aliquot.dev/other", "sharedgpu/gpu_request", "sharedgpu/gpu_mem"),
    *("nvidia.com/use-gputype", "nvidia.com/nouse-gpuuuid"),
)
LABELS = ("sharedgpu/gpu_request", "sharedgpu/gpu_limit", "sharedgpu/gpu_mem", "sharedgpu/priority")
ODD_NUMBERS = ("", "0", "-1", "1E", "1e63", "1e999", "9" * 70, "NaN", "0.0000000001", "+3", "5.", "4GiB", "7Ei", "x")
ODD_TEXTS = ("0.5", "1", "1e9", "-1", "", "0.1,0.2", "!GPU-a", "GPU-a,!GPU-b", "50%", "99999999999", "٣", "1,,2", "\n")

number = st.integers(-5, 300) | st.sampled_from(ODD_NUMBERS) | st.floats(allow_nan=False, allow_infinity=False)
text = st.sampled_from(ODD_TEXTS) | st.text(max_size=12)
name = st.sampled_from(["a", "b", "a#2", "c.d", ""])
amounts = st.dictionaries(st.sampled_from(RESOURCES), number, max_size=4)
container = st.fixed_dictionaries(
    {"name": name, "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})},
    optional={"restartPolicy": st.sampled_from(["Always", ""])},
)
note = st.sampled_from(NOTES) | st.builds("{}.{}".format, st.sampled_from(NOTES), name)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("p"), "namespace": st.just("n")},
            optional={
                "annotations": st.dictionaries(note, text, max_size=5),
                "labels": st.dictionaries(st.sampled_from(LABELS), text, max_size=3),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(container, max_size=3)},
            optional={"initContainers": st.lists(container, max_size=2), "overhead": amounts},
        ),
    }
)


@SETTINGS
@given(pods)
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
@given(pods, st.booleans())
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
