"""`kubectl aliquot explain pod NAME`: why it waits and the smallest change that would let it in, or where it is.

Only nodes that Kubernetes allows for the pod are counted, because the extender is called with these only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from aliquot.cli.forms import show
from aliquot.cli.kubectl.options import form_option, target_options
from aliquot.cli.kubectl.scene import ClusterScene, Target, read_scene
from aliquot.kube import names
from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.kube.plan import BadPlan, PodPlan, read_plan
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.model.errors import UserError
from aliquot.model.quantities import format_mib, format_milli
from aliquot.placement.explain import explain_with
from aliquot.placement.sentences import FITS, FREE_NOW, reported, sentence_of
from aliquot.scheduler.verdicts import closed_nodes, verdicts

KINDS = {"pod": "pod", "pods": "pod", "po": "pod", "sharepod": "sharepod", "sharepods": "sharepod", "shp": "sharepod"}


@click.command()
@click.argument("what", metavar="pod|sharepod")
@click.argument("name", required=False, default="")
@target_options
@form_option
def explain(what: str, name: str, target: Target, form: str) -> None:
    """Explain why a pod or SharePod waits, by node and device, and what would make it fit; or where it is placed."""
    kind, slash, after = what.partition("/")
    if slash and not name:
        name = after
    if kind not in KINDS or not name:
        raise UserError("explain a pod or a SharePod by its name: kubectl aliquot explain pod NAME")
    scene = target.run(read_scene(target))
    pod = find(scene, KINDS[kind], name)
    told = explained(scene, pod)
    show(form, told, lambda: lines_of(told))


def find(scene: ClusterScene, kind: str, name: str) -> Pod:
    """The pod of that name, or that of the SharePod.

    Raises:
        UserError: no pod or SharePod has the name, or more than one in all the namespaces.
    """
    if kind == "sharepod":
        shares = [one for one in scene.sharepods if scene.here(one) and one.metadata.name == name]
        _only_one(shares, f'SharePod "{name}"', scene)
        status = shares[0].status
        if not status.pod_name:
            said = "; ".join(c.message for c in status.conditions if c.message) or "it has no status yet"
            raise UserError(f'SharePod "{name}" has no pod: {said}')
        name, namespace = status.pod_name, shares[0].metadata.namespace
        pods = [pod for pod in scene.pods if pod.metadata.key == f"{namespace}/{name}"]
    else:
        pods = [pod for pod in scene.pods if scene.here(pod) and pod.metadata.name == name]
    _only_one(pods, f'pod "{name}"', scene)
    return pods[0]


def _only_one(found: list[Any], what: str, scene: ClusterScene) -> None:
    where = f' in namespace "{scene.namespace}"' if scene.namespace else ""
    if not found:
        raise UserError(f"there is no {what}{where}; name its namespace with -n")
    if len(found) > 1:
        listed = ", ".join(item.metadata.namespace for item in found)
        raise UserError(f"there are {len(found)} of the name: {what} in {listed}; choose one with -n")


def explained(scene: ClusterScene, pod: Pod) -> dict[str, Any]:
    """The explanation of a pod: its state, sentences, and for a waiting pod the account of each request.

    Only nodes count that Kubernetes allows for the pod.
    """
    told: dict[str, Any] = {"pod": pod.metadata.key, "state": "", "node": pod.spec.node_name, "sentences": []}
    try:
        ask, plan = read(pod), read_plan(pod.metadata.annotations)
    except (BadPod, BadPlan) as error:
        return told | {"state": "wrong", "sentences": [str(error)]}
    if pod.ended:
        return told | {"state": "ended", "sentences": [f"it has ended ({pod.status.phase}) and holds nothing"]}
    if pod.spec.node_name:
        return told | _placed(scene, pod, plan, asks=ask is not None)
    if ask is None:
        return told | {"state": "other", "sentences": ["it requests no GPU; why it waits: kubectl describe pod"]}
    return told | _waiting(scene, pod, ask)


def _placed(scene: ClusterScene, pod: Pod, plan: PodPlan | None, *, asks: bool) -> dict[str, Any]:
    if plan is None:
        sentence = f"it is on {pod.spec.node_name} without a plan"
        why = (
            f"{sentence}, so it holds no GPU here: it was bound without Aliquot; let a scheduler that calls Aliquot "
            "bind it (kubectl aliquot doctor)"
        )
        return {"state": "unplanned", "sentences": [why if asks else f"{sentence}; it requests no GPU"]}
    index = scene.index
    slices = [
        {
            "container": container,
            "node": plan.node,
            "gpu": index[piece.gpu][1] if piece.gpu in index else -1,
            "uuid": str(piece.gpu),
            "request_milli": piece.request_milli,
            "limit_milli": piece.limit_milli,
            "memory_mib": piece.memory_mib,
            "uses": given.uses,
            "init": given.init > 0,
        }
        for container, given in plan.containers.items()
        for piece in given.slices
    ]
    sentences = []
    if conflict := scene.ledger.inconsistent.get(pod.metadata.uid, ""):
        sentences.append(f"its plan does not fit the ledger: {conflict}")
    if status := pod.metadata.annotations.get(names.PLAN_STATUS, ""):
        sentences.append(f"its node reports: {status}")
    return {"state": "placed", "slices": slices, "sentences": sentences}


def _waiting(scene: ClusterScene, pod: Pod, ask: PodAsk) -> dict[str, Any]:
    """The account of each request of a pod without a node."""
    ledger, namespace = scene.ledger, pod.metadata.namespace
    closed = closed_nodes(ledger, ask, pod, scene.nodes, scene.pods)()
    accounts = [
        (unit.container, explain_with(ledger.decider, unit.ask, namespace, closed)) for unit in ask.units(ledger.known)
    ]
    each_fits = bool(accounts) and all(account.placement for _, account in accounts)
    said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), "")
    sentences = list(_obstacles(scene, pod, ask, closed, each_fits=each_fits, said=said))
    fits = FREE_NOW if said or pod.spec.scheduling_gates else FITS
    requests = [
        {"container": container, **account.facts(), "lines": account.lines(f'container "{container}"', fits=fits)}
        for container, account in accounts
    ]
    return {"state": "waiting", "closed": dict(closed), "requests": requests, "sentences": sentences}


def _obstacles(
    scene: ClusterScene, pod: Pod, ask: PodAsk, closed: Mapping[str, str], *, each_fits: bool, said: str
) -> Iterator[str]:
    """Other reasons that the pod waits, or why it should not."""
    if not scene.ledger.cluster.index:
        yield "no node has GPUs that Aliquot knows of; is aliquot node running (kubectl aliquot doctor)?"
    for name in sorted(scene.ledger.faulty):
        yield f"node {sentence_of(scene.ledger.absent(name))}"
    if pod.spec.scheduling_gates:
        yield f"it is held back by scheduling gates: {', '.join(gate.name for gate in pod.spec.scheduling_gates)}"
    if each_fits:
        found = verdicts(scene.ledger, ask, [name for name in scene.ledger.cluster.index if name not in closed])
        if not found.fitting:
            for why, count in Counter([*found.failed.values(), *found.never.values()]).most_common():
                yield f"{count} node{'s' * (count > 1)}: {why}"
        elif not said and not pod.spec.scheduling_gates:
            have = "1 node has" if len(found.fitting) == 1 else f"{len(found.fitting)} nodes have"
            yield f"{have} the GPUs it requests; kube-scheduler has not considered it yet"
    if said:
        yield reported(said)


def lines_of(told: dict[str, Any]) -> Iterable[str]:
    """The account as people read it."""
    name, state = told["pod"], told["state"]
    if state == "waiting":
        left_out: list[str] = []
        for request in told["requests"]:
            lines = list(request["lines"])
            if len(told["requests"]) == 1:
                lines[0] = lines[0].replace(f'container "{request["container"]}"', name, 1)
            else:
                lines[0] = f"{name} {lines[0]}"
            yield from (line for line in lines if line not in left_out)
            left_out += [line for line in lines if line.startswith("not counted: ")]
        yield from told["sentences"]
        return
    if state == "placed":
        yield f"{name} is on {told['node']}:"
        for piece in told["slices"]:
            where = f"GPU {piece['gpu']}" if piece["gpu"] >= 0 else "a GPU that the node does not have now"
            uses = f", after {piece['uses']} or before it" if piece["uses"] else ""
            uses = uses or (", until the init containers have ended" if piece["init"] else "")
            yield (
                f"  {piece['container']}  {where}  request {format_milli(piece['request_milli'])}, limit "
                f"{format_milli(piece['limit_milli'])}, {format_mib(piece['memory_mib'])}  {piece['uuid']}{uses}"
            )
        yield from told["sentences"]
        return
    yield f"{name}: {'; '.join(told['sentences'])}"
