"""The extender's answers over HTTP: right ones, and one sentence for every body that is none."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from any_pod import number, pods
from control_scene import Scene, Truth
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.objects import node
from served import Served, pod
from starlette.requests import Request

from aliquot.kube.reflector import SLICE
from aliquot.scheduler.extender.server import Extender
from aliquot.scheduler.settings import kube_scheduler_config


def test_filter_answers_names_with_names():
    """With nodeCacheCapable the answer has the fitting names, never null, and a reason for each other."""
    status, answer = Served().post("filter", {"Pod": pod(), "NodeNames": ["m", "other", "n"]})

    assert 200 == status
    assert ["m", "n"] == answer["NodeNames"]
    assert {"other": "has no GPUs that Aliquot knows of"} == answer["FailedAndUnresolvableNodes"]
    assert (None, {}, "") == (answer["Nodes"], answer["FailedNodes"], answer["Error"])


def test_filter_answers_nodes_with_nodes():
    """Without nodeCacheCapable whole nodes come and go back as they came, also what we do not read."""
    nodes = {"items": [{"metadata": {"name": name}, "status": {"odd": [1, {"a": None}]}} for name in ("n", "z")]}
    _, answer = Served().post("filter", {"Pod": pod(), "Nodes": nodes})

    assert nodes["items"][:1] == answer["Nodes"]["items"]
    assert answer["NodeNames"] is None


def test_a_pod_that_contradicts_itself_fits_nowhere_and_is_told_why():
    """The reason is the pod's fault on every node, and unresolvable, so that nobody is evicted for it."""
    message = {"Pod": pod(**{"aliquot.dev/gpu-limit": "0.2"}), "NodeNames": ["n"]}
    _, answer = Served().post("filter", message)

    assert [] == answer["NodeNames"]
    assert 'gpu-limit"] 0.20 is below' in answer["FailedAndUnresolvableNodes"]["n"]


async def test_facts_about_many_nodes_hold_up_nobody():
    """Between the nodes of an inspect others have their turn, and each device is told once."""
    names = [f"n{number:03d}" for number in range(3 * SLICE)]
    scene = Scene(Truth(), [node(name, 1) for name in names])
    extender = Extender(scene.ledger, scene.binder, scene.cache.get, lambda: True)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    answer = await extender._inspect(Request({"type": "http"}))
    other.cancel()
    told = json.loads(bytes(answer.body))["nodes"]

    assert [(name, [f"GPU-{name}-0"]) for name in names] == [
        (n["name"], [d["uuid"] for d in n["devices"]]) for n in told
    ]
    assert turns >= 3


def test_an_author_can_not_make_the_answer_long():
    """What stands there once for every node is a sentence, whatever the pod's author wrote into annotations."""
    notes = {f"aliquot.dev/nothing-{number}": "" for number in range(2000)}
    uuids = {"aliquot.dev/gpu-uuid": ",".join(f"GPU-{number}" for number in range(700))}
    answers = [Served().post("filter", {"Pod": pod(**note), "NodeNames": ["n"]})[1] for note in (notes, uuids)]
    reasons = [{**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}["n"] for answer in answers]

    assert all(len(reason) <= 500 for reason in reasons)


def test_who_prefers_nodes_gets_scores_that_leave_them_the_say():
    """Nodes that fit differ by one step for a pod with preferred node affinity, whatever placement thinks of them."""
    served = Served()
    made = served.scene.truth.create("a", {"aliquot.dev/gpu-percent": 30})
    served.scene.catch_up()
    served.post("bind", {"PodName": "a", "PodNamespace": "default", "PodUID": made.metadata.uid, "Node": "m"})
    plain, choosy = pod(), pod()
    preference = {"weight": 1, "preference": {"matchFields": []}}
    choosy["spec"]["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}

    def told(asked: Any) -> dict[str, int]:
        answer = served.post("prioritize", {"Pod": asked, "NodeNames": ["n", "m"]})[1]
        return {entry["Host"]: entry["Score"] for entry in answer}

    assert ({"n": 0, "m": 10}, {"n": 9, "m": 10}) == (told(plain), told(choosy))


def test_a_pod_without_gpus_goes_anywhere():
    """A pod that asks for no GPU is passed through."""
    _, answer = Served().post("filter", {"Pod": pod({"cpu": 1}), "NodeNames": ["n", "other"]})

    assert ["n", "other"] == answer["NodeNames"]


def test_verbs_wait_for_the_caches():
    """Before the caches are whole every verb is 503 and so is readyz; healthz is not."""
    served = Served(synced=False)

    assert {503} == {served.post(verb, {})[0] for verb in ("filter", "prioritize", "preempt", "bind")}
    assert (503, 200) == (served.ask("GET", "/readyz")[0], served.ask("GET", "/healthz")[0])


def test_a_scheduler_is_not_ready_before_its_webhook_answers():
    """A pod that is made before would be made without the webhook, or refused; filter and bind do not wait for it."""
    served = Served(webhook=False)

    assert (503, b"the webhook does not answer yet\n") == served.ask("GET", "/readyz")
    assert 200 == served.post("filter", {"Pod": pod(), "NodeNames": ["n"]})[0]


def test_a_standby_is_ready_and_sends_away_who_asks_it():
    """Who does not lead is ready, says that it does not lead, and ends the connection with each answer to a verb."""
    standby, leader = Served(leads=False), Served()
    message = {"Pod": pod(), "NodeNames": ["n"]}

    assert (200, 503) == (standby.ask("GET", "/readyz")[0], standby.ask("GET", "/leadz")[0])
    assert (200, 200) == (leader.ask("GET", "/readyz")[0], leader.ask("GET", "/leadz")[0])
    assert (200, "close") == (standby.post("filter", message)[0], standby.headers.get("connection"))
    assert (200, None) == (leader.post("filter", message)[0], leader.headers.get("connection"))


def test_bind_then_inspect_then_metrics():
    """What was bound is in inspect, in gpushare's inspect and in the metrics."""
    served = Served()
    made = served.scene.truth.create("a", {"aliyun.com/gpu-mem": 4})
    served.scene.catch_up()
    message = {"PodName": "a", "PodNamespace": "default", "PodUID": made.metadata.uid, "Node": "m"}
    status, answer = served.post("bind", message)
    facts = json.loads(served.ask("GET", "/inspect")[1])
    theirs = served.ask("GET", "/gpushare-scheduler/inspect/m")[1]

    assert (200, "") == (status, answer["Error"])
    assert ["default/a/main"] == [r["tenant"] for r in facts["nodes"][0]["devices"][0]["residents"]]
    assert (
        b'{"nodes":[{"name":"m","totalGPU":16,"usedGPU":4,"devs":[{"id":0,"totalGPU":16,"usedGPU":4,"pods":['
        b'{"name":"a","namespace":"default","usedGPU":4}]}]}]}'
    ) == theirs
    notes = served.scene.truth.pods["a"]["metadata"]["annotations"]
    assert ("0", "16", "4") == tuple(notes[f"ALIYUN_COM_GPU_MEM_{key}"] for key in ("IDX", "DEV", "POD"))
    assert b'aliquot_scheduler_allocations{state="unconfirmed"} 1.0' in served.ask("GET", "/metrics")[1]


def test_the_printed_configuration_names_every_verb():
    """kube-scheduler is told all verbs, names only, both resources and to look at every node."""
    made = kube_scheduler_config("https://x:1/", ca_file="/ca")
    (extender,) = made["extenders"]

    assert ("filter", "prioritize", "preempt", "bind") == tuple(
        extender[f"{v}Verb"] for v in ("filter", "prioritize", "preempt", "bind")
    )
    assert ("https://x:1", True, True, 100) == (
        extender["urlPrefix"],
        extender["nodeCacheCapable"],
        extender["enableHTTPS"],
        made["percentageOfNodesToScore"],
    )
    assert ["aliquot.dev/gpu-percent", "aliquot.dev/gpu-memory"] == [r["name"] for r in extender["managedResources"]]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind", "dry-run"])
@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"7", b'"x"', b"\xff", b'{"Pod": []}', b"[" * 50_000])
def test_what_is_no_message_is_answered_with_a_sentence(verb: str, body: bytes):
    """400 and one sentence; nothing is raised and nothing is done."""
    status, answer = Served().post(verb, body)

    assert 400 == status
    assert answer["Error"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
known_pods = pods(number | json_values).map(lambda pod: pod | {"metadata": pod["metadata"] | {"uid": "u"}})
names = st.lists(st.sampled_from(["n", "m", "other", ""]), max_size=4, unique=True)
victims = st.dictionaries(
    st.sampled_from(["n", "m", "other"]),
    st.fixed_dictionaries(
        {"Pods": st.lists(st.fixed_dictionaries({"UID": st.sampled_from(["u", "v", ""])}), max_size=2)}
    ),
    max_size=2,
)
messages = st.fixed_dictionaries(
    {"Pod": known_pods | json_values},
    optional={
        "NodeNames": names | json_values,
        "Nodes": st.fixed_dictionaries({"items": st.lists(json_values, max_size=2)}) | st.none(),
        "NodeNameToMetaVictims": victims,
        "PodName": st.just("x"),
        "PodNamespace": st.just("default"),
        "PodUID": st.just("u"),
        "Node": st.sampled_from(["n", "other"]),
    },
)


def asking_in_gib(*amounts: int) -> dict[str, Any]:
    """A message about a pod whose containers ask for so much GPU memory."""
    limits = [{"limits": {"aliyun.com/gpu-mem": amount}} for amount in amounts]
    containers = [{"name": f"c{number}", "resources": each} for number, each in enumerate(limits)]
    meta = {"name": "p", "namespace": "n", "uid": "u"}
    return {"Pod": {"metadata": meta, "spec": {"containers": containers}}, "NodeNames": ["n"]}


@settings(max_examples=200, deadline=None)
@given(messages, st.sampled_from(["filter", "prioritize", "preempt", "bind", "dry-run"]))
@example(asking_in_gib(1, 2**53), "filter")  # more MiB than 64 bits hold
@example(asking_in_gib(2**54), "filter")
def test_no_message_does_harm(message: dict[str, Any], verb: str):
    """Whatever is sent: an answer of the verb's kind or one sentence; the ledger is as before."""
    served = Served()
    status, answer = served.post(verb, msgspec.json.encode(message))

    assert status in (200, 400)
    assert {} == served.scene.reserved()
    if status == 400:
        assert answer["Error"]
    elif verb == "filter" and isinstance(message.get("NodeNames"), list):
        told = [*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
        assert sorted(told) == sorted(message["NodeNames"])
