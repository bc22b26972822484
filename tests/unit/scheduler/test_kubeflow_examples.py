"""The manifests for Kubeflow and KServe: the pods that their controllers make of them get the share they ask for."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.scheduler.admission.rules import Admission

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "kubeflow"
Document = dict[str, Any]


def of_notebook(manifest: Document) -> Document:
    """The pod of a Notebook: its controller copies the template into a StatefulSet, and adds what its pods have.

    Source: kubeflow/notebooks, components/notebook-controller, generateStatefulSet.
    """
    template = copy.deepcopy(manifest["spec"]["template"])
    meta = template.setdefault("metadata", {})
    meta |= {"name": f"{manifest['metadata']['name']}-0", "namespace": "team"}
    meta["labels"] = {"statefulset": manifest["metadata"]["name"], "notebook-name": manifest["metadata"]["name"]}
    container = template["spec"]["containers"][0]
    container |= {"workingDir": "/home/jovyan", "ports": [{"containerPort": 8888, "name": "notebook-port"}]}
    template["spec"]["securityContext"] = {"fsGroup": 100}
    return dict(template)


def of_inference_service(manifest: Document) -> Document:
    """The predictor's pod in the mode Standard: a Deployment whose pods have the service's annotations and a container.

    Source: kserve/kserve, pkg/controller/v1beta1/inferenceservice/components/predictor.go.
    """
    model = copy.deepcopy(manifest["spec"]["predictor"]["model"])
    container = {
        "name": "kserve-container", "image": "kserve/huggingfaceserver", "args": model["args"],
        "resources": model["resources"],
    }  # fmt: skip
    annotations = dict(manifest["metadata"]["annotations"])
    return {
        "metadata": {
            "name": f"{manifest['metadata']['name']}-predictor-5d8f-x", "namespace": "team", "annotations": annotations,
        },
        "spec": {"containers": [container, {"name": "queue-proxy", "image": "queue", "resources": {}}]},
    }  # fmt: skip


# By file: how its controller makes a pod, the container, request and limit in milli-GPU, MiB, and microseconds to wake.
TABLE = {
    "notebook.yaml": (of_notebook, "lab", 330, 600, 8192, 0),
    "inference.yaml": (of_inference_service, "kserve-container", 400, None, 24576, 20_000),
}


@pytest.mark.parametrize("file", TABLE)
def test_the_pod_of_a_manifest_asks_for_its_share(file: str):
    """The webhook admits the pod without a fault or a warning, sends it to Aliquot's scheduler, and reads the share."""
    make, container, request, limit, mib, wake_us = TABLE[file]
    pod = make(yaml.safe_load((EXAMPLES / file).read_text()))
    answer = Admission(pod_scheduler="aliquot-scheduler").mutate({"object": pod})

    assert ((), ()) == (answer.faults, answer.warnings)
    assert answer.changed is not None
    assert "aliquot-scheduler" == answer.changed["spec"]["schedulerName"]
    ask = read(msgspec.convert(answer.changed, Pod))
    assert ask is not None
    (one,) = ask.containers
    assert (container, request, limit) == (one.container, one.request.request_milli, one.request.limit_milli)
    assert one.request.memory is not None
    assert (mib, wake_us) == (one.request.memory.mib, one.request.wake_us)


@pytest.mark.parametrize("file", TABLE)
def test_the_rest_of_the_pod_stays_as_its_controller_made_it(file: str):
    """The webhook changes the scheduler's name and resources of ours, nothing else."""
    pod = TABLE[file][0](yaml.safe_load((EXAMPLES / file).read_text()))
    changed = Admission(pod_scheduler="aliquot-scheduler").mutate({"object": pod}).changed
    assert changed is not None
    changed = copy.deepcopy(changed)
    del changed["spec"]["schedulerName"]

    for before, after in zip(pod["spec"]["containers"], changed["spec"]["containers"], strict=True):
        assert {key: value for key, value in before.items() if key != "resources"} == {
            key: value for key, value in after.items() if key != "resources"
        }
    assert pod["metadata"] == changed["metadata"]


def test_every_manifest_is_in_the_table():
    """No manifest for Kubeflow is left out."""
    assert set(TABLE) == {path.name for path in EXAMPLES.glob("*.yaml")}
