"""A SharePod is understood as a whole or refused with the path of what is wrong."""

from typing import Any

import pytest

from aliquot.model.sharepod import BadSharePod, parse_sharepod


def sharepod(gpu: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A good SharePod named a, with changes."""
    container = {"name": "main", "command": ["true"]} | changes.pop("container", {})
    spec = {
        "gpu": {"request": 0.3} if gpu is None else gpu,
        "template": {"spec": {"containers": [container]}},
    } | changes.pop("spec", {})
    return {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": "a"}, "spec": spec} | changes


def noted(gpu: dict[str, Any] | None = None, **notes: str) -> dict[str, Any]:
    """One with annotations of Aliquot's, `_` for `-`."""
    named = {f"aliquot.dev/{key.replace('_', '-')}": text for key, text in notes.items()}
    return sharepod(gpu, metadata={"name": "a", "annotations": named})


def of_template(notes: dict[str, str]) -> dict[str, Any]:
    """One whose pod has annotations."""
    document = sharepod()
    document["spec"]["template"]["metadata"] = {"annotations": notes}
    return document


@pytest.mark.parametrize(
    ("gpu", "milli", "ceiling_milli", "memory_mib"),
    [
        ({"request": "300m", "limit": 0.6, "memory": "4Gi"}, 300, 600, 4096),
        ({"request": 0.25}, 250, 1000, 4096),  # without a limit the whole device, without memory the same part of it
    ],
)
def test_a_sharepod_carries_its_request_in_integers(
    gpu: dict[str, Any], milli: int, ceiling_milli: int, memory_mib: int
):
    """Request, limit and memory come out as milli-GPU and MiB."""
    request = parse_sharepod(sharepod(gpu)).request

    assert (milli, ceiling_milli, memory_mib) == (
        request.request_milli, request.ceiling_milli, request.memory_on(16384)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            sharepod({"request": 0.3, "limt": 0.6}),
            'sharepod "a": spec.gpu has no field "limt"; it knows request, limit',
        ),
        (sharepod({"limit": 0.6}), 'sharepod "a": spec.gpu.request is missing'),
        (sharepod({"request": 0.3, "limit": 0.2}), "spec.gpu.limit 0.20 is below spec.gpu.request 0.30; a limit is at"),
        (sharepod({"request": "lots"}), 'spec.gpu.request: "lots" is not a fraction of a GPU'),
        (sharepod({"request": "30%", "limit": "130%"}), 'spec.gpu.limit: "130%" is more than one GPU'),
        (
            sharepod({"request": 1, "memory": "1Gi", "enforce": "never"}),
            "spec.gpu.enforce never holds no memory limit",
        ),
        (sharepod({"request": 0.3, "memory": "4X"}), 'spec.gpu.memory: "4X" is not an amount of memory'),
        (sharepod({"request": 0}), "spec.gpu.request 0.00 asks for nothing"),
        (sharepod({"request": [1]}), "spec.gpu.request is a list; write a number or text"),
        (sharepod({"request": True}), "spec.gpu.request: true is a truth value; write a number or text"),
        (
            sharepod({"request": 0.3, "enforce": "never"}),
            "spec.gpu.enforce never needs whole GPUs, spec.gpu.request is 0.30",
        ),
        (sharepod({"request": 1, "enforce": "so"}), 'spec.gpu.enforce: "so" is not known; write all, memory or never'),
        (sharepod({"request": 0.3, "wake": 5}), "spec.gpu.wake: 5 is a number; write text, in quotes"),
        (
            sharepod({"request": 0.3, "affinity": "a b"}),
            'spec.gpu.affinity: "a b" is not a label; write letters, digits',
        ),
        (sharepod({"request": 0.3, "affinity": "a" * 64}), "is longer than 63 characters"),
        (sharepod(kind="Shard"), 'kind: "Shard" is not known; write SharePod'),
        (sharepod(spec={"template": None}), "spec.template is empty; write a mapping"),
        (sharepod(metadata={"name": "näme"}), 'metadata.name: "näme" is not a name; write lower-case letters, digits'),
        (sharepod(metadata={"name": "a", "labels": {"b": "c", "d": 1}}), 'metadata.labels["d"]: 1 is a number; write'),
        (sharepod(metadata={"name": "a", 1: 2}), "metadata: the name of a field is not text"),
        (sharepod(container={"command": "true"}), 'containers[0].command: "true" is text; write a list'),
        (sharepod(container={"command": ["a", 1]}), "containers[0].command[1]: 1 is a number; write text, in quotes"),
        (sharepod(container={"command": ["a\0b"]}), "containers[0].command[0]: a program takes no NUL character"),
        (sharepod(container={"args": ["a\0b"]}), "containers[0].args[0]: a program takes no NUL character"),
        (sharepod(container={"workingDir": "a\0b"}), "containers[0].workingDir: a program takes no NUL character"),
        (sharepod(container={"env": [{"name": "A", "value": "\0"}]}), "env[0].value: a program takes no NUL character"),
        (sharepod(container={"env": [{"name": "A=B"}]}), 'env[0].name: "A=B" is not a name of a variable'),
        (sharepod(container={"env": [{"name": ""}]}), 'env[0].name: "" is not a name of a variable'),
        (
            sharepod(container={"env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {}}}]}),
            'container "main" takes PASSWORD from the cluster',
        ),
        (sharepod(container={"imag": "x"}), 'has no field "imag"; it knows name, image'),
        (sharepod(container={"command": []}), 'container "main" has no command'),
        (sharepod(metadata={}), "metadata.name is missing"),
        (sharepod(spek={}), 'a SharePod has no field "spek"; it knows apiVersion, kind, metadata, spec'),
        (sharepod(spec={"gpus": {}}), 'spec has no field "gpus"; it knows gpu, template, nodeName'),
        ("text", "a SharePod is a mapping with apiVersion"),
        (
            noted(gpu_limit="0.6"),
            '["aliquot.dev/gpu-limit"] is not an annotation of a SharePod; metadata.annotations knows',
        ),
        (noted(park_after=""), 'metadata.annotations["aliquot.dev/park-after"] is empty; leave it'),
        (noted(gpu_memory_limit=""), '["aliquot.dev/gpu-memory-limit"] is empty; leave it out'),
        (noted(movable=""), '["aliquot.dev/movable"] is empty; leave it out'),
        (noted(movable="yes"), '["aliquot.dev/movable"]: "yes" is not one of true, false'),
        (noted(recommend="on"), '["aliquot.dev/recommend"]: "on" is not one of show, initial, auto'),
        (noted(park_after="soon"), '["aliquot.dev/park-after"]: "soon" is not a duration'),
        (noted(gpu_memory_limit="much"), '["aliquot.dev/gpu-memory-limit"]: "much" is not an amount of memory'),
        (
            noted({"request": 0.3, "memory": "8Gi"}, gpu_memory_limit="4Gi"),
            'metadata.annotations["aliquot.dev/gpu-memory-limit"] 4.0 GiB is below spec.gpu.memory 8.0 GiB; a limit is',
        ),
        (
            noted({"request": 1}, gpu_memory_limit="4Gi"),
            'metadata.annotations["aliquot.dev/gpu-memory-limit"] 4.0 GiB is for a part of one GPU, below 1',
        ),
        (
            of_template({"aliquot.dev/park-after": "1m"}),
            'spec.template.metadata.annotations["aliquot.dev/park-after"] has no meaning on one machine; ',
        ),
    ],
)
def test_what_is_wrong_is_named_by_its_path(document, sentence):
    """The message names the SharePod, the path of the field and what is allowed there."""
    with pytest.raises(BadSharePod) as caught:
        parse_sharepod(document)

    assert sentence.lower() in str(caught.value).lower()


@pytest.mark.parametrize(
    ("grace_s", "sentence"),
    [(-1, "-1 is out of range; write at least 0"), (10**12, "1000000000000 is out of range; write at most 31536000")],
)
def test_a_grace_period_is_within_a_year(grace_s: int, sentence: str):
    """A grace period that cannot be waited for is refused with the bound."""
    document = sharepod()
    document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_s

    with pytest.raises(BadSharePod, match=f"spec.template.spec.terminationGracePeriodSeconds: {sentence}"):
        parse_sharepod(document)


def test_cluster_fields_are_accepted_and_listed():
    """Fields that only a cluster heeds are no error, and the SharePod says which were given."""
    pod = parse_sharepod(sharepod(container={"image": "x", "resources": {"limits": {"cpu": 1}}}))

    assert pod.ignored == ["containers[].resources"]


def test_the_yaml_of_a_cluster_is_the_yaml_of_a_machine():
    """Fields of pods in a cluster, and what an API server adds, are accepted here and listed as without effect."""
    document = sharepod(
        container={"livenessProbe": {"exec": {}}, "command": ["true"]},
        metadata={"name": "a", "uid": "u", "resourceVersion": "7", "managedFields": []},
        status={"phase": "Running"},
    )
    document["spec"]["template"]["spec"] |= {"serviceAccountName": "x", "hostIPC": True}
    pod = parse_sharepod(document)

    assert ["hostIPC", "serviceAccountName", "containers[].livenessProbe"] == pod.ignored


def test_a_misspelt_field_of_a_pod_is_still_an_error():
    """Accepting the fields of a cluster does not mean accepting any field."""
    document = sharepod()
    document["spec"]["template"]["spec"]["hostNetwrk"] = True

    with pytest.raises(BadSharePod, match=r'no field "hostNetwrk"; it knows containers, .* and the fields of a pod'):
        parse_sharepod(document)


def test_whole_gpus_may_be_left_unenforced():
    """spec.gpu.enforce is part of the request; without it whole GPUs are not enforced."""
    asked = parse_sharepod(sharepod({"request": 2, "enforce": "memory"})).request

    assert ["memory", "never"] == [asked.enforced(), parse_sharepod(sharepod({"request": 2})).request.enforced()]


def test_memory_that_would_not_be_limited_is_refused():
    """Several whole GPUs have all of their memory; a part of a further GPU, and a single GPU, have what is asked."""
    with pytest.raises(BadSharePod) as refused:
        parse_sharepod(sharepod({"request": 2, "memory": "400Mi"}))
    sentence = "several whole GPUs have all of theirs; leave it out"

    assert str(refused.value).endswith(sentence)
    assert all(parse_sharepod(sharepod({"request": gpus, "memory": "400Mi"})) for gpus in (1, 2.5))


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "Job"])
def test_a_manifest_for_clusters_is_answered_with_what_to_write(kind: str):
    """One sentence says what is different on one machine, instead of one wrong field after the other."""
    document = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "plain"}, "spec": {}}
    with pytest.raises(BadSharePod, match=f'^{kind.lower()} "plain": a {kind} is for clusters; .* kind SharePod, '):
        parse_sharepod(document)


@pytest.mark.parametrize("path", [("metadata", "name"), ("metadata", "namespace"), ("spec", "gpu", "affinity")])
def test_a_name_does_not_end_with_a_line_break(path):
    """In a list of names it would begin another line."""
    document = sharepod({"request": 0.3})
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = "a\n"
    with pytest.raises(BadSharePod, match="ends with a line break"):
        parse_sharepod(document)


def test_whether_its_request_follows_is_an_annotation():
    """It is one of three words, or the engine's to say."""
    documents = [*(noted(recommend=word) for word in ("show", "initial", "auto")), noted()]

    assert ["show", "initial", "auto", None] == [parse_sharepod(each).request.recommend for each in documents]


def test_memory_up_to_which_it_is_lent_is_an_annotation():
    """It is read as other amounts are."""
    limit = parse_sharepod(noted({"request": 0.3, "memory": "8Gi"}, gpu_memory_limit="30Gi")).request.memory_limit

    assert "30.0 GiB" == str(limit)


def test_annotations_of_others_and_those_of_a_cluster_are_left_as_they_are():
    """Also at the template, where a cluster reads how many cores a pod is bound to, and its trace."""
    notes = {"example.org/team": "a", "aliquot.dev/cpu-bind.main": "2", "aliquot.dev/traceparent": "00-1-2-01"}
    pod = parse_sharepod(of_template(notes)).spec.template.metadata

    assert pod is not None and notes == pod.annotations
