"""What the webhook says to the API server."""

import base64
import copy
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.kube.convert import convert
from aliquot.kube.dialects import read
from aliquot.kube.names import GPU_MEMORY_LIMIT as LIMIT
from aliquot.kube.objects import Pod
from aliquot.scheduler.admission.rules import Admission, AdmissionAnswer, BadReview, answer, difference

sys.path.append(str(Path(__file__).resolve().parents[3] / "tools"))
from webhook_config import configurations


def pod(limits: dict[str, Any] | None = None, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod of one container as it is sent."""
    metadata = {"name": "p", "annotations": annotations} if annotations else {"name": "p"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": {"limits": limits or {}}}]}}


def ask(document: dict[str, Any], kind: str = "Pod", **more: Any) -> dict[str, Any]:
    """A request of an AdmissionReview."""
    return {"uid": "7", "namespace": "team", "kind": {"kind": kind}, "object": document, **more}


def limits_of(said: AdmissionAnswer) -> dict[str, Any]:
    """Limits of the first container as they should be."""
    assert said.changed is not None
    found: dict[str, Any] = said.changed["spec"]["containers"][0]["resources"]["limits"]
    return found


@pytest.mark.parametrize(
    ("limits", "name", "milli"),
    [
        ({"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8}, "tencent", 300),
        ({"aliyun.com/gpu-mem": 4}, "aliyun", 10),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, "hami", 300),
        ({"nvidia.com/gpu": 2}, "nvidia", 2000),
    ],
)
def test_other_words_become_resources_that_the_scheduler_sees(limits: dict[str, Any], name: str, milli: int):
    """The old resources go, ours come, and what is read from the new pod is what the old one asked for."""
    document = pod(limits)
    said = Admission().mutate(ask(document))

    assert {"aliquot.dev/gpu-percent", "aliquot.dev/gpu-memory"} >= set(limits_of(said))
    assert said.changed is not None and name == said.changed["metadata"]["annotations"]["aliquot.dev/dialect"]
    found = read(msgspec.convert(said.changed, Pod))
    assert found is not None and milli == found.containers[0].total_milli


@pytest.mark.parametrize(("percent", "privileged", "warnings"), [(30, True, 1), (30, False, 0), (200, True, 0)])
def test_a_privileged_container_with_a_share_is_let_in_with_a_warning(percent: int, privileged: bool, warnings: int):
    """It reaches every GPU of its node past its share; whole GPUs have no share to pass by."""
    document = pod({"aliquot.dev/gpu-percent": percent})
    document["spec"]["containers"][0]["securityContext"] = {"privileged": privileged}
    said = Admission().mutate(ask(document))

    assert () == said.faults
    assert warnings == sum("spec.containers[main].securityContext.privileged" in text for text in said.warnings)


def test_what_is_nested_too_deeply_is_refused():
    """A SharePod whose template no program of ours could read gets a sentence, and is not let in unread."""
    inner: dict[str, Any] = {}
    for _ in range(700):
        inner = {"a": inner}
    sharepod = {"metadata": {"name": "s"}, "spec": {"gpu": {"request": "0.1"}, "template": {"spec": inner}}}
    said = answer(json.dumps({"request": ask(sharepod, "SharePod")}).encode(), Admission().validate)["response"]

    assert not said["allowed"] and "nested more deeply" in said["status"]["message"]


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, "aliquot-scheduler"), ("default-scheduler", "aliquot-scheduler"), ("volcano", "volcano")],
)
def test_a_pod_that_leaves_its_scheduler_open_gets_the_one_that_asks_aliquot(named: str | None, expected: str):
    """Manifests run as they are; who names a scheduler of its own keeps it, and other pods are not touched."""
    admission = Admission(pod_scheduler="aliquot-scheduler")
    document, other = pod({"tencent.com/vcuda-core": 30}), pod({"cpu": "1"})
    for made in (document, other):
        made["spec"] |= {"schedulerName": named} if named else {}
    said = admission.mutate(ask(document))

    assert said.changed is not None and expected == said.changed["spec"]["schedulerName"]
    assert AdmissionAnswer() == admission.mutate(ask(other))


LIMITS = "spec.containers[main].resources.limits"


@pytest.mark.parametrize(
    ("limits", "annotations", "fault"),
    [
        ({"cpu": "1"}, {"aliquot.dev/gpu-requst": "0.3"}, 'metadata.annotations["aliquot.dev/gpu-requst"] is not an'),
        (
            {"aliquot.dev/gpu-percents": 30}, {}, f'{LIMITS}["aliquot.dev/gpu-percents"] is not a resource of Aliquot; '
            "it knows aliquot.dev/gpu-percent, aliquot.dev/gpu-memory",
        ),
        ({"aliquot.dev/gpu-percent": 30, "aliquot.dev/gpu-mem": "4Gi"}, {}, f'{LIMITS}["aliquot.dev/gpu-mem"] is not'),
        (
            {"aliquot.dev/gpu-percent": 0}, {},
            f'{LIMITS}["aliquot.dev/gpu-percent"] is 0, which is no share; the least is 1',
        ),
    ],
    ids=["a misspelt annotation alone", "a misspelt resource alone", "a misspelt resource beside a right one", "zero"],
)  # fmt: skip
def test_words_of_ours_that_would_ask_for_nothing_are_refused(limits: dict[str, Any], annotations: dict, fault: str):
    """The pod would run without a GPU or wait for ever: the one fault names the word and what there is."""
    (said,) = Admission().mutate(ask(pod(limits, annotations))).faults

    assert said.startswith(fault)


@pytest.mark.parametrize("memory", ["4G", "4000M", "4e9", 4 * 10**9, "4Gi", "1"])
def test_memory_in_any_quantity_leaves_limits_and_requests_equal(memory: str | int):
    """The API server copied the limit to the requests before it asks, and refuses a pod in which they differ."""
    wanted = {"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": memory}
    document = pod(wanted)
    document["spec"]["containers"][0]["resources"]["requests"] = dict(wanted)
    said = Admission().mutate(ask(document))
    made = said.changed if said.changed is not None else document
    resources = made["spec"]["containers"][0]["resources"]

    assert () == said.faults
    assert resources["limits"] == resources["requests"]


def test_whole_gpus_are_left_to_the_stock_plugin_where_it_has_them():
    """Coexist: nvidia.com/gpu stays as it is; HAMi's fractions are ours all the same."""
    admission = Admission(whole=False)

    assert AdmissionAnswer() == admission.mutate(ask(pod({"nvidia.com/gpu": 1})))
    assert admission.mutate(ask(pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}))).changed is not None


def test_an_annotation_alone_gets_its_resource():
    """kube-scheduler asks extenders by resources only, so a request in an annotation needs one."""
    said = Admission().mutate(ask(pod(annotations={"aliquot.dev/gpu-request": "0.125"})))

    assert {"aliquot.dev/gpu-percent": 12} == limits_of(said)


@pytest.mark.parametrize(("percent", "limit"), [(30, "0.50"), (70, "0.70"), (100, None), (250, None)])
def test_who_says_no_limit_gets_the_clusters(percent: int, limit: str | None):
    """Half a GPU by default, never less than the request; whole GPUs have none."""
    document = pod({"aliquot.dev/gpu-percent": percent})
    said = Admission(default_limit_milli=500).mutate(ask(document))
    made = said.changed if said.changed is not None else document

    assert limit == (made["metadata"].get("annotations") or {}).get("aliquot.dev/gpu-limit")


def test_every_fault_of_a_pod_is_named():
    """Three annotations are wrong: one refusal with three paths; the object is not changed."""
    notes = {"aliquot.dev/gpu-limit": "0.1x", "aliquot.dev/affinity": "no label", "aliquot.dev/gpu-colour": "red"}
    document = pod({"aliquot.dev/gpu-percent": 30}, notes)
    before = copy.deepcopy(document)
    said = Admission().mutate(ask(document))

    assert 3 == len(said.faults) and said.changed is None and before == document
    assert all(any(f'metadata.annotations["{key}"]' in fault for fault in said.faults) for key in notes)


@pytest.mark.parametrize("limits", [{"aliquot.dev/gpu-percent": 30}, {"cpu": "1"}])
def test_a_copy_of_a_placed_pod_is_placed_anew(limits: dict[str, Any]):
    """The plan, its outcome and the node go with a warning that names them; a forged plan is worth nothing."""
    document = pod(limits, {"aliquot.dev/plan": "{}", "aliquot.dev/plan-status": "main: waits", "a": "b"})
    document["spec"]["nodeName"] = "node-1"
    said = Admission().mutate(ask(document))

    assert said.changed is not None and () == said.faults
    assert {"a": "b"} == said.changed["metadata"]["annotations"] and "nodeName" not in said.changed["spec"]
    (warning,) = said.warnings
    assert all(name in warning for name in ('"aliquot.dev/plan"', '"aliquot.dev/plan-status"', "spec.nodeName"))
    assert warning.endswith("dropped: the copy of a placed pod is placed anew")


@pytest.mark.parametrize("name", ["plan", "plan-applied"])
def test_a_plan_and_what_a_node_has_of_it_are_not_for_people_to_write(name):
    """A pod that is bound keeps its own, and one that is not gets none past the webhook that would drop it."""
    admission = Admission()
    bound, other = (pod({}, {f"aliquot.dev/{name}": value}) for value in ("{}", '{"v":1}'))

    assert admission.validate(ask(other)).faults
    assert admission.validate(ask(other, oldObject=bound)).faults
    assert not admission.validate(ask(bound, oldObject=bound)).faults


APPLIED_TWICE: list[dict[str, Any]] = [
    {"limits": {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8}},
    {"limits": {"tencent.com/vcuda-core": 30}, "spec": {"nodeSelector": {"gaia.tencent.com/gpu-model": "V100"}}},
    {"limits": {"aliyun.com/gpu-mem": 4}},
    {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}, "spec": {"schedulerName": "hami-scheduler"}},
    {"limits": {"nvidia.com/gpu": 2}},
    {"limits": {"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": "4G"}},
    {"labels": {"sharedgpu/gpu_limit": "1.0"}, "spec": {"schedulerName": "kubeshare-scheduler"}},
]


def applied(words: dict[str, Any]) -> dict[str, Any]:
    """A pod in these words, as the API server completes it."""
    limits = words.get("limits", {})
    container = {"name": "main", "resources": {"limits": dict(limits), "requests": dict(limits)} if limits else {}}
    spec = {"schedulerName": "default-scheduler", "containers": [container], **words.get("spec", {})}
    return {"metadata": {"name": "p", "labels": words.get("labels", {"app": "p"})}, "spec": spec}


def completed(document: dict[str, Any]) -> None:
    """Fill in what the API server does after a webhook, in place."""
    document["spec"].setdefault("schedulerName", "default-scheduler")
    resources = document["spec"]["containers"][0].get("resources") or {}
    if limits := resources.get("limits"):
        resources["requests"] = limits | resources.get("requests", {})
    for side, amounts in resources.items():
        resources[side] = {name: str(amount) for name, amount in amounts.items()}


def merged(live: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """The live object with what the manifest says laid over it, as kubectl apply does."""
    both = {**live, **manifest}
    for key in live.keys() & manifest.keys():
        if isinstance(live[key], dict):
            both[key] = merged(live[key], manifest[key])
        elif key == "containers":
            both[key] = [merged(a, b) for a, b in zip(live[key], manifest[key], strict=True)]
    return both


@pytest.mark.parametrize("words", APPLIED_TWICE, ids=lambda words: str(next(iter(words.values()))))
@pytest.mark.parametrize("scheduler", ["", "aliquot-scheduler"])
def test_a_manifest_may_be_applied_again(words: dict[str, Any], scheduler: str):
    """The words that admission replaced are added by the client, and go again: the pod's spec is as it was."""
    admission = Admission(pod_scheduler=scheduler)
    manifest = applied(words)
    live = admission.mutate(ask(manifest)).changed
    assert live is not None
    completed(live)
    again = merged(live, manifest)
    assert again != live
    said = admission.mutate(ask(again, oldObject=live))

    assert said.changed is not None
    completed(said.changed)
    assert live == said.changed


@pytest.mark.parametrize("words", APPLIED_TWICE[:5], ids=lambda words: str(next(iter(words.values()))))
def test_another_request_in_replaced_words_reaches_the_api_server(words: dict[str, Any]):
    """It is refused there as a change of the pod's resources, and not dropped in silence."""
    admission = Admission()
    live = admission.mutate(ask(applied(words))).changed
    assert live is not None
    more = {**words, "limits": {name: value + 1 for name, value in words["limits"].items()}}
    said = admission.mutate(ask(merged(live, applied(more)), oldObject=live))

    assert said.changed is None and () == said.faults


def test_an_update_of_a_pod_that_was_let_in_unread_passes():
    """A pod that was created while no webhook answered may get another image; its request stays as it was written."""
    live = applied({"limits": {"aliyun.com/gpu-mem": 4}})
    again = merged(live, {"spec": {"containers": [{"name": "main", "image": "b"}]}})

    assert AdmissionAnswer() == Admission(pod_scheduler="aliquot-scheduler").mutate(ask(again, oldObject=live))


@pytest.mark.parametrize(
    ("limits", "annotations", "named"),
    [
        ({"cpu": 1}, {"gpu-fraction": "0.5"}, "gpu-fraction"),
        ({"cpu": 1}, {"gpu-memory": "2000"}, "gpu-memory"),
        ({"volcano.sh/vgpu-memory": 1}, None, "volcano.sh/vgpu-memory"),
        ({"koordinator.sh/gpu-core": 50}, None, "koordinator.sh/gpu-core"),
        ({"tke.cloud.tencent.com/qgpu-core": 50}, None, "tke.cloud.tencent.com/qgpu-core"),
        ({"elasticgpu.io/gpu-core": 50}, None, "elasticgpu.io/gpu-core"),
        ({"4pd.io/vgpu": 1}, None, "4pd.io/vgpu"),
        ({"metax-tech.com/sgpu": 1}, None, "metax-tech.com/sgpu"),
        ({"nvidia.com/mig-1g.5gb": 1}, None, "nvidia.com/mig-1g.5gb"),
        ({"aliyun.com/gpu-mem": 2, "aliyun.com/gpu-core.percentage": 30}, None, "aliyun.com/gpu-core.percentage"),
    ],
)
def test_words_of_systems_that_are_not_read_get_a_warning(
    limits: dict[str, Any], annotations: dict[str, str] | None, named: str
):
    """The pod is let in, for another plugin may serve it, and its author reads what to write for a share."""
    said = Admission().mutate(ask(pod(limits, annotations)))

    (warning,) = said.warnings
    assert () == said.faults and f'"{named}"] is not read here and is left as it is; ' in warning


@pytest.mark.parametrize("named", ["nvidia.com/gpumemm", "nvidia.com/gpu-10gb", "tencent.com/vcuda-cores"])
@pytest.mark.parametrize("others", [{}, {"nvidia.com/gpu": 1}, {"aliquot.dev/gpu-percent": 30}])
def test_a_word_that_is_like_one_that_is_read_gets_a_warning(named: str, others: dict[str, Any]):
    """Misspelt or another plugin's, beside a request that is read or not: the same that `aliquot convert` reports."""
    said = Admission().mutate(ask(pod({named: 1, **others})))

    assert () == said.faults
    assert (
        f'spec.containers[main].resources.limits["{named}"] is not known here and is left as it is',
    ) == said.warnings


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"nvidia.com/priority": 1}, 'asks for no GPU; add "nvidia.com/gpu", or leave it out'),
        ({"aliyun.com/gpu-mem": 1024}, "where it means MiB, convert with --aliyun-unit MiB"),
        ({"aliyun.com/gpu-mem": 16}, ""),
        ({"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": 4}, "did you mean 4Gi?"),
        ({"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": "4Gi"}, ""),
        ({"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": "300Mi"}, "300Mi leaves little or nothing"),
        ({"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": "1000Gi"}, "1000Gi is more memory than any GPU has"),
        ({"aliquot.dev/gpu-percent": "1e9"}, "asks for 10000000 GPUs of one node, more than any node has"),
    ],
)
def test_an_amount_of_memory_in_another_unit_gets_a_warning(limits: dict[str, Any], sentence: str):
    """More than any GPU has, or less than any program needs, was probably meant in another unit."""
    warnings = Admission().mutate(ask(pod(limits))).warnings

    assert bool(sentence) == len(warnings) and sentence in "".join(warnings)


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        (
            {"request": 0.3, "memory": "4"},
            "spec.gpu.memory 4 is in MiB, too little for a CUDA context; did you mean 4Gi?",
        ),
        ({"request": 0.3, "memory": "1Ti"}, "spec.gpu.memory 1Ti is more memory than any GPU has; it waits for ever"),
        ({"request": 200}, "spec.gpu.request asks for 200 GPUs of one node, more than any node has; it waits for ever"),
        ({"request": 0.3, "memory": "4Gi"}, ""),
    ],
)
def test_an_amount_that_no_gpu_has_gets_a_warning_in_a_sharepod_too(gpu: dict[str, Any], sentence: str):
    """Its author reads the field's name and what was probably meant."""
    spec = {"gpu": gpu, "template": {"spec": {"containers": [{"name": "main"}]}}}

    assert AdmissionAnswer(warnings=(sentence,) * bool(sentence)) == Admission().validate(
        ask({"metadata": {"name": "s"}, "spec": spec}, "SharePod")
    )


def test_a_quota_of_nothing_gets_a_warning():
    """It is taken, as some mean it so."""
    document = {"metadata": {"name": "q"}, "spec": {"limits": [{"model": "V100", "gpus": 0}, {"gpus": "0.0"}]}}

    assert AdmissionAnswer(
        warnings=(
            "spec.limits[0].gpus is 0: no pod of the namespace gets a GPU of model V100",
            "spec.limits[1].gpus is 0: no pod of the namespace gets a GPU",
        )
    ) == Admission().validate(ask(document, "GPUQuota"))


def test_a_quota_without_a_limit_gets_a_warning():
    """It is taken too: limits may be added later."""
    warnings = [
        Admission().validate(ask({"metadata": {"name": "q"}, "spec": {"limits": []} | more}, "GPUQuota")).warnings
        for more in ({}, {"forbid": ["exclusion"]})
    ]

    assert [("spec.limits and spec.forbid are empty: the quota limits nothing",), ()] == warnings


@pytest.mark.parametrize(
    ("gpu", "sentence"),
    [
        ({"limit": 1}, "spec.gpu.request is missing"),
        ({"request": "x"}, 'spec.gpu.request: "x" is not a fraction of a GPU; write 0.3, 30% or 300m'),
        ({"request": 0.3, "affinity": "a b"}, 'spec.gpu.affinity: "a b" is not a label; write letters, digits'),
        ({"request": 0.3, "gpuID": "a b"}, 'spec.gpu.gpuID: "a b" is not a label; write letters, digits'),
    ],
)
def test_a_field_of_the_wrong_form_is_refused_in_words(gpu: dict[str, Any], sentence: str):
    """No refusal quotes a regular expression; the API server asks before it compares the object with its schema."""
    spec = {"gpu": gpu, "template": {"spec": {"containers": [{"name": "main"}]}}}
    (fault,) = Admission().validate(ask({"metadata": {"name": "s"}, "spec": spec}, "SharePod")).faults
    before_schema, _ = configurations("gpu")

    assert fault.startswith(sentence) and "^" not in fault
    assert {"sharepods", "gpuquotas"} < {
        kind for hook in before_schema["webhooks"] for kind in hook["rules"][0]["resources"]
    }


def test_a_model_that_is_asked_for_by_affinity_gets_a_warning():
    """gpu-manager's label is read from the node selector, and no node has it."""
    expression = {"key": "gaia.tencent.com/gpu-model", "operator": "In", "values": ["V100"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    document = pod({"tencent.com/vcuda-core": 30})
    document["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    (warning,) = Admission().mutate(ask(document)).warnings
    (note,) = convert({"kind": "Pod", **document})[0].notes

    assert 'spec.affinity.nodeAffinity["gaia.tencent.com/gpu-model"] is not read here' in warning
    assert 'spec.affinity.nodeAffinity["gaia.tencent.com/gpu-model"] is left as it is: write it in' in note


def test_a_quota_below_what_is_held_is_refused():
    """Each bound is looked at, and each that is too low or unreadable is named by its path."""
    admission = Admission(usage=lambda namespace: {"Tesla V100": (1500, 4096)} if namespace == "team" else {})
    limits = [{"model": "V100", "gpus": "1", "memory": "8Gi"}, {"gpus": "many"}, {"model": "A100", "gpus": 0}]
    limits += [{"model": "H100"}, {"memory": "50%"}]
    said = admission.validate(ask({"metadata": {"name": "q"}, "spec": {"limits": limits}}, "GPUQuota"))

    fields = ["spec.limits[0].gpus", "spec.limits[1].gpus", "spec.limits[3].gpus", "spec.limits[4].memory"]
    assert fields == [fault.split(" ")[0].rstrip(":") for fault in said.faults]
    assert "spec.limits[3].gpus and memory are both left out; write one of them, or both" == said.faults[2]
    assert "1.00 is below the 1.50 GPUs of V100 that the namespace holds" in said.faults[0]


@pytest.mark.parametrize(
    ("cohort", "limit", "sentence"),
    [
        (
            "",
            {"gpus": 2, "nominalGpus": 1},
            "nominalGpus 1 is lent to other namespaces of spec.cohort; name one, or leave",
        ),
        (
            "all",
            {"gpus": 2, "nominalGpus": 3},
            "nominalGpus is above gpus, the most that it may hold; write at most that",
        ),
        ("all", {"memory": "1Gi", "nominalMemory": "2Gi"}, "nominalMemory is above memory, the most that it may hold"),
    ],
)
def test_a_nominal_quota_is_a_part_of_the_bound_and_has_a_cohort(cohort: str, limit: dict[str, Any], sentence: str):
    """What nobody could borrow, and what is more than the namespace may hold itself, is refused."""
    spec = {"cohort": cohort, "limits": [limit]}
    (fault,) = Admission().validate(ask({"metadata": {"name": "q"}, "spec": spec}, "GPUQuota")).faults

    assert fault.startswith(f"spec.limits[0].{sentence}")


def test_a_sharepod_that_was_taken_may_lose_its_finalizers():
    """What is unchanged is not judged again, else a stricter version of Aliquot could keep it from being deleted."""
    wrong = {"metadata": {"name": "s"}, "spec": {"gpu": {"request": "x"}, "template": {"spec": {"containers": []}}}}
    admission = Admission()

    assert admission.validate(ask(wrong, "SharePod")).faults
    assert not admission.validate(ask(wrong, "SharePod", oldObject=wrong)).faults


PLACED = {"podName": "s", "nodeName": "node-1"}


def test_a_sharepod_on_its_node_is_resized_in_place():
    """Request, limit and memory change while the pod runs, not before it is on its node, and only to what can be."""
    spec = {"gpu": {"request": "0.2", "limit": "0.5"}, "template": {"spec": {"containers": [{"name": "main"}]}}}
    old = {"metadata": {"name": "s"}, "spec": spec}

    def faults(gpu: dict[str, Any], status: dict[str, str], limit: str = "") -> tuple[str, ...]:
        new = {"metadata": {"name": "s", "annotations": {LIMIT: limit} if limit else {}}, "spec": spec | {"gpu": gpu}}
        return Admission().validate(ask(new, "SharePod", oldObject=old | {"status": status})).faults

    assert () == faults({"request": "0.6", "memory": "6Gi"}, PLACED)
    assert faults({"request": "0.6"}, {"podName": "s"})[0].startswith("spec.gpu cannot be changed in place")
    assert "is below" in faults({"request": "0.6", "limit": "0.5"}, PLACED)[0]
    assert () == faults(spec["gpu"], PLACED, limit="8Gi") == faults({"request": "0.6"}, PLACED, limit="8Gi")
    assert faults(spec["gpu"], PLACED, limit="much")[0].startswith(f'metadata.annotations["{LIMIT}"]: "much" is not')
    assert f'["{LIMIT}"] cannot be changed in place' in faults(spec["gpu"], {"podName": "s"}, limit="8Gi")[0]


def test_what_a_sharepod_says_for_one_machine_is_named():
    """It is taken, for the same SharePod can be applied to a machine; what counts in a cluster is not named."""
    notes = {"aliquot.dev/park-after": "10m", LIMIT: "8Gi"}
    spec = {"gpu": {"request": "0.2", "memory": "4Gi"}, "template": {"spec": {"containers": [{"name": "main"}]}}}
    said = Admission().validate(ask({"metadata": {"name": "s", "annotations": notes}, "spec": spec}, "SharePod"))

    where = 'metadata.annotations["aliquot.dev/park-after"]'
    assert ((), (f"{where} is for one machine, and changes nothing in a cluster",)) == (said.faults, said.warnings)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpu": {"request": "0.2", "limit": "0.5", "model": "A100"}}, "spec.gpu"),
        ({"gpu": {"request": "2"}}, "spec.gpu"),
        ({"template": {"spec": {"containers": [{"name": "main", "command": ["b"]}]}}}, "spec.template"),
        ({"nodeName": "node-2"}, "spec.nodeName"),
    ],
)
def test_a_sharepod_with_a_pod_is_not_changed_in_place(change: dict[str, Any], field: str):
    """What is no other size of a part of one GPU is refused with the way out; before there is a pod it is taken."""
    spec = {"gpu": {"request": "0.2", "limit": "0.5"}, "template": {"spec": {"containers": [{"name": "main"}]}}}
    waits = {"metadata": {"name": "s"}, "spec": spec}
    new, placed = waits | {"spec": spec | change}, waits | {"status": PLACED}
    admission = Admission()
    (fault,) = admission.validate(ask(new, "SharePod", oldObject=placed)).faults

    assert fault.startswith(f"{field} cannot be changed in place") and "kubectl delete sharepod s" in fault
    assert AdmissionAnswer() == admission.validate(ask(new, "SharePod", oldObject=waits))
    assert AdmissionAnswer() == admission.validate(ask(placed, "SharePod", oldObject=placed))


def test_another_spelling_of_an_amount_is_no_change():
    """A SharePod with a pod may be applied again with the same amounts written otherwise."""
    template = {"spec": {"containers": [{"name": "main"}]}}
    before = {"request": "0.2", "limit": "0.5", "memory": "2Gi"}
    after = {"request": 0.2, "limit": "0.50", "memory": "2048Mi"}
    old, new = ({"metadata": {"name": "s"}, "spec": {"gpu": gpu, "template": template}} for gpu in (before, after))

    assert AdmissionAnswer() == Admission().validate(ask(new, "SharePod", oldObject=old | {"status": PLACED}))


def apply(document: Any, patch: list[dict[str, Any]]) -> Any:
    """RFC 6902 for the operations that are used here."""
    made = {"root": copy.deepcopy(document)}
    for step in patch:
        parts = ["root", *(p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:])]
        place: Any = made
        for part in parts[:-1]:
            place = place[int(part) if isinstance(place, list) else part]
        last = int(parts[-1]) if isinstance(place, list) else parts[-1]
        if step["op"] == "remove":
            del place[last]
        else:
            place[last] = step["value"]
    return made["root"]


VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b/c", "d~e"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES, VALUES)
@settings(max_examples=60, deadline=None)
def test_a_patch_leads_from_one_document_to_the_other(before: Any, after: Any):
    """Whatever they are; and from a document to itself it is empty."""
    assert after == apply(before, difference(before, after))
    assert [] == difference(before, before)


def test_the_answer_has_the_uid_and_the_patch():
    """An AdmissionReview of v1 with a JSON patch in base64, or with a status of 422."""
    review = {"request": ask(pod({"tencent.com/vcuda-core": 30}))}
    made = answer(json.dumps(review).encode(), Admission().mutate)["response"]
    patch = json.loads(base64.b64decode(made["patch"]))
    refused = answer(json.dumps({"request": ask(pod({"aliquot.dev/gpu-percent": "x"}))}).encode(), Admission().mutate)

    assert ("7", True, "JSONPatch") == (made["uid"], made["allowed"], made["patchType"])
    changed = apply(review["request"]["object"], patch)
    assert {"aliquot.dev/gpu-percent": 30} == changed["spec"]["containers"][0]["resources"]["limits"]
    assert (False, 422) == (refused["response"]["allowed"], refused["response"]["status"]["code"])


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b'{"request": 1}', b'{"request": {"uid": 1}}', b"[" * 5000]))
def test_a_body_that_is_no_review_is_refused(body: bytes):
    """In one sentence, and nothing else happens."""
    with pytest.raises(BadReview, match="not an AdmissionReview"):
        answer(body, Admission().mutate)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "spec", "containers", "resources", "limits", "name"]), inner)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JUNK), st.sampled_from(["Pod", "SharePod", "GPUQuota"]))
@settings(max_examples=50, deadline=None)
def test_any_object_gets_an_answer(document: dict[str, Any], kind: str):
    """However it looks: taken, changed or refused, but never an exception."""
    admission = Admission()
    request = ask(document, kind)

    assert isinstance(admission.validate(request), AdmissionAnswer)
    if kind == "Pod":
        assert isinstance(admission.mutate(request), AdmissionAnswer)
