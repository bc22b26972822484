"""The pod of a SharePod."""

from typing import Any

import msgspec
import pytest

from aliquot.kube.custom import SharePod
from aliquot.kube.names import GPU_MEMORY_LIMIT as LIMIT
from aliquot.kube.sharepods import BadTemplate, ask_of, pod_of, scheduled_by_others
from aliquot.model.quantities import Memory


def sharepod(gpu: dict[str, Any], spec: dict[str, Any] | None = None, **more: Any) -> SharePod:
    """A SharePod of one container."""
    inner = {"containers": [{"name": "main", "image": "busybox"}], **(spec or {})}
    metadata = {"name": "a", "namespace": "team", "uid": "u1", "annotations": more.pop("notes", {})}
    template = {"spec": inner, **more.pop("template", {})}
    return msgspec.convert({"metadata": metadata, "spec": {"gpu": gpu, "template": template, **more}}, SharePod)


def test_the_pod_asks_in_our_words():
    """Resource and annotations of the first container say what spec.gpu says, and the extender reads the same."""
    made = sharepod({"request": "0.333", "limit": "0.6", "memory": "4Gi", "gpuID": "g", "antiAffinity": "noisy"})
    body = pod_of(made)
    ask = ask_of(made, body).containers[0]

    assert {"aliquot.dev/gpu-percent": 33, "aliquot.dev/gpu-memory": "4Gi"} == body["spec"]["containers"][0][
        "resources"
    ]["limits"]
    assert (333, 600, "g", "noisy") == (
        ask.request.request_milli,
        ask.request.limit_milli,
        ask.request.gpu_id,
        ask.request.labels.anti_affinity,
    )
    assert ("a", "team", "u1", True) == (
        body["metadata"]["name"],
        body["metadata"]["namespace"],
        body["metadata"]["ownerReferences"][0]["uid"],
        body["metadata"]["ownerReferences"][0]["controller"],
    )


def test_a_node_is_one_more_condition_to_every_term():
    """The author's own terms are alternatives; each gets the node besides."""
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "z"}]}, {"matchFields": [{"key": "f"}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    body = pod_of(sharepod({"request": 0.5}, {"affinity": affinity}), node="n1", gpu_uuid="GPU-1")
    terms = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    here = {"key": "metadata.name", "operator": "In", "values": ["n1"]}

    assert [[here], [{"key": "f"}, here]] == [term["matchFields"] for term in terms["nodeSelectorTerms"]]
    assert "GPU-1" == body["metadata"]["annotations"]["aliquot.dev/gpu-uuid"]
    assert 2 == len(required["nodeSelectorTerms"]) and "matchFields" not in required["nodeSelectorTerms"][0]


def test_schedulers_that_ask_us_are_kept_and_others_choose_the_node_themselves():
    """default-scheduler asks the extender; my-scheduler sets spec.nodeName, and the pod goes through our profile."""
    stock = sharepod({"request": 0.5}, {"schedulerName": "default-scheduler"})
    other = sharepod({"request": 0.5}, {"schedulerName": "my-scheduler"})

    assert ("", "my-scheduler") == (scheduled_by_others(stock), scheduled_by_others(other))
    assert "default-scheduler" == pod_of(stock)["spec"]["schedulerName"]
    assert "aliquot-scheduler" == pod_of(other, node="n")["spec"]["schedulerName"]
    assert "aliquot-scheduler" == pod_of(sharepod({"request": 0.5}))["spec"]["schedulerName"]


def test_every_fault_is_named_by_its_path():
    """Three fields of spec.gpu, a nodeName and resources in the template: five faults in one refusal."""
    containers = [{"name": "main", "resources": {"limits": {"aliquot.dev/gpu-percent": 10}}}]
    wrong = sharepod({"request": "x", "limit": "y", "memory": "z"}, {"nodeName": "n", "containers": containers})
    with pytest.raises(BadTemplate) as refused:
        pod_of(wrong)

    assert [
        "spec.template.spec.nodeName",
        "spec.template.spec.containers[main].resources",
        "spec.gpu.request",
        "spec.gpu.limit",
        "spec.gpu.memory",
    ] == [fault.split(" ")[0].rstrip(":") for fault in refused.value.faults]


def test_memory_is_lent_up_to_what_an_annotation_of_the_sharepod_says():
    """Its pod has the annotation in one spelling, and the extender reads the same amount."""
    made = sharepod({"request": 0.3, "memory": "8Gi"}, notes={LIMIT: "30G", "team": "a"})
    body = pod_of(made)

    assert (Memory(mib=28610), "28610Mi") == (
        ask_of(made, body).containers[0].request.memory_limit,
        body["metadata"]["annotations"][LIMIT],
    )


@pytest.mark.parametrize(("limit", "text"), [("4Gi", " 4.0 GiB is below the memory 8.0 GiB"), ("much", ': "much" is')])
def test_a_memory_limit_that_cannot_be_is_refused_by_its_path(limit: str, text: str):
    """Below what is guaranteed, or no amount of memory."""
    with pytest.raises(BadTemplate, match=rf'metadata.annotations\["{LIMIT}"\]{text}'):
        pod_of(sharepod({"request": 0.3, "memory": "8Gi"}, notes={LIMIT: limit}))


@pytest.mark.parametrize(
    ("gpu", "text"),
    [
        ({"request": 0.5, "limit": 0.3}, "spec.gpu.limit 0.30 is below spec.gpu.request 0.50"),
        ({"request": 2, "gpuID": "g"}, "spec.gpu.gpuID means one GPU"),
        ({"request": 0.5, "gpuID": "Team_A"}, 'spec.gpu.gpuID "Team_A" cannot be the name of a vGPU'),
        ({"request": 0.1, "affinity": "a", "antiAffinity": "a"}, "cannot mean together and apart"),
    ],
)
def test_contradictions_are_told(gpu: dict[str, Any], text: str):
    """What each field says alone is right, but not together."""
    with pytest.raises(BadTemplate, match=text):
        pod_of(sharepod(gpu))


@pytest.mark.parametrize(("key", "place"), [("aliquot.dev/gpu-limit", "spec.gpu"), (LIMIT, "its own metadata")])
def test_annotations_for_plain_pods_are_refused_in_a_template(key: str, place: str):
    """What the SharePod says cannot be said twice; priority and near cores have no field and stay."""
    notes = {"metadata": {"annotations": {key: "1", "aliquot.dev/cpu-bind": "2"}}}
    text = rf'annotations\["{key}"\] is for plain pods; a SharePod says it in {place}'
    with pytest.raises(BadTemplate, match=text) as refused:
        pod_of(sharepod({"request": 0.5}, template=notes))
    assert 1 == len(refused.value.faults)


@pytest.mark.parametrize("key", ["aliquot.dev/plan", "aliquot.dev/plan-status", "aliquot.dev/dialect"])
def test_what_aliquot_writes_is_refused_in_a_template(key: str):
    """The SharePod is refused at admission, and does not wait for a pod that would be."""
    with pytest.raises(BadTemplate, match=rf'annotations\["{key}"\] is written by Aliquot alone'):
        pod_of(sharepod({"request": 0.5}, template={"metadata": {"annotations": {key: "{}"}}}))
