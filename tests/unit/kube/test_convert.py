"""Manifests of other projects in Aliquot's words: the same ask, and nothing else touched."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from aliquot.cli.convert import TARGETS
from aliquot.cli.convert import convert as command
from aliquot.kube.convert import WHERE_PODS_ARE, BadManifest, convert
from aliquot.kube.dialects import FOREIGN, NATIVE, read, spoken
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.objects import Pod
from aliquot.model.sharepod import parse_sharepod

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "dialects"
DOCUMENTS = [
    pytest.param(document, id=f"{file.stem}-{i}")
    for file in sorted(EXAMPLES.glob("*.yaml"))
    for i, document in enumerate(yaml.safe_load_all(file.read_text()))
]


def template(document: dict[str, Any]) -> Pod:
    """The pod of a manifest."""
    inner: Any = document
    for key in WHERE_PODS_ARE[document["kind"]]:
        inner = inner[key]
    return msgspec.convert(inner, Pod)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_example_asks_for_the_same_in_aliquots_words(document: dict[str, Any]):
    """Each example of a dialect, converted, is in Aliquot's words only and asks for exactly the same."""
    (made,) = convert(document)

    if made.document["kind"] == "SharePod":
        before = FOREIGN["kubeshare1"].read(msgspec.convert(document, Pod)).containers[0].request
        assert before == parse_sharepod(made.document).request
    else:
        before_ask, after = read(template(document)), read(template(made.document))
        assert before_ask is not None
        assert after is not None
        assert NATIVE is spoken(template(made.document))
        assert tuple(replace(c, priority=0) for c in before_ask.containers) == after.containers


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, labels: {x: "y"}}
spec:
  replicas: 2
  template:
    metadata: {annotations: {other.dev/a: b, tencent.com/vcuda-core-limit: "80"}}
    spec:
      tolerations: [{key: gpu}]
      containers:
      - name: main
        image: x
        resources: {requests: {cpu: "1", tencent.com/vcuda-core: 30}, limits: {cpu: "2", tencent.com/vcuda-core: 30}}
"""


def test_nothing_else_is_touched():
    """Names, labels, images, other resources and unknown fields stay as they were; the original is not changed."""
    document = yaml.safe_load(DEPLOYMENT)
    (made,) = convert(document)
    expected = yaml.safe_load(DEPLOYMENT)["spec"]["template"]
    expected["metadata"]["annotations"] = {"other.dev/a": "b", "aliquot.dev/gpu-limit": "0.8"}
    resources = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "aliquot.dev/gpu-percent": 30}}
    expected["spec"]["containers"][0]["resources"] = resources

    assert yaml.safe_load(DEPLOYMENT) == document
    assert expected == made.document["spec"]["template"]
    assert {"x": "y"} == made.document["metadata"]["labels"]


@pytest.mark.parametrize(
    "document",
    [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": []}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "main"}]}},
        {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": "a"}, "spec": {}},
    ],
)
def test_what_asks_for_no_gpu_in_other_words_comes_out_as_it_went_in(document: dict[str, Any]):
    """Services, pods without GPUs and Aliquot's own SharePods are unchanged."""
    (made,) = convert(document)

    assert document == made.document


def test_lists_are_converted_item_by_item():
    """A List gives its items, converted."""
    item = {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
    }
    made = convert({"kind": "List", "items": [item, {"kind": "Service"}]})

    assert [{"aliquot.dev/gpu-percent": 100}] == [
        c["resources"]["limits"] for one in made[:1] for c in one.document["spec"]["containers"]
    ]
    assert 2 == len(made)


CRON_JOB = """{kind: CronJob, metadata: {name: nightly}, spec: {jobTemplate: {spec: {template: {spec: {containers: [
  {name: m, resources: {limits: {tencent.com/vcuda-core: 150}}}]}}}}}}"""


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("text", "a manifest is a mapping with apiVersion, kind and metadata, not 'text'"),
        (
            yaml.safe_load(CRON_JOB),
            'cronjob "nightly": spec.jobTemplate.spec.template.spec.containers[m].resources.'
            'limits["tencent.com/vcuda-core"] 150',
        ),
        (
            {"kind": "Pod", "metadata": {"name": "a", "annotations": {"tencent.com/vcuda-core-limit": 50}}},
            'pod "a": metadata.annotations["tencent.com/vcuda-core-limit"] is 50, which is not text; put it in quotes',
        ),
    ],
)
def test_what_can_not_be_read_is_named_by_its_path(document: object, sentence: str):
    """The message names the manifest and the path of the field inside it, through templates."""
    with pytest.raises(BadManifest) as caught:
        convert(document)

    assert sentence in str(caught.value)


def pod(limits: dict[str, Any], **metadata: dict[str, str]) -> dict[str, Any]:
    """A pod, or the template of one, whose container has these limits as the API server completes them."""
    resources = {"limits": limits, "requests": dict(limits)}
    return {
        "kind": "Pod",
        "metadata": {"name": "p", **metadata},
        "spec": {"containers": [{"name": "m", "resources": resources}]},
    }


def deployment(limits: dict[str, Any], **metadata: dict[str, str]) -> dict[str, Any]:
    return {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"template": pod(limits, **metadata)}}


ELASTIC_JOB = """{kind: ElasticJob, metadata: {name: e}, spec: {replicaSpecs: {Worker: {template: {metadata: {labels: {
  sharedgpu/gpu_request: "0.5"}}}}}}}"""
LABELS = {"sharedgpu/gpu_request": "0.5", "sharedgpu/min_available": "2", "sharedgpu/colour": "red"}
UNKNOWN = (
    'resources.limits["aliquot.dev/gpu-percents"] is not a resource of Aliquot; it knows aliquot.dev/gpu-percent, '
)


@pytest.mark.parametrize(
    ("document", "notes"),
    [
        (
            yaml.safe_load(ELASTIC_JOB),
            [
                'spec.replicaSpecs.Worker.template.metadata.labels["sharedgpu/gpu_request"] is left as it is: '
                "no pods are looked for in the kind ElasticJob"
            ],
        ),
        (
            pod({"nvidia.com/mig-3g.20gb": 1}),
            [
                'spec.containers[0].resources.limits["nvidia.com/mig-3g.20gb"] is left as it is: '
                "Aliquot gives no MIG instances; for a share of Aliquot's write aliquot.dev/gpu-percent and "
                "aliquot.dev/gpu-memory in resources.limits"
            ],
        ),
        (
            deployment({"alpha.kubernetes.io/nvidia-gpu": 1}),
            [
                'spec.template.spec.containers[0].resources.limits["alpha.kubernetes.io/nvidia-gpu"] is left as it is: '
                "for whole GPUs of Aliquot's write aliquot.dev/gpu-percent: 100 for each in resources.limits"
            ],
        ),
        (
            pod({"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-core.percentage": 30}, annotations={"gpu-fraction": "0.5"}),
            [
                'metadata.annotations["gpu-fraction"] is left as it is: write aliquot.dev/gpu-percent, hundredths of a '
                "GPU, in resources.limits",
                'spec.containers[0].resources.limits["aliyun.com/gpu-core.percentage"] is left as it is: '
                "write aliquot.dev/gpu-percent",
            ],
        ),
        (
            pod({}, labels=LABELS),
            [
                "sharedgpu/min_available is not kept: pods are placed one by one",
                "sharedgpu/colour is not kept: it is not known here",
            ],
        ),
        (
            deployment({"aliquot.dev/gpu-percents": 20}, annotations={"aliquot.dev/gpu-model": "T4"}),
            [f"spec.template.spec.containers[m].{UNKNOWN}aliquot.dev/gpu-memory"],
        ),
        (
            pod({"nvidia.com/gpumem": 9, "aliquot.dev/gpu-percents": 20}),
            [f"spec.containers[m].{UNKNOWN}aliquot.dev/gpu-memory"],
        ),
        (pod({"nvidia.com/gpu": 1}), []),
        ({"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"name": "gpu"}]}}, []),
    ],
)
def test_what_asks_for_gpus_and_is_not_understood_is_told_with_its_path(document: dict[str, Any], notes: list[str]):
    """Unknown kinds, resources and labels are left and named; a manifest that is wholly read has no notes."""
    assert notes == list(convert(document)[0].notes)


def test_the_command_writes_yaml_and_tells_what_is_lost():
    """`aliquot convert -f` prints manifests on stdout and notes on stderr; status 1 says that there are some."""
    done = CliRunner().invoke(command, ["-f", str(EXAMPLES / "kubeshare2.yaml")])

    (document,) = yaml.safe_load_all(done.stdout)
    assert 1 == done.exit_code
    assert {"aliquot.dev/gpu-percent": 50} == document["spec"]["template"]["spec"]["containers"][0]["resources"][
        "limits"
    ]
    assert 'job "lstm-g": sharedgpu/group_name is not kept: pods are placed one by one\n' in done.stderr


def test_the_command_speaks_other_words_too():
    """`--to` writes the same ask in the words of another project."""
    done = CliRunner().invoke(command, ["-f", str(EXAMPLES / "tencent.yaml"), "--to", "kubeshare2", "-o", "json"])

    labels = msgspec.json.decode(done.stdout)["metadata"]["labels"]
    assert {
        "sharedgpu/gpu_request": "0.3",
        "sharedgpu/gpu_limit": "0.5",
        "sharedgpu/gpu_mem": "8053063680",
        "sharedgpu/gpu_model": "V100",
    } == labels


def test_every_dialect_can_be_converted_to():
    """The choices of --to are Aliquot's words and those of all other dialects."""
    assert set(TARGETS) == {"aliquot", *FOREIGN}


@pytest.mark.parametrize("dialect", FOREIGN.values(), ids=FOREIGN)
def test_a_request_in_a_kind_that_is_not_known_is_reported(dialect: Dialect):
    """Whatever dialect names the GPU; nothing is left behind in silence."""
    name = f"{dialect.owned.requests[0]}x" if dialect.owned.requests[0].endswith("/") else dialect.owned.requests[0]
    (made,) = convert({"kind": "Unknown", "metadata": {"name": "a"}, "spec": {"deep": [{name: "1"}]}})

    assert any(f'spec.deep[0]["{name}"]' in note for note in made.notes), made.notes
