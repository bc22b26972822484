"""The extender with the real scheduler and API server: who gets which GPU, and that no promise is made twice."""

import json
import time
from collections.abc import Callable, Iterator

import pytest
from cluster.control_plane import ControlPlane
from prometheus_client.parser import text_string_to_metric_families
from scheduling import OurScheduler, Pods, asking, devices_of, eventually, gpu_pod, ledger_of, percent, slices_of


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane) -> Iterator[OurScheduler]:
    """Our scheduler and two boards of GPUs: eight V100, four A100."""
    control_plane.fake_nodes(1, "v100", prefix="ext")
    control_plane.fake_nodes(1, "a100", gpus=4, prefix="ext")
    with asking(OurScheduler(control_plane)) as ours:
        yield ours


def test_a_pod_gets_a_part_of_a_gpu_with_its_plan(pods: Pods, scheduler: OurScheduler):
    """0.3 of a GPU and 4Gi: bound with a plan that names a GPU of that node; the ledger has it until the pod ends."""
    pods.create(gpu_pod("a", percent(30, "4Gi")))
    (pod,) = pods.wait_bound(1)
    ((uuid, milli, mib),) = slices_of(pod)

    assert (300, 4096) == (milli, mib)
    assert pod["spec"]["nodeName"] == devices_of(pods.plane)[uuid][0]
    pods.agree(scheduler)
    pods.delete("a")
    eventually(lambda: ledger_of(scheduler) == {}, "the share is not free again")


def test_every_kind_of_request_is_met(pods: Pods, scheduler: OurScheduler):
    """Models, whole GPUs, a rest, several containers, init containers, exact fractions and dialects, each as asked."""
    pods.create(
        gpu_pod("model", percent(20), annotations={"aliquot.dev/gpu-model": "A100"}),
        gpu_pod("rest", percent(150)),
        gpu_pod("two", percent(40), percent(20, "1Gi")),
        gpu_pod("exact", percent(33), annotations={"aliquot.dev/gpu-request": "0.333"}),
        gpu_pod("parts", percent(60), annotations={"aliquot.dev/gpu-parts": "2"}),
        gpu_pod(
            "init",
            percent(50),
            initContainers=[{"name": "warm", "image": "busybox", "resources": {"limits": percent(30)}}],
        ),
    )
    found = {pod["metadata"]["name"]: pod for pod in pods.wait_bound(6)}
    milli = {name: sorted(piece[1] for piece in slices_of(pod)) for name, pod in found.items()}

    assert {
        "model": [200],
        "rest": [500, 1000],
        "two": [200, 400],
        "exact": [333],
        "parts": [300, 300],
        "init": [500],
    } == milli
    assert found["model"]["spec"]["nodeName"].startswith("ext") and slices_of(found["model"])[0][2] > 8000
    assert 2 == len({piece[0] for piece in slices_of(found["parts"])})
    pods.agree(scheduler)


def test_a_preferred_node_is_taken_among_those_that_fit(pods: Pods, scheduler: OurScheduler):
    """Both nodes have room: the one that the user's node affinity prefers gets the pod, whatever placement thinks."""
    eight, four = sorted(
        (node for node in pods.plane.ready_nodes() if node.startswith("ext")),
        key=lambda node: -sum(where == node for where, _ in devices_of(pods.plane).values()),
    )
    # One GPU of each node is in use already, so that placement likes one node much better than an idle one.
    pods.create(gpu_pod("there", percent(50), nodeSelector={"kubernetes.io/hostname": eight}))
    pods.wait_bound(1)
    for number, wanted in enumerate((four, eight)):
        match = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [wanted]}]}
        wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": match}]}
        pods.create(gpu_pod(f"wish-{number}", percent(20), affinity={"nodeAffinity": wish}))
        pods.wait_bound(2 + number)

    assert [four, eight] == [pods[f"wish-{n}"]["spec"]["nodeName"] for n in range(2)]
    pods.agree(scheduler)


def test_constraints_that_are_full_keep_pods_waiting(pods: Pods, scheduler: OurScheduler):
    """With every GPU taken by one exclusion label others wait although there is room, and go on when a GPU is freed."""
    ours, theirs = ({"aliquot.dev/exclusion": label} for label in ("team-a", "team-b"))
    apart = {"aliquot.dev/anti-affinity": "one-each"}
    pods.create(*(gpu_pod(f"a{i}", percent(10), annotations=ours | apart) for i in range(12)))
    pods.wait_bound(12)
    pods.create(gpu_pod("b", percent(10), annotations=theirs), gpu_pod("plain", percent(10)))
    pods.create(gpu_pod("thirteenth", percent(10), annotations=ours | apart))
    pods.create(gpu_pod("a-more", percent(10), annotations=ours))

    eventually(lambda: pods.is_bound("a-more"), "one of the same label does not come in")
    for name in ("b", "plain", "thirteenth"):
        eventually(lambda name=name: "that its labels allow" in pods.told(name) or " free" in pods.told(name), name)
        assert not pods.is_bound(name)
    pods.delete("a3")
    eventually(lambda: sum(pods.is_bound(n) for n in ("b", "plain", "thirteenth")) == 1, "nobody")
    pods.agree(scheduler)


def test_a_pod_that_slept_is_looked_at_twice(pods: Pods, scheduler: OurScheduler):
    """When something wakes a waiting pod, kube-scheduler asks a second time by itself, for the ledger may have been a
    moment behind; then the pod sleeps again."""
    pods.create(*(gpu_pod(f"full-{i}", percent(60)) for i in range(12)))
    pods.wait_bound(12)
    pods.create(gpu_pod("waits", percent(60)))
    asked = quiet(lambda: filters(scheduler))

    for number in range(3):
        pods.plane.kubectl("label", "pod", "full-0", f"round={number}", "--overwrite", "-n", pods.namespace)
        before, asked = asked, quiet(lambda: filters(scheduler))
        assert 2 == asked - before


def filters(scheduler: OurScheduler) -> int:
    """How many filters the extender has answered."""
    families = text_string_to_metric_families(scheduler.get("/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return int(sum(s.value for s in samples if s.name.endswith("verbs_total") and s.labels["verb"] == "filter"))


def quiet(count: Callable[[], int]) -> int:
    """A count, once it has not grown for two seconds: longer than a second look takes, and than a sleep has to last."""
    until_s = time.monotonic() + 60
    last, since_s = count(), time.monotonic()
    while time.monotonic() - since_s < 2:
        assert time.monotonic() < until_s, f"still growing: {last}"
        time.sleep(0.1)
        if (now := count()) != last:
            last, since_s = now, time.monotonic()
    return last


def test_the_impossible_is_explained(pods: Pods, scheduler: OurScheduler):
    """A model that nobody has and a contradiction are told in the pod's own event; nothing is evicted for them."""
    pods.create(
        gpu_pod("nowhere", percent(30), annotations={"aliquot.dev/gpu-model": "H900"}),
        gpu_pod("wrong", percent(30), annotations={"aliquot.dev/gpu-limit": "0.2"}),
    )

    eventually(lambda: "has no GPU of model H900" in pods.told("nowhere"), "the model is not told")
    eventually(lambda: 'gpu-limit"] 0.20 is below' in pods.told("wrong"), "the contradiction is not told")
    assert "preemption: 0/" in pods.told("nowhere")


@pytest.fixture
def classes(control_plane: ControlPlane, namespace: str) -> Iterator[tuple[str, str]]:
    """Two priority classes, the lower one first."""
    names = (f"{namespace}-low", f"{namespace}-high")
    for name, value in zip(names, (1, 1000), strict=True):
        body = {"metadata": {"name": name}, "value": value}
        control_plane.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    yield names
    for name in names:
        control_plane.api.delete(f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def test_a_more_important_pod_finds_room_in_a_full_cluster(
    pods: Pods, scheduler: OurScheduler, classes: tuple[str, str]
):
    """Where hundredths are short in sum, kube-scheduler's preemption evicts what our preempt verb says: on one GPU."""
    low, high = classes
    pods.create(*(gpu_pod(f"big-{i}", percent(60), priorityClassName=low) for i in range(12)))
    pods.create(*(gpu_pod(f"small-{i}", percent(38), priorityClassName=low) for i in range(12)))
    pods.wait_bound(24)
    pods.create(gpu_pod("high", percent(70), priorityClassName=high))

    eventually(lambda: pods.is_bound("high"), "nobody made room for it", 60)
    left = pods.staying()
    assert 1 + 22 == len(left)
    pods.agree(scheduler)


def test_a_more_important_pod_finds_room_among_fragments(pods: Pods, scheduler: OurScheduler, classes: tuple[str, str]):
    """Where the sum is there but on no GPU enough, the fewest and least important pod goes, and the room is kept."""
    low, high = classes
    pods.create(*(gpu_pod(f"low-{i}", percent(60), priorityClassName=low) for i in range(12)))
    pods.wait_bound(12)
    pods.create(gpu_pod("high", percent(70), priorityClassName=high))

    eventually(lambda: pods.is_bound("high"), "nobody made room for it", 60)
    left = [p for p in pods.all() if p["metadata"]["name"].startswith("low")]
    assert 11 == len(left)
    pods.agree(scheduler)


def test_whom_a_disruption_budget_keeps_is_not_asked_to_go(
    pods: Pods, scheduler: OurScheduler, classes: tuple[str, str]
):
    """Eleven of twelve belong to a budget that lets none go: the twelfth goes, and no other."""
    low, high = classes
    kept = [gpu_pod(f"low-{i}", percent(60), priorityClassName=low) for i in range(11)]
    for pod in kept:
        pod["metadata"]["labels"] = {"app": "kept"}
    budget = {
        "metadata": {"name": "all"},
        "spec": {"minAvailable": "100%", "selector": {"matchLabels": {"app": "kept"}}},
    }
    pods.plane.api.create(f"/apis/policy/v1/namespaces/{pods.namespace}/poddisruptionbudgets", budget)
    pods.create(*kept, gpu_pod("free", percent(60), priorityClassName=low))
    pods.wait_bound(12)
    pods.create(gpu_pod("high", percent(70), priorityClassName=high))

    eventually(lambda: pods.is_bound("high"), "nobody made room for it", 60)
    left = {f"low-{i}" for i in range(11)} | {"high"}
    # Who has ended frees the room, and is still to be seen for a moment.
    eventually(lambda: left == {p["metadata"]["name"] for p in pods.all()}, "others went")
    pods.agree(scheduler)


def test_a_new_node_can_be_thought_about(control_plane: ControlPlane, scheduler: OurScheduler):
    """dry-run filters nodes that do not exist, so an autoscaler can ask whether one more would help."""
    (name,) = [n for n in control_plane.ready_nodes() if devices_of(control_plane) and n.startswith("ext")][:1]
    node = control_plane.api.get(f"/api/v1/nodes/{name}")
    node["metadata"]["name"] = "not-there-yet"
    pod = gpu_pod("a", percent(100)) | {"metadata": {"name": "a", "namespace": "default"}}
    status, answer = scheduler.post("/dry-run", json.dumps({"Pod": pod, "Nodes": {"items": [node]}}).encode())

    assert (200, ["not-there-yet"]) == (status, [n["metadata"]["name"] for n in answer["Nodes"]["items"]])
