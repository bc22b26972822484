"""The operator with the real control plane: SharePods, vGPUs in both ways to own a GPU, quotas."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.api import ApiError
from cluster.control_plane import ControlPlane
from cluster.ours import OurWebhook, surroundings
from operating import ALIQUOT, SharePods, install_crds, reason, sharepod, vgpus, wait_for
from scheduling import PROFILE, OurScheduler, Pods, asking, check_promises, gpu_pod, percent, slices_of


@pytest.fixture(scope="module")
def scheduler(control_plane: ControlPlane) -> Iterator[OurScheduler]:
    """Our scheduler with its operator, which owns a node of four V100."""
    install_crds(control_plane)
    control_plane.fake_nodes(1, "v100", gpus=4, prefix="own")
    webhook = OurWebhook(control_plane, 8781)
    webhook.register()
    flags = (*webhook.flags, "--default-gpu-limit", "0.8", "--pod-scheduler", PROFILE)
    with asking(OurScheduler(control_plane, 8780, "--holder-image", "busybox", *flags)) as ours:
        webhook.wait_trusted()
        yield ours


@pytest.fixture
def shares(pods: Pods, scheduler: OurScheduler) -> SharePods:
    """The SharePods of the test's namespace."""
    return SharePods(pods)


def test_a_sharepod_becomes_a_pod_on_a_gpu(shares: SharePods, pods: Pods, scheduler: OurScheduler):
    """SharePod, pod with owner and plan, vGPU and status all say the same; the vGPU goes with the last one on it."""
    shares.create(sharepod("a", "0.3", memory="4Gi"))

    seen = shares.wait_phase("a", "Running")
    pod = pods["a"]
    status = seen["status"]
    assert [(status["gpuUUID"], 300, 4096)] == slices_of(pod)
    assert (pod["spec"]["nodeName"], "a") == (status["nodeName"], status["podName"])
    assert [("SharePod", seen["metadata"]["uid"])] == [
        (owner["kind"], owner["uid"]) for owner in pod["metadata"]["ownerReferences"]
    ]
    named = wait_for(
        lambda: vgpus(scheduler.plane)[status["gpuID"]], lambda v: v["status"]["phase"] == "Active", "not Active"
    )
    assert status["gpuUUID"] == named["status"]["uuid"]
    assert [f"{shares.namespace}/a/main"] == [who["tenant"] for who in named["status"]["attached"]]
    assert "0.30" == named["status"]["requested"]

    shares.remove("a")
    wait_for(lambda: vgpus(scheduler.plane), lambda v: v == {}, "the vGPU stays")


def test_sharepods_meet_on_a_gpu_by_its_name(shares: SharePods, scheduler: OurScheduler):
    """Equal gpuIDs share one GPU, another gpuID another; a third one that does not fit waits, and is told why."""
    node = next(n for n in scheduler.plane.ready_nodes() if n.startswith("own"))
    shares.create(
        sharepod("a", "0.5", gpuID="team"),
        sharepod("c", "0.2", gpuID="other", node=node),
    )
    first = shares.wait_phase("a", "Running")
    shares.create(sharepod("b", "0.4", gpuID="team"), sharepod("d", "0.4", gpuID="team"))
    wait_for(
        lambda: [shares[name].get("status", {}).get("phase") for name in "bd"],
        lambda phases: sorted(map(str, phases)) == ["Pending", "Running"],
        "one of two should run",
    )
    other = shares.wait_phase("c", "Running")
    uuid = first["status"]["gpuUUID"]
    same = {s["status"].get("gpuUUID") for s in (shares[name] for name in "bd")} - {None}
    found = {name: vgpu["status"]["uuid"] for name, vgpu in vgpus(scheduler.plane).items()}

    assert {uuid} == same
    assert {"team": uuid, "other": other["status"]["gpuUUID"]} == found and uuid != found["other"]
    assert node == other["status"]["nodeName"]
    wait_for(
        lambda: {reason(shares[name])[0] for name in "bd"},
        lambda reasons: reasons == {"Bound", "Unschedulable"},
        "the one that waits is not told why",
    )
    shares.remove(*"abcd")


def test_what_can_not_be_is_told_and_another_scheduler_is_obeyed(
    shares: SharePods, pods: Pods, scheduler: OurScheduler
):
    """An unknown node is told and makes no pod; one with its author's own scheduler waits for a node, and gets it."""
    node = next(n for n in scheduler.plane.ready_nodes() if n.startswith("own"))
    shares.create(
        sharepod("nowhere", "0.1", node="atlantis"),
        sharepod("mine", "0.1", template={"schedulerName": "my-scheduler"}),
    )
    told = shares.wait_reason("nowhere")
    waits = shares.wait_reason("mine")
    assert ("Impossible", 'spec.nodeName "atlantis" is not a node of this cluster') == told
    assert ("WaitsForScheduler", 'scheduler "my-scheduler" has not set spec.nodeName') == waits
    assert [] == pods.all()

    scheduler.plane.api.merge(f"{shares.path}/mine", {"spec": {"nodeName": node}})
    assert node == shares.wait_phase("mine", "Running")["status"]["nodeName"]
    shares.remove("nowhere", "mine")


def test_many_at_once_and_a_killed_scheduler(shares: SharePods, pods: Pods, scheduler: OurScheduler):
    """Fifty SharePods of 0.1, killed in between: four GPUs hold forty, the others wait; each has one pod."""
    names = [f"s{number}" for number in range(50)]
    shares.create(*(sharepod(name, "0.1") for name in names))
    scheduler.part.kill()
    scheduler.part.start()

    def seen() -> list[str]:
        return sorted(f"{s.get('status', {}).get('phase')} {reason(s)[0]}" for s in shares.all())

    wait_for(seen, lambda s: s == ["Pending Unschedulable"] * 10 + ["Running Bound"] * 40, "not all are settled", 60)
    made = pods.all()
    assert sorted(names) == sorted(pod["metadata"]["name"] for pod in made)
    assert {1000} == {milli for milli, _ in check_promises(scheduler.plane, made).values()}
    wait_for(
        lambda: [vgpu["status"]["requested"] for vgpu in vgpus(scheduler.plane).values()],
        lambda sums: sums == ["1.00"] * 4,
        "the vGPUs say otherwise",
    )
    scheduler.plane.api.delete(shares.path)
    wait_for(pods.all, lambda left: left == [], "pods stay", 60)


def test_a_pod_that_is_taken_away_is_not_made_again(shares: SharePods, pods: Pods, scheduler: OurScheduler):
    """Somebody deletes a SharePod's pod: the SharePod has failed and says so."""
    shares.create(sharepod("a", "0.1"))
    shares.wait_phase("a", "Running")
    pods.delete("a")

    failed = shares.wait_phase("a", "Failed")
    assert "PodGone" == reason(failed, "Ready")[0] and [] == pods.all()


def test_a_namespace_gets_no_more_than_its_quota(shares: SharePods, scheduler: OurScheduler):
    """Half a V100: the second 0.3 waits and is told why, kubectl shows what is held, a bound below that is refused."""
    quotas = f"{ALIQUOT}/namespaces/{shares.namespace}/gpuquotas"
    kind = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "GPUQuota"}
    quota = {**kind, "metadata": {"name": "q"}, "spec": {"limits": [{"model": "V100", "gpus": "0.5", "memory": "8Gi"}]}}
    scheduler.plane.api.create(quotas, quota)
    wait_for(lambda: scheduler.plane.api.get(f"{quotas}/q"), lambda q: "status" in q, "the quota has no status")
    shares.create(sharepod("a", "0.3", memory="1Gi"))
    shares.wait_phase("a", "Running")
    shares.create(sharepod("b", "0.3", memory="1Gi"))
    # Until the pods of tests before are gone from its GPUs, kube-scheduler may have other reasons.
    shares.wait_reason("b", "may have")

    def listed() -> str:
        return scheduler.plane.kubectl("get", "gpuquota", "-n", shares.namespace)

    wait_for(
        listed, lambda text: "V100: 0.30/0.50 GPU, 1.0 GiB/8.0 GiB" in text, "the quota does not show what is held"
    )
    with pytest.raises(ApiError, match=r"spec.limits\[0\].gpus 0.20 is below the 0.30 GPUs of V100"):
        scheduler.plane.api.merge(f"{quotas}/q", {"spec": {"limits": [{"model": "V100", "gpus": "0.2"}]}})
    shares.remove("a")
    shares.wait_phase("b", "Running")
    scheduler.plane.api.delete(f"{quotas}/q")
    shares.remove("b")


def test_a_nominal_quota_is_given_back_by_pods_that_borrow(pods: Pods, scheduler: OurScheduler):
    """A namespace borrows all that another does not hold, and `explain` names the pods that go, in their order; when
    the other asks for what is nominal for it, it has it, and the borrower keeps its oldest pods."""
    plane, lender = scheduler.plane, Pods(scheduler.plane, f"{pods.namespace}-lender")
    plane.make_namespace(lender.namespace)
    for namespace, nominal in ((pods.namespace, "0.5"), (lender.namespace, "1.5")):
        limits = [{"model": "V100", "gpus": "2", "nominalGpus": nominal}]
        quota = {"apiVersion": "aliquot.dev/v1alpha1", "kind": "GPUQuota", "metadata": {"name": "q"}}
        spec = {"spec": {"cohort": pods.namespace, "limits": limits}}
        path = f"{ALIQUOT}/namespaces/{namespace}/gpuquotas"
        plane.api.create(path, {**quota, **spec})
        wait_for(lambda path=path: plane.api.get(f"{path}/q"), lambda q: "status" in q, "the quota has no status")
    pods.create(*(gpu_pod(f"p{number}", percent(50, "1Gi")) for number in range(4)))
    pods.wait_bound(4)
    pods.create(gpu_pod("p4", percent(50, "1Gi")))  # it waits, and is the newest
    held = {pod["metadata"]["name"] for pod in pods.bound()}
    where = ("--kubeconfig", str(plane.kubeconfig), "-n", pods.namespace)
    command = [sys.executable, "-m", "aliquot.cli.kubectl", "explain", "pod", min(held), *where]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=surroundings()).stdout
    lender.create(gpu_pod("mine", percent(100, "1Gi")))
    lender.wait_bound(1)

    assert 4 == len(held)
    order = ", ".join(f"{pods.namespace}/{name}" for name in sorted(held, reverse=True)[:3])
    assert f"its newest pods will be evicted, in this order: {order}\n" in said
    assert sorted(held)[:2] == sorted(pod["metadata"]["name"] for pod in pods.bound())
    plane.remove_namespace(lender.namespace)


def test_admission_rewrites_defaults_and_refuses(shares: SharePods, pods: Pods, scheduler: OurScheduler):
    """Words of others become resources, an annotation gets its resource and a limit; faults are named, plans kept."""
    note = {"aliquot.dev/gpu-request": "0.255"}
    tencent = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 8}
    unchanged = gpu_pod("theirs", tencent, schedulerName="default-scheduler")
    pods.create(unchanged, gpu_pod("noted", {}, annotations=note))
    found = {pod["metadata"]["name"]: pod for pod in pods.wait_bound(2)}
    assert [(200, 2048)] == [piece[1:] for piece in slices_of(found["theirs"])]
    assert PROFILE == found["theirs"]["spec"]["schedulerName"]
    assert "tencent" == found["theirs"]["metadata"]["annotations"]["aliquot.dev/dialect"]
    assert "tencent.com/predicate-gpu-idx-0" in found["theirs"]["metadata"]["annotations"]
    assert "25" == found["noted"]["spec"]["containers"][0]["resources"]["limits"]["aliquot.dev/gpu-percent"]
    assert "0.80" == found["noted"]["metadata"]["annotations"]["aliquot.dev/gpu-limit"]

    bad = {"aliquot.dev/gpu-limit": "0.1x", "aliquot.dev/affinity": "not a label", "aliquot.dev/gpu-color": "red"}
    with pytest.raises(ApiError) as refused:
        pods.create(gpu_pod("bad", percent(30), annotations=bad))
    assert all(f'metadata.annotations["{key}"]' in str(refused.value) for key in bad), refused.value
    pods.create(gpu_pod("forged", percent(30), annotations={"aliquot.dev/plan": "{}"}))
    (forged,) = [pod for pod in pods.wait_bound(3) if pod["metadata"]["name"] == "forged"]
    assert [300] == [milli for _, milli, _ in slices_of(forged)]
    hidden = gpu_pod("hidden", percent(30), annotations={"aliquot.dev/plan": "{}"})
    hidden["metadata"]["labels"] = {"aliquot.dev/webhook": "ignore"}
    with pytest.raises(ApiError, match="is written by the scheduler alone"):
        pods.create(hidden)
    with pytest.raises(ApiError, match="is written by the scheduler alone"):
        scheduler.plane.api.merge(f"{pods.path}/theirs", {"metadata": {"annotations": {"aliquot.dev/plan": "{}"}}})
    with pytest.raises(ApiError) as refused:
        shares.create(sharepod("worse", "0.x", limit="1.2.3", memory="4Wi"))
    assert all(f"spec.gpu.{field}" in str(refused.value) for field in ("request", "limit", "memory")), refused.value
    nothing = sharepod("worst", "0.1", affinity="a b")
    with pytest.raises(ApiError, match=r"affinity: .* is not a label; write letters"):
        shares.create(nothing)
    nothing["spec"]["gpu"] = {"limit": 1}
    with pytest.raises(ApiError, match=r"denied the request: aliquot: spec\.gpu\.request is missing$"):
        shares.create(nothing)


def test_controllers_of_plain_pods_need_nothing_else(pods: Pods, scheduler: OurScheduler):
    """A Deployment in gpu-manager's words, a StatefulSet with our resource, a Job with an annotation: all get parts."""

    def template(limits: dict[str, int], **notes: str) -> dict[str, Any]:
        pod = gpu_pod("", limits, annotations={f"aliquot.dev/{key}": value for key, value in notes.items()})
        pod["metadata"] = {**pod["metadata"], "labels": {"app": "a"}}
        del pod["metadata"]["name"]
        return pod

    once = template({}, **{"gpu-request": "0.15"})
    once["spec"]["restartPolicy"] = "Never"
    more = {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}}
    tencent = template({"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4})
    ours = template(percent(10))
    kinds = {
        "Deployment": ("apps/v1", {**more, "template": tencent}),
        "StatefulSet": ("apps/v1", {**more, "serviceName": "s", "template": ours}),
        "Job": ("batch/v1", {"template": once}),
    }
    for kind, (version, spec) in kinds.items():
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": kind.lower()}, "spec": spec}
        scheduler.plane.kubectl("apply", "-n", pods.namespace, "-f", "-", input_=json.dumps(made))

    bound = pods.wait_bound(5)
    milli = sorted((pod["metadata"]["ownerReferences"][0]["kind"], slices_of(pod)[0][1]) for pod in bound)
    assert [("Job", 150), *[("ReplicaSet", 200)] * 2, *[("StatefulSet", 100)] * 2] == milli
    scheduler.plane.kubectl("delete", "deployment,statefulset,job", "--all", "-n", pods.namespace)


WORDS: dict[str, dict[str, Any]] = {
    "tencent": {"limits": {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 8}},
    "aliyun": {"limits": {"aliyun.com/gpu-mem": 2}},
    "hami": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}},
    "nvidia": {"limits": {"nvidia.com/gpu": 1}},
    "kubeshare2": {"labels": {"sharedgpu/gpu_limit": "0.5", "sharedgpu/gpu_request": "0.3"}},
    "aliquot": {"limits": {"aliquot.dev/gpu-percent": 10, "aliquot.dev/gpu-memory": "4G"}},
}


@pytest.mark.parametrize("dialect", WORDS)
def test_a_manifest_is_applied_again_and_a_saved_pod_made_again(pods: Pods, scheduler: OurScheduler, dialect: str):
    """The same file changes nothing on the pod; what `kubectl get` saved is taken again, and gets a plan of its own."""
    words = WORDS[dialect]
    container = {"name": "main", "image": "busybox", "resources": {"limits": words.get("limits", {})}}
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 0}
    spec |= {"schedulerName": "kubeshare-scheduler"} if dialect == "kubeshare2" else {}
    labels = {"app": "p", **words.get("labels", {})}
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": labels}, "spec": spec}
    in_it = ("-n", pods.namespace, "-f", "-")
    scheduler.plane.kubectl("apply", *in_it, input_=json.dumps(manifest))
    (first,) = pods.wait_bound(1)
    assert "pod/p configured\n" == scheduler.plane.kubectl("apply", *in_it, input_=json.dumps(manifest))
    by_server = ("apply", "--server-side", *in_it)
    with pytest.raises(RuntimeError, match=r'conflicts? with "kubectl-client-side-apply"'):
        scheduler.plane.kubectl(*by_server, input_=json.dumps(manifest))
    for more in ("--force-conflicts",), ():
        scheduler.plane.kubectl(*by_server, *more, input_=json.dumps(manifest))
    again = pods["p"]

    assert (first["spec"], first["metadata"]["uid"]) == (again["spec"], again["metadata"]["uid"])
    saved = scheduler.plane.kubectl("get", "pod", "p", "-n", pods.namespace, "-o", "yaml")
    scheduler.plane.kubectl("replace", *in_it, input_=saved)
    scheduler.plane.kubectl("replace", "--force", *in_it, input_=saved)
    (made,) = pods.wait_bound(1)
    assert slices_of(made) and made["metadata"]["uid"] != first["metadata"]["uid"]
    forged = json.dumps({"metadata": {"annotations": {"aliquot.dev/plan": "{}"}}})
    path = ("patch", "pod", "p", "-n", pods.namespace, "--type=merge", "-p", forged)
    for subresource in ((), ("--subresource=status",)):
        with pytest.raises(RuntimeError, match="is written by the scheduler alone"):
            scheduler.plane.kubectl(*path, *subresource)


def test_a_sharepod_changes_before_its_pod_is_made_and_not_after(
    shares: SharePods, pods: Pods, scheduler: OurScheduler
):
    """An edit while nothing runs is acted on; later one to a whole GPU is refused, and the lists show what runs."""
    path = ("apply", "-n", shares.namespace, "-f", "-")
    manifest = sharepod("a", "0.3", template={"schedulerName": "own"})
    scheduler.plane.kubectl(*path, input_=json.dumps(manifest))
    shares.wait_reason("a", "WaitsForScheduler")
    del manifest["spec"]["template"]["spec"]["schedulerName"]
    manifest["spec"]["gpu"] |= {"request": "0.4"}
    scheduler.plane.kubectl(*path, input_=json.dumps(manifest))
    seen = shares.wait_phase("a", "Running")
    manifest["spec"]["gpu"] |= {"request": "1"}
    with pytest.raises(RuntimeError, match=r"spec\.gpu cannot be changed in place"):
        scheduler.plane.kubectl(*path, input_=json.dumps(manifest))

    assert [400] == [milli for _, milli, _ in slices_of(pods["a"])]
    assert seen["metadata"]["generation"] == seen["status"]["observedGeneration"]
    assert "0.4" in scheduler.plane.kubectl("get", "sharepods", "-n", shares.namespace)
