"""Pods with resources in a namespace of claims: what they ask for becomes claims that ask for the same."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.kube.claims import PLACED_CLASS, ResourceClaim, claims_ask, claims_made, requested, template_name
from aliquot.kube.dialects import read
from aliquot.kube.names import GATE
from aliquot.kube.objects import Pod
from aliquot.kube.requests import ContainerAsk
from aliquot.model.quantities import Memory
from aliquot.model.requests import GpuRequest, Labels
from aliquot.scheduler.admission.rules import Admission, AdmissionAnswer

PERCENT, MEMORY, CLAIMS = "aliquot.dev/gpu-percent", "aliquot.dev/gpu-memory", "aliquot.dev/claims"
TENCENT = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}


def pod(*limits: dict[str, str], notes: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod as it is sent, whose containers have these limits."""
    containers = [{"name": f"c{number}", "resources": {"limits": each}} for number, each in enumerate(limits)]
    return {"metadata": {"name": "p", "annotations": notes or {}}, "spec": {"containers": containers, **spec}}


def admitted(document: dict[str, Any], kind: str = "share", *, claims: bool = True) -> AdmissionAnswer:
    """The answer of the second review, after that of the first."""
    first = Admission().mutate({"object": document})
    assert not first.faults
    return Admission(claims=claims).claim({"object": first.changed or document}, kind)


def claims_of(said: AdmissionAnswer) -> dict[str, ResourceClaim]:
    """The claims that the pod's templates will make."""
    assert said.changed is not None, said
    made = claims_made(said.changed["metadata"]["annotations"])
    uses = {use["name"]: use["resourceClaimTemplateName"] for use in said.changed["spec"]["resourceClaims"]}
    assert {name: template_name(devices) for name, devices in made.items()} == uses
    return {name: claim_of(devices) for name, devices in made.items()}


def claim_of(devices: Any) -> ResourceClaim:
    """A claim as a template with these requests makes it."""
    return msgspec.convert({"spec": {"devices": msgspec.to_builtins(devices)}}, ResourceClaim)


@st.composite
def asks(draw: st.DrawFn) -> ContainerAsk:
    """What a container may ask for by extended resources."""
    milli = draw(st.one_of(st.integers(1, 999), st.sampled_from([1000, 2000, 8000])))
    of_one, part = milli <= 1000, milli < 1000
    request = GpuRequest(
        milli,
        draw(st.one_of(st.none(), st.integers(milli, 1000))) if part else None,
        draw(st.sampled_from([None, Memory(mib=3000), Memory(part=Fraction(1, 4))])) if of_one else None,
        draw(st.sampled_from(["", "V100", "A100|H100"])),
        draw(st.sampled_from(["", "GPU-a", "GPU-a,GPU-b"])),
        labels=Labels(draw(st.sampled_from(["", "a"])) if of_one else "", "", draw(st.sampled_from(["", "team-b"]))),
        mixed=of_one or draw(st.booleans()),  # of one GPU it says nothing
        wake_us=draw(st.sampled_from([0, 5000])) if part else 0,
        memory_limit=draw(st.sampled_from([None, Memory(mib=3000), Memory(part=Fraction(1, 2))])) if part else None,
    )
    parts = draw(st.integers(1, 3)) if part and not request.labels.affinity else 1
    not_these = draw(st.sampled_from([(), ("T4",)])), draw(st.sampled_from([(), ("GPU-c",)]))
    return ContainerAsk("", request, "app", parts, *not_these)


@given(asked=asks())
def test_a_claim_that_aliquot_places_asks_for_what_the_container_asked(asked: ContainerAsk):
    """Nothing of a request is lost on the way through a claim: amounts, limit, labels, names, models, waking."""
    found = claims_ask([claim_of(requested(asked, PLACED_CLASS))])

    assert found is not None and () == found.notes
    assert (asked,) == found.containers


def test_words_of_any_dialect_become_a_claim_that_kube_scheduler_allocates():
    """The claim is called as its container, the resources go, and the pod is read as asking by claims alone."""
    said = admitted(pod(TENCENT, {"cpu": "1"}))
    (claim,) = claims_of(said).values()
    (request,) = claim.spec.devices.requests

    assert said.changed is not None and request.exactly is not None
    assert "gpu-share.aliquot.dev" == request.exactly.device_class_name
    assert {"requests": {"compute": "30", "memory": "2Gi"}} == request.exactly.capacity
    resources = [each["resources"] for each in said.changed["spec"]["containers"]]
    assert [{"claims": [{"name": "c0"}]}, {"limits": {"cpu": "1"}}] == resources
    assert read(msgspec.convert(said.changed, Pod)) is None


def test_an_init_container_with_another_ones_share_names_its_claim():
    """What runs before the container and needs no more than it shares the container's claim; they are one tenant."""
    first = {"name": "warm", "resources": {"limits": {PERCENT: "20", MEMORY: "1Gi"}}}
    said = admitted(pod({PERCENT: "30", MEMORY: "4Gi"}, initContainers=[first]))

    assert said.changed is not None and {"c0"} == set(claims_of(said))
    assert {"claims": [{"name": "c0"}]} == said.changed["spec"]["initContainers"][0]["resources"]


def test_pods_that_ask_the_same_share_a_template_and_wait_for_aliquot_where_it_places_them():
    """A template is called by what it asks for; the gate keeps kube-scheduler from trying in vain."""
    one, other = (admitted(pod({PERCENT: "30"}, notes=notes), "placed") for notes in ({}, {"team": "a"}))

    assert one.changed is not None and other.changed is not None
    assert one.changed["spec"]["resourceClaims"] == other.changed["spec"]["resourceClaims"]
    assert [{"name": GATE}] == one.changed["spec"]["schedulingGates"]


@pytest.mark.parametrize("kind", ["share", "placed"])
def test_pods_of_a_native_group_ask_by_claims_and_keep_their_group(kind: str):
    """kube-scheduler finds the group on the pod, which asks by claims whoever allocates them."""
    group = {"podGroupName": "g"}
    said = admitted(pod({PERCENT: "30", MEMORY: "1Gi"}, schedulingGroup=group), kind)

    assert {"c0"} == set(claims_of(said)) and () == said.warnings
    assert said.changed is not None and group == said.changed["spec"]["schedulingGroup"]


@pytest.mark.parametrize(
    ("limits", "notes", "spec", "why"),
    [
        ({PERCENT: "30"}, {}, {}, "needs an amount of memory"),
        ({PERCENT: "30", MEMORY: "1Gi"}, {"aliquot.dev/affinity": "a"}, {}, "labels of GPUs"),
        ({PERCENT: "30", MEMORY: "1Gi"}, {"aliquot.dev/gpuid": "a"}, {}, "a vGPU"),
        ({PERCENT: "250"}, {}, {}, "whole GPUs and a part of one"),
        ({PERCENT: "100"}, {"aliquot.dev/enforce": "never"}, {}, "enforce never"),
        ({PERCENT: "100"}, {"aliquot.dev/workload": "uid"}, {}, "Kueue"),
        ({PERCENT: "100"}, {}, {"resourceClaims": [{"name": "c0", "resourceClaimName": "nic"}]}, "a c0 of its own"),
        (
            {PERCENT: "10", MEMORY: "1Gi"}, {},
            {"initContainers": [{"name": "i", "resources": {"limits": {PERCENT: "20", MEMORY: "1Gi"}}}]},
            "init container i asks for more",
        ),
    ],
)  # fmt: skip
def test_what_a_claim_cannot_say_stays_with_extended_resources(
    limits: dict[str, str], notes: dict[str, str], spec: dict[str, Any], why: str
):
    """The pod is served as before, and a warning says why it has no claim."""
    said = admitted(pod(limits, notes=notes, **spec))

    assert said.changed is None and not said.faults
    (warning,) = said.warnings
    assert warning.startswith("extended resources, no claims: ") and why in warning


def test_a_namespace_of_claims_changes_nothing_where_nodes_serve_none():
    """A label alone must not make pods wait for a driver that is not there."""
    assert "claims.enabled" in admitted(pod({PERCENT: "100"}), claims=False).warnings[0]


@pytest.mark.parametrize("words", [TENCENT, {PERCENT: "30", MEMORY: "2Gi"}])
@pytest.mark.parametrize("kind", ["share", "placed"])
def test_a_manifest_that_became_claims_may_be_applied_again(words: dict[str, str], kind: str):
    """The client adds the words that were replaced; they go again, unless they now ask for something else."""
    live = admitted(pod(words), kind).changed
    assert live is not None

    def applied(limits: dict[str, str]) -> AdmissionAnswer:
        main = live["spec"]["containers"][0]
        resources = {**main["resources"], "limits": limits, "requests": limits}
        now = {**live, "spec": {**live["spec"], "containers": [{**main, "resources": resources}]}}
        return Admission().mutate({"object": now, "oldObject": live})

    again = applied(words).changed
    assert again is not None and live == again
    assert applied(words | {next(iter(words)): "40"}).changed is None


def test_a_copy_of_a_pod_with_claims_is_placed_anew():
    """Its node had other claims; what it asks for stands in its annotation, by which its template is made again."""
    live = admitted(pod(TENCENT)).changed
    assert live is not None
    said = Admission().mutate({"object": {**live, "spec": {**live["spec"], "nodeName": "n"}}})

    assert said.changed == live and "spec.nodeName" in said.warnings[0]


def test_a_fixed_size_is_asked_for_by_count():
    """Kube-scheduler makes a claim of it; a size that nobody has chosen is still refused as a misspelling."""
    admission = Admission(sizes=frozenset({"aliquot.dev/half"}))

    assert AdmissionAnswer() == admission.mutate({"object": pod({"aliquot.dev/half": "1"})})
    assert "aliquot.dev/third" in admission.mutate({"object": pod({"aliquot.dev/third": "1"})}).faults[0]
