"""`kubectl aliquot` against the real API server: who has what, why a pod waits, and whether the cluster is right."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from accounts import allow, token_of
from agent_pods import agent
from cluster.control_plane import ControlPlane
from cluster.fake import gpu_uuid
from cluster.images import PAUSE
from cluster.kubelet_node import KubeletNode
from cluster.ours import serve_pages
from scheduling import PORT, ROOT, OurScheduler, Pods, asking, eventually, gpu_pod, percent
from tmux import Tmux

from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.tenants import TenantStatus

CRDS = ROOT / "deploy" / "crds"
HOME = "aliquot-system"
WEB_PORT = 8771


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[list[str]]:
    """Four V100 on one node, two A100 on another; the CRDs; our scheduler, which has seen to all of it."""
    control_plane.kubectl("apply", "-f", str(CRDS))
    control_plane.kubectl("wait", "--for=condition=Established", "-f", str(CRDS), "--timeout=20s")
    made = [
        *control_plane.fake_nodes(1, "v100", gpus=4, prefix="kc"),
        *control_plane.fake_nodes(1, "a100", gpus=2, prefix="kc"),
    ]
    pages = ("--web", f"127.0.0.1:{WEB_PORT}", "--web-access", "token")
    with asking(OurScheduler(control_plane, PORT, "--bind", f"0.0.0.0:{PORT}", *pages)):
        serve_pages(control_plane, made[0], PORT, HOME)
        yield made


def environment(plane: ControlPlane) -> dict[str, str]:
    """What the command is started with."""
    return {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "HOME": str(plane.rooms.state)}


def ask(plane: ControlPlane, *arguments: str, status: int = 0) -> str:
    """What `kubectl aliquot` prints, having ended with this status."""
    command = [sys.executable, "-m", "aliquot.cli.kubectl", *arguments, "--kubeconfig", str(plane.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(plane), timeout=60)
    assert status == done.returncode, done.stdout + done.stderr
    return done.stdout or done.stderr


def facts(plane: ControlPlane, *arguments: str) -> Any:
    return json.loads(ask(plane, *arguments, "-o", "json"))


def test_gpus_and_top_show_what_pods_hold(pods: Pods, nodes: list[str]):
    """A bound pod's share is on its GPU in `get gpus` and `top`, in every form; free GPUs are shown free."""
    body = gpu_pod("a", percent(30, "4Gi"), annotations={"aliquot.dev/gpu-model": "V100"})
    pods.create(body)
    pods.wait_bound(1)
    gpus = [g for g in facts(pods.plane, "get", "gpus") if g["node"] in nodes]
    (held,) = [g for g in gpus if g["residents"]]

    assert 6 == len(gpus)
    (tenant,) = [resident["tenant"] for resident in held["residents"]]
    assert (nodes[0], 700, f"{pods.namespace}/a/c0") == (held["node"], held["free_milli"], tenant)
    assert gpu_uuid(nodes[0], held["index"]) == held["uuid"]
    assert gpus == [g for g in yaml.safe_load(ask(pods.plane, "get", "gpus", "-o", "yaml")) if g["node"] in nodes]
    assert "0.30 of 1.00  4.0 / 16.0 GiB" in ask(pods.plane, "get", "gpus", nodes[0])
    assert held["uuid"] in ask(pods.plane, "get", "gpus", "-o", "wide")
    top = ask(pods.plane, "top", "-n", pods.namespace)
    assert f"  {pods.namespace}/a/c0" in top and "██████░░░░░░░░░░░░░░" in top
    assert f"{nodes[0]}  {held['model']}\nGPU {held['index']}  0.30 of 1.00" in top


def test_top_shows_what_the_agents_tell(pods: Pods, nodes: list[str]):
    """The use of a tenant's time and memory comes from its node's agent; without an answer it is left open."""
    body = gpu_pod("u", percent(30, "4Gi"), annotations={"aliquot.dev/gpu-model": "V100"})
    pods.create(body)
    pods.wait_bound(1)
    (held,) = facts(pods.plane, "top", "-n", pods.namespace)
    assert (None, None) == (held["residents"][0]["usage"], held["residents"][0]["memory_used_mib"])
    status = TenantStatus("u", 300, 1000, 0.25, 0, 2048, 4096, 0, 0.0, 0.0, 0.0, 0, 1, False)
    use = Use(Owner(pods.namespace, "u", "c0"), status)
    gpu = NodeGpu(index=held["index"], uuid=held["uuid"], model=held["model"], memory_mib=16384, busy=0.25, uses=(use,))
    told = NodeReport(node=nodes[0], driver="550", gpus=(gpu,), window_ms=10_000)

    with agent(pods.plane, HOME, nodes[0], told):
        assert "0.25  4.0 GiB  2.0 GiB" in ask(pods.plane, "top", "-n", pods.namespace)
    assert "use is not known on" in ask(pods.plane, "top", "-n", pods.namespace)


FILTER_OPEN = "▊"
FILTER_CLOSED = rf"\A(?![\s\S]*{FILTER_OPEN})"
"""How the box for typing looks, and a screen without it: keys that come faster than it opens would reach the rows."""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed: no terminal to look at")
def test_top_goes_on_in_a_terminal(pods: Pods, nodes: list[str]):
    """On a terminal the GPUs stand by node with keys; a pod that comes is seen without asking; Enter shows its use."""
    pytest.importorskip("textual", reason="textual is not installed: no application to look at")
    v100 = {"aliquot.dev/gpu-model": "V100"}
    pods.create(gpu_pod("t", percent(30, "4Gi"), annotations=v100))
    pods.wait_bound(1)
    (held,) = facts(pods.plane, "top", "-n", pods.namespace)
    status = TenantStatus("t", 300, 1000, 0.25, 0, 2048, 4096, 0, 0.0, 0.0, 0.0, 0, 1, False)
    use = Use(Owner(pods.namespace, "t", "c0"), status)
    gpu = NodeGpu(index=held["index"], uuid=held["uuid"], model=held["model"], memory_mib=16384, busy=0.25, uses=(use,))
    told = NodeReport(node=nodes[0], driver="550", gpus=(gpu,), window_ms=10_000)
    terminal = Tmux(environment(pods.plane) | {"TERM": "xterm-256color"})
    command = (sys.executable, "-m", "aliquot.cli.kubectl", "top", "--interval", "0.3")
    try:
        with agent(pods.plane, HOME, nodes[0], told):
            terminal.start(*command, "--kubeconfig", str(pods.plane.kubeconfig))
            shown = terminal.wait(rf"{nodes[0]} +GPU {held['index']} +shared .* 0\.25 ")
            assert re.search(rf"{nodes[1]} +GPU 0 +idle +- ", shown), shown
            pods.create(gpu_pod("later", percent(100), annotations={"aliquot.dev/gpu-model": "A100"}))
            terminal.wait(rf"{nodes[1]} +GPU \d +whole")
            terminal.keys("/")
            terminal.wait(FILTER_OPEN)
            terminal.keys(f"{pods.namespace}/t")
            terminal.wait(f'only with "{pods.namespace}/t"')
            terminal.keys("Enter")
            terminal.wait(FILTER_CLOSED)
            terminal.keys("Enter")
            terminal.wait(rf"GPU {held['index']} of {nodes[0]}")
            terminal.wait(rf"{pods.namespace}/t/c0 +0\.30 +1\.00 .*0\.25 +2\.0 / 4\.0")
            terminal.keys("q")
            assert 0 == terminal.ended()
    finally:
        terminal.close()


def test_explain_says_why_a_pod_waits_and_what_would_help(pods: Pods, nodes: list[str]):
    """Both A100 are half taken, so a pod that asks for a whole one waits: each node is accounted for."""
    a100 = {"aliquot.dev/gpu-model": "A100"}
    holders = [gpu_pod(f"h{i}", percent(60), annotations=a100) for i in range(2)]
    pods.create(*holders)
    pods.wait_bound(2)
    pods.create(gpu_pod("wants", percent(100), annotations=a100))
    eventually(lambda: pods.told("wants").strip() != "", "the pod was not looked at")
    told = facts(pods.plane, "explain", "pod", "wants", "-n", pods.namespace)
    text = ask(pods.plane, "explain", "pod", "wants", "-n", pods.namespace)

    assert "waiting" == told["state"]
    (request,) = told["requests"]
    assert not request["fits"] and {nodes[0], nodes[1]} <= {v["node"] for v in request["verdicts"]}
    assert request["changes"]
    assert text.startswith(f"{pods.namespace}/wants waits: asks 1 GPU of model A100")
    assert "Nearest: " in text and "kube-scheduler reports: 0/" in text
    placed = ask(pods.plane, "explain", "pod", "h0", "-n", pods.namespace)
    assert f"{pods.namespace}/h0 is on {nodes[1]}:" in placed and "request 0.60, limit 1.00" in placed


def test_sharepods_vgpus_and_quota_are_listed(pods: Pods, nodes: list[str]):
    """SharePods of one namespace or of all, vGPUs, and each bound of a quota with what is held of it."""
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    group = "/apis/aliquot.dev/v1alpha1"
    pods.plane.api.create(
        f"{group}/namespaces/{pods.namespace}/sharepods",
        {
            "apiVersion": "aliquot.dev/v1alpha1",
            "kind": "SharePod",
            "metadata": {"name": "notebook"},
            "spec": {"gpu": {"request": "0.3", "model": "H900"}, "template": {"spec": spec}},
        },
    )
    pods.plane.api.create(
        f"{group}/namespaces/{pods.namespace}/gpuquotas",
        {
            "apiVersion": "aliquot.dev/v1alpha1",
            "kind": "GPUQuota",
            "metadata": {"name": "team"},
            "spec": {"limits": [{"model": "V100", "gpus": "2", "memory": "20Gi"}]},
        },
    )
    held = gpu_pod("q", percent(50, "2Gi"), annotations={"aliquot.dev/gpu-model": "V100"})
    pods.create(held)
    pods.wait_bound(1)
    (share,) = facts(pods.plane, "get", "sharepods", "-n", pods.namespace)

    assert ("notebook", "0.3", "Pending") == (share["name"], share["request"], share["state"])
    assert pods.namespace in ask(pods.plane, "get", "sharepods", "-A")
    (quota,) = facts(pods.plane, "get", "quota", "-n", pods.namespace)
    assert (500, 2000, 2048, 20480) == tuple(quota[k] for k in ("held_milli", "max_milli", "held_mib", "max_mib"))
    assert "0.50 of 2.00  2.0 GiB of 20.0 GiB" in ask(pods.plane, "get", "quota", "-n", pods.namespace)
    assert [] == facts(pods.plane, "get", "vgpus") or "NAME" in ask(pods.plane, "get", "vgpus")


def test_topo_draws_a_node_and_names_the_best_set(control_plane: ControlPlane, namespace: str, nodes: list[str]):
    """The tree of the node's own topology, and the best pair of its free GPUs."""
    text = ask(control_plane, "topo", nodes[0], "--best", "2")

    assert text.startswith(f"node {nodes[0]}: 4 GPUs") and "Best 2: GPU " in text
    assert 4 == facts(control_plane, "topo", nodes[0])["count"]


def test_inspect_compares_the_ledger_with_the_pods(pods: Pods, nodes: list[str]):
    """Through the API server's proxy: the running scheduler's ledger and the pods' plans say the same of every GPU."""
    pods.create(gpu_pod("i", percent(25)))
    pods.wait_bound(1)
    eventually(lambda: facts(pods.plane, "inspect")["agree"], "the ledger and the pods differ")
    told = facts(pods.plane, "inspect")

    assert 250 in {row["scheduler"][0] for row in told["devices"] if row["node"] in nodes}
    assert ask(pods.plane, "inspect").startswith("the scheduler and the pods agree about ")


def test_doctor_finds_nothing_wrong_in_a_right_cluster(control_plane: ControlPlane, nodes: list[str]):
    """API server, scheduler, versions, lead, CRDs, nodes, agents and pods are each looked at and found right."""
    told = facts(control_plane, "doctor")

    assert told["ok"]
    looked = ["Kubernetes", "scheduler", "versions", "lead", "CRDs", "nodes", "agents", "pods"]
    assert looked == [finding["what"] for finding in told["findings"]]


def test_doctor_notes_where_no_agent_answers(control_plane: ControlPlane, nodes: list[str]):
    """Nodes without an agent are named with what to look at; an agent that answers is counted."""
    (none,) = [f for f in facts(control_plane, "doctor")["findings"] if f["what"] == "agents"]
    assert f"use is not known on {', '.join(sorted(nodes))}: no agent is known on the node" == none["found"]
    assert "note" == none["state"] and "kubectl get pods" in none["way_out"]

    with agent(control_plane, HOME, nodes[0], NodeReport(node=nodes[0], driver="550", gpus=(), window_ms=10_000)):
        found = [f["found"] for f in facts(control_plane, "doctor")["findings"] if f["what"] == "agents"]

    assert ["1 report what is used", f"use is not known on {nodes[1]}: no agent is known on the node"] == found


def test_doctor_names_a_pod_that_was_bound_past_us(pods: Pods, nodes: list[str]):
    """A pod that asks for a GPU and was put on a node without a plan is a fault; so is a missing scheduler."""
    past = gpu_pod("past", percent(20), nodeName=nodes[0])
    pods.create(past)
    told = json.loads(ask(pods.plane, "doctor", "--scheduler", "default/none:1", "-o", "json", status=1))
    found = {(f["what"], f["state"]): f["found"] for f in told["findings"]}

    assert f"{pods.namespace}/past" in found["pods", "fault"]
    assert ("Kubernetes", "ok") in found and ("CRDs", "ok") in found and ("nodes", "ok") in found
    assert ("scheduler", "fault") in found


def test_kubectl_finds_the_plugin(control_plane: ControlPlane, nodes: list[str], tmp_path: Path):
    """With `kubectl-aliquot` on the PATH, kubectl itself runs it and passes on its flags; Tab offers its commands."""
    plugin = tmp_path / "kubectl-aliquot"
    plugin.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -m aliquot.cli.kubectl "$@"\n')
    plugin.chmod(0o755)
    completes = tmp_path / "kubectl_complete-aliquot"
    code = "from aliquot.cli.kubectl import complete; complete()"
    completes.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT}/src exec {sys.executable} -c '{code}' \"$@\"\n")
    completes.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "KUBECONFIG": str(control_plane.kubeconfig)}
    kubectl = control_plane.programs.program("kubectl")
    command = [kubectl, "aliquot", "get", "gpus", nodes[0], "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    offered = subprocess.run(
        [kubectl, "__complete", "aliquot", "to"], capture_output=True, text=True, env=env, timeout=60
    )

    assert 0 == done.returncode, done.stderr
    assert [0, 1, 2, 3] == [gpu["index"] for gpu in json.loads(done.stdout)]
    assert ["top", "topo", ":4"] == [line.partition("\t")[0] for line in offered.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("explain", "pod", "nobody", "-n", "default"), 'there is no pod "nobody" in namespace "default"'),
        (("topo", "nowhere"), 'there is no node "nowhere"'),
        (("get", "pods"), '"pods" is not listed here'),
        (("inspect", "--scheduler", "here"), "names no service; write NAMESPACE/SERVICE:PORT"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    control_plane: ControlPlane, nodes: list[str], arguments: tuple[str, ...], sentence: str
):
    """What is not there, and what is not in the right form, ends with status 2 and one sentence."""
    text = ask(control_plane, *arguments, status=2)

    assert sentence in text and 1 == text.count("\n")


@pytest.fixture
def dashboard(control_plane: ControlPlane, nodes: list[str], kubelet_node: KubeletNode) -> Iterator[None]:
    """The dashboard's Service as the chart makes it; a pod in the node's network stands in for the scheduler's."""
    label = {"app": "dashboard"}
    spec = {
        "nodeName": kubelet_node.name, "hostNetwork": True, "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": PAUSE, "imagePullPolicy": "Never"}],
    }  # fmt: skip
    ports = [{"name": "web", "port": 80, "targetPort": WEB_PORT}]
    root = f"/api/v1/namespaces/{HOME}"
    control_plane.api.create(f"{root}/pods", {"metadata": {"name": "dashboard", "labels": label}, "spec": spec})
    service = {"metadata": {"name": "aliquot-dashboard"}, "spec": {"selector": label, "ports": ports}}
    control_plane.api.create(f"{root}/services", service)
    control_plane.kubectl("wait", "-n", HOME, "--for=condition=Ready", "pod/dashboard", "--timeout=60s")
    yield
    control_plane.api.delete(f"{root}/services/aliquot-dashboard")
    control_plane.api.delete(f"{root}/pods/dashboard")


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("dashboard")
def test_hours_come_through_a_port_forward(control_plane: ControlPlane, nodes: list[str], tmp_path: Path):
    """`get hours` reaches the dashboard's Service by kubectl's own port-forward, with a token of the cluster."""
    (tmp_path / "kubectl").symlink_to(control_plane.programs.program("kubectl"))
    env = environment(control_plane) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    where = ("--kubeconfig", str(control_plane.kubeconfig))
    command = [sys.executable, "-m", "aliquot.cli.kubectl", "get", "hours", "--since", "24h", "-o", "json", *where]

    def hours(**token: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, env=env | token, timeout=60)

    token = token_of(control_plane, HOME, "viewer")
    allow(control_plane, HOME, "viewer", "pods")
    found, refused = hours(ALIQUOT_DASHBOARD_TOKEN=token), hours()

    assert 0 == found.returncode, found.stderr
    told = json.loads(found.stdout)
    assert 24 * 3600 <= told["until_s"] - told["since_s"] <= 25 * 3600
    assert {"lines", "total", "recorded"} <= told.keys()
    assert 1 == refused.returncode
    assert refused.stderr.startswith("aliquot: the dashboard wants a token and the kubeconfig has none"), refused.stderr
