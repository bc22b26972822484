"""What `kubectl aliquot` says about a cluster, from objects alone: explaining, listing, comparing, judging."""

import datetime
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner
from kit.objects import V100, node

from aliquot.cli.kubectl import COMMANDS, cli, complete
from aliquot.cli.kubectl.doctor import configuration, pod_findings
from aliquot.cli.kubectl.explain import explained, lines_of
from aliquot.cli.kubectl.get import quotas, sharepods, table_of
from aliquot.cli.kubectl.inspect import compared
from aliquot.cli.kubectl.scene import ClusterScene
from aliquot.cli.kubectl.services import Link, Usage
from aliquot.cli.kubectl.top import lines as top_lines
from aliquot.cli.kubectl.topo import picture_of
from aliquot.kube.custom import GPUQuota, SharePod
from aliquot.kube.names import PLAN, PLAN_STATUS
from aliquot.kube.objects import ContainerStatus, Meta, Node, Pod
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.ages import format_age
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.node.display.server import node_body
from aliquot.scheduler.agents import UnreadableReport, measure_of, read_report
from aliquot.scheduler.settings import kube_scheduler_config
from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.tenants import TenantStatus


def pod(name: str, *percent: int, notes: dict[str, str] | None = None, **spec: Any) -> Pod:
    """A pod of namespace `lab` whose containers c0, c1... ask for so many hundredths of a GPU."""
    containers = [
        {"name": f"c{i}", "resources": {"limits": {"aliquot.dev/gpu-percent": str(p)}}} for i, p in enumerate(percent)
    ]
    meta = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "annotations": notes or {}}
    return msgspec.convert({"metadata": meta, "spec": {"containers": containers, **spec}}, Pod)


def placed(name: str, on: str, gpu: int, milli: int, mib: int = 1024, status: str = "") -> Pod:
    """A pod that has a part of a GPU; `status` is what its node says of that."""
    piece = Slice(GpuUuid(f"GPU-{on}-{gpu}"), milli, 1000, mib)
    plan = write_plan(PodPlan(on, {"c0": ContainerPlan((piece,))}))
    return pod(name, milli // 10, notes={PLAN: plan, PLAN_STATUS: status}, nodeName=on)


def scene(*pods: Pod, nodes: list[Node] | None = None, quotas: list[GPUQuota] | None = None) -> ClusterScene:
    """Two nodes of two V100 each, and these pods."""
    return ClusterScene(nodes or [node("a"), node("b")], list(pods), [], [], quotas or [], "lab")


def test_a_waiting_pod_is_told_the_smallest_change():
    """Every GPU half taken: a whole one is not to be had, each node says so, and a move would make room."""
    waits = pod("w", 100)
    holders = [placed(f"h{n}{g}", n, g, 500) for n in "ab" for g in (0, 1)]
    told = explained(scene(*holders, waits), waits)

    assert "waiting" == told["state"]
    assert ["a", "b"] == sorted(v["node"] for v in told["requests"][0]["verdicts"])
    lines = list(lines_of(told))
    assert lines[0] == "lab/w waits: asks 1 GPU, none of 2 nodes has that much free."
    assert any(line.startswith("Nearest: ") for line in lines)


@pytest.mark.parametrize("rewritten", [True, False])
def test_a_waiting_pod_is_told_of_memory_that_was_meant_in_another_unit(rewritten: bool):
    """Of gpushare's pods also after admission wrote the amount in Aliquot's words: a Deployment's author sees no
    warning."""
    own = {"aliquot.dev/gpu-percent": "1", "aliquot.dev/gpu-memory": "1024Gi"}
    limits = own if rewritten else {"aliyun.com/gpu-mem": "1024"}
    notes = {"aliquot.dev/dialect": "aliyun"} if rewritten else {}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    waits = msgspec.convert({"metadata": {"name": "w", "namespace": "lab", "annotations": notes}, "spec": spec}, Pod)

    said = "\n".join(lines_of(explained(scene(waits), waits)))

    assert "aliyun.com/gpu-mem 1024 is read as 1024 GiB" in said and "scheduler.aliyunUnit=MiB" in said


def test_a_pod_on_a_node_is_told_its_gpu():
    """What the plan gives each container, by the index that people know."""
    here = placed("h", "b", 1, 300, 4096)
    told = explained(scene(here), here)

    assert "lab/h is on b:" == next(iter(lines_of(told)))
    assert (1, 300, 4096) == tuple(told["slices"][0][k] for k in ("gpu", "request_milli", "memory_mib"))


@pytest.mark.parametrize("note", [{"aliquot.dev/bogus": "1"}, {"aliquot.dev/gpu-limit": "0.01"}])
def test_a_pod_on_a_node_is_told_its_gpu_whatever_its_annotations_say_now(note: dict[str, str]):
    """The plan decides; what an edit made of the request is named beside it."""
    here = placed("h", "b", 1, 300, 4096)
    here.metadata.annotations |= note
    told = explained(scene(here), here)

    assert ("placed", 1) == (told["state"], told["slices"][0]["gpu"])
    assert next(iter(note)) in told["sentences"][0]


@pytest.mark.parametrize(
    ("found", "state", "sentence"),
    [
        (pod("p", 30, nodeName="a"), "unplanned", "bound without Aliquot"),
        (pod("p"), "other", "requests no GPU"),
        (pod("p", 30, notes={"aliquot.dev/gpu-limit": "0.2"}), "wrong", 'gpu-limit"] 0.20 is below'),
        (pod("p", 30, notes={PLAN: "{"}, nodeName="a"), "wrong", "cannot be read"),
    ],
)
def test_what_is_no_plain_waiting_is_told_as_what_it_is(found: Pod, state: str, sentence: str):
    """Pods that were bound by others, ask for no GPU, or contradict themselves."""
    told = explained(scene(found), found)

    assert state == told["state"]
    assert sentence in "; ".join(told["sentences"])


def test_a_pod_without_its_share_is_explained_in_its_nodes_words():
    """What the agent of its node reports stands in the explanation."""
    here = placed("h", "b", 1, 300, status="c0: missing (kubelet gave it no device)")

    assert ["its node reports: c0: missing (kubelet gave it no device)"] == explained(scene(here), here)["sentences"]


def test_the_doctor_names_a_pod_that_runs_without_its_share():
    """The state that its node reports is a fault, with the reason."""
    here = placed("h", "b", 1, 300, status="c0: missing (kubelet gave it no device)")
    here.status.container_statuses = [msgspec.convert({"name": "c0", "state": {"running": {}}}, ContainerStatus)]

    (found,) = pod_findings(scene(here))

    assert ("fault", "container c0 runs without its share: kubelet gave it no device") == (found.state, found.found)


def test_a_quota_counts_what_plans_hold():
    """Held and bound of each model, and an ask beyond it is told by name."""
    spec = {"cohort": "all", "limits": [{"model": "V100", "gpus": "1", "nominalGpus": "0.6"}]}
    quota = msgspec.convert({"metadata": {"name": "q", "namespace": "lab"}, "spec": spec}, GPUQuota)
    waits = pod("w", 60)
    seen = scene(placed("h", "a", 0, 500), waits, quotas=[quota])
    bounds = table_of("quota", quotas(seen), seen, wide=False)[1][3:]

    assert ["0.50 of 1.00, 0.60 nominal", "1.0 GiB of -"] == bounds
    assert 'namespace "lab" holds 0.50' in "\n".join(lines_of(explained(seen, waits)))


def test_a_list_of_sharepods_has_the_sizes_in_force_while_a_resize_waits():
    """With the reason why it waits in the state; without one they are as they were asked for."""
    spec = {"gpu": {"request": 0.45, "memory": "100Gi"}, "template": {}}
    actual = {"request": "0.20", "limit": "0.50", "memory": "2.0 GiB"}
    waits = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]
    status: list[dict[str, Any]] = [
        {"phase": "Running", "actual": actual, "conditions": waits},
        {"phase": "Running", "actual": actual},
    ]
    seen = scene()
    for each in status:
        body = {"metadata": {"name": "nb", "namespace": "lab"}, "spec": spec, "status": each}
        seen.sharepods.append(msgspec.convert(body, SharePod))

    keys = ("request", "limit", "memory", "state")
    assert [
        ("0.20", "0.50", "2.0 GiB", "Running, resize Infeasible"),
        ("0.45", "", "100Gi", "Running"),
    ] == [tuple(facts[key] for key in keys) for facts in sharepods(seen)]


def test_a_cohorts_newest_borrowers_are_named_before_they_are_evicted():
    """A pod within its nominal quota learns who goes for it, a pod of a namespace that borrows in which order its pods
    go; where nothing is borrowed, or the pod would borrow itself, nobody is named."""

    def sentences(of: str, nominal: str) -> str:
        spec = {"cohort": "all", "limits": [{"gpus": "4", "nominalGpus": nominal}]}
        quotas = [
            msgspec.convert({"metadata": {"name": "q", "namespace": space}, "spec": spec}, GPUQuota)
            for space in ("lab", "lender")
        ]
        holders = [placed(f"h{day}", "a", day // 2, 400, 1024) for day in range(4)]
        for day, one in enumerate(holders):
            one.metadata.creation_timestamp = f"2026-05-0{day + 1}T00:00:00Z"
        waits = pod("w", 50)
        waits.metadata.namespace = "lender"
        seen = scene(*holders, waits, nodes=[node("a")], quotas=quotas)
        return "\n".join(explained(seen, waits if of == "w" else holders[0])["sentences"])

    assert "so the newest pods that borrow will be evicted for it, on a: lab/h3" in sentences("w", "1")
    assert "its newest pods will be evicted, in this order: lab/h3, lab/h2" in sentences("h0", "1")
    assert ["", "", ""] == [sentences("w", "0.4"), sentences("w", "2"), sentences("h0", "2")]


def test_ledger_and_pods_are_compared_gpu_by_gpu():
    """A GPU of which the scheduler says something else than the pods, or that one of them does not know, differs."""
    seen = scene(placed("h", "a", 0, 500)).gpus()
    same = {"nodes": [{"name": g["node"], "devices": [g]} for g in seen]}
    other = json.loads(json.dumps(same))
    other["nodes"][0]["devices"][0]["free_milli"] = 1000

    assert compared(same, seen)["agree"]
    assert ["GPU-a-0"] == [row["uuid"] for row in compared(other, seen)["devices"] if not row["agree"]]
    assert not compared({"nodes": same["nodes"][1:]}, seen)["agree"]


def test_what_an_agent_tells_is_found_by_the_tenant():
    """The node's own page, as its agent writes it, gives usage and memory of each tenant; anything else is refused."""
    status = TenantStatus("lab/h/c0", 500, 1000, 0.25, 0, 300, 1024, 0, 0.0, 0.0, 0.0, 0, 1, False)
    use = Use(Owner("lab", "h", "c0"), status)
    gpu = NodeGpu(uuid="GPU-a-0", model=V100, memory_mib=16384, busy=0.25, uses=(use,))
    body = msgspec.json.encode(node_body(NodeReport(node="a", driver="550", gpus=(gpu,), window_ms=10000)))
    used = Usage({"a": measure_of(read_report(body))})
    share = used.of("a", "GPU-a-0", "lab/h/c0#2")

    assert share is not None and (250, 300) == (share.usage_milli, share.memory_used_mib)
    assert used.of("b", "GPU-a-0", "lab/h/c0") is None
    with pytest.raises(UnreadableReport, match="cannot be read"):
        read_report(b"<html>")


def test_a_wide_list_of_gpus_names_their_tenants():
    """Which pod holds which GPU is in the wide list, with its part; the plain one counts."""
    seen = scene(placed("h", "a", 0, 500), placed("i", "a", 0, 250))
    wide, plain = (table_of("gpus", seen.gpus(), seen, wide=wide) for wide in (True, False))

    assert "lab/h/c0 0.50, lab/i/c0 0.25" in wide[1]
    assert "2" == plain[1][-1]


def test_top_is_by_node_with_what_is_not_known_left_open():
    """Nodes with their GPUs and tenants; GPUs without tenants in one line."""
    told = scene(placed("h", "a", 0, 500)).gpus()
    for gpu in told:
        for one in gpu["residents"]:
            one |= {"usage": None, "memory_used_mib": None, "notes": ["it has 2.0 GiB lent"]}
    text = "\n".join(top_lines(told, told))
    first = text.index("\na  ")

    assert text.startswith(f"{len(told)} GPUs, 0.50 of them promised")
    assert first < text.index("GPU 0  0.50 of 1.00") < text.index("lab/h/c0")
    assert re.search(r"lab/h/c0 .* -  1\.0 GiB +-\n  it has 2.0 GiB lent$", text, re.M)
    assert re.search(r"^GPU 1.*  no tenants$", text, re.M)


def test_use_that_is_not_known_has_its_nodes_and_the_reason():
    """Nodes with one reason share a sentence, which names some of many."""
    used = Usage(silent={"b": "no agent is known on the node", "z": "it does not answer", "a": "it does not answer"})
    many = Usage(silent={f"n{number:03}": "it does not answer" for number in range(100)})

    assert {
        "use is not known on a, z: it does not answer",
        "use is not known on b: no agent is known on the node",
    } == set(used.unknown())
    (sentence,) = many.unknown()
    assert "n000" in sentence and "n099" not in sentence and " more: it does not answer" in sentence


def test_a_right_scheduler_configuration_is_found_right(tmp_path: Path):
    """The configuration that Aliquot prints itself has no fault."""
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(kube_scheduler_config("http://x:8770")))

    assert ["ok"] == [finding.state for finding in configuration(file)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"extenders": []}, "no extender manages aliquot.dev/gpu-percent"),
        ({"percentageOfNodesToScore": 10}, "percentageOfNodesToScore is 10"),
        ({"bindVerb": ""}, "bindVerb is not set, it must be bind"),
        ({"ignorable": True}, "the extender is ignorable"),
    ],
)
def test_each_fault_of_a_scheduler_configuration_is_named(tmp_path: Path, change: dict[str, Any], found: str):
    """Without the extender, a verb of it, or with nodes sampled, pods go wrong: each is said."""
    config = kube_scheduler_config("http://x:8770")
    config |= {key: value for key, value in change.items() if key in config}
    for extender in config["extenders"]:
        extender |= {key: value for key, value in change.items() if key in extender}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))

    assert any(found in finding.found and finding.state != "ok" for finding in configuration(file))


@pytest.mark.parametrize("text", ["nothing", "[1]", "kind: Pod", "a: ["])
def test_what_is_no_scheduler_configuration_is_refused(tmp_path: Path, text: str):
    """Any other file is named in one sentence."""
    file = tmp_path / "config.yaml"
    file.write_text(text)

    with pytest.raises(UserError, match=r"config\.yaml"):
        configuration(file)


def test_the_service_of_the_scheduler_is_named_as_a_path():
    """namespace/service:port, with https: where it speaks TLS."""
    proxy = "/api/v1/namespaces/n/services/https:s:1/proxy/readyz"

    assert proxy == Link.of("n/https:s:1").path("/readyz")
    for wrong in ("s:1", "n/s", "/s:1", "n/:1", ""):
        with pytest.raises(UserError, match="names no service"):
            Link.of(wrong)


def test_a_node_without_topology_is_told():
    """topo says what it lacks: the node, its GPUs, or how they are connected."""
    bare = msgspec.convert({"metadata": {"name": "bare"}}, Node)
    seen = scene(nodes=[node("a"), bare])

    for name, sentence in (("x", 'no node "x"'), ("bare", "no GPUs that Aliquot knows"), ("a", "does not report how")):
        with pytest.raises(UserError, match=sentence):
            picture_of(seen, name)


@pytest.mark.parametrize(("seconds", "text"), [(-5, "0s"), (119, "119s"), (125, "2m5s"), (172800, "2d")])
def test_ages_are_those_of_kubectl(seconds: int, text: str):
    """The time since an object was made is written as kubectl writes it; a clock that is behind gives 0s."""
    now = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)
    created = (now - datetime.timedelta(seconds=seconds)).isoformat()

    assert text == format_age(Meta(creation_timestamp=created).age_s(now.timestamp()))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_usual_flags(name: str):
    """-n, -A, --context, --kubeconfig and -o are the same for all, and the help ends with an example that is one."""
    shown = CliRunner().invoke(cli, [name, "--help"]).output
    words = shlex.split(shown.splitlines()[-1])

    for flag in ("-n, --namespace", "-A, --all-namespaces", "--context", "--kubeconfig", "-o, --output"):
        assert flag in shown
    assert ["kubectl", "aliquot", name] == words[:3]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, words[3:])


def test_tab_is_answered_as_kubectl_wants_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Words with what they are, a line each, then the number that says that no file names are wanted."""
    monkeypatch.setattr("sys.argv", ["kubectl_complete-aliquot", "to"])
    complete()
    lines = capsys.readouterr().out.splitlines()

    assert ["top", "topo", ":4"] == [line.partition("\t")[0] for line in lines]
    assert "live" in lines[0]
    monkeypatch.setattr("sys.argv", ["kubectl_complete-aliquot", "top", "--on"])
    complete()
    assert capsys.readouterr().out.startswith("--once\t")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("gpsu", "did you mean gpu?"),
        ("volumes", "list gpus, sharepods, vgpus, quota or hours, and other kinds with kubectl get"),
    ],
)
def test_a_misspelt_kind_is_answered_with_the_nearest(word: str, hint: str):
    """A kind that is spelt nearly as one of ours is asked for by name; others are told what there is."""
    done = CliRunner().invoke(cli, ["get", word])

    assert isinstance(done.exception, UserError)
    assert f'"{word}" is not listed here; {hint}' == str(done.exception)
