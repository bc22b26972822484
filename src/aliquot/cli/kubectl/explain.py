"""`kubectl aliquot explain pod NAME`: why it waits and the smallest change that would let it in, or where it is.

Only nodes that Kubernetes allows for the pod are counted, because the extender is called with these only. Of claims the
ledger judges what kube-scheduler does: compute and memory, who has a GPU whole, and health; besides labels.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import click

from aliquot.cli.forms import show
from aliquot.cli.kubectl.scene import ClusterScene, Target, agent_port_option, form_option, read_scene, target_options
from aliquot.kube import names
from aliquot.kube.claims import ResourceClaim, claims_ask, readable_plan, slice_name
from aliquot.kube.dialects import aliyun, read
from aliquot.kube.objects import Pod
from aliquot.kube.plan import BadPlan, PodPlan, read_plan
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.model.errors import UserError
from aliquot.model.quantities import format_mib, format_milli, parse_memory
from aliquot.model.requests import BadRequest
from aliquot.placement.explain import explain_with
from aliquot.placement.sentences import FITS, FREE_NOW, reported, sentence_of
from aliquot.scheduler.extender.preempt import NODES_TRIED, borrowers, cheapest
from aliquot.scheduler.groups import group_of, held_group_of
from aliquot.scheduler.verdicts import closed_nodes, verdicts

KINDS = {
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
    **dict.fromkeys(("sharepod", "sharepods", "shp"), "sharepod"),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), "claim"),
}
NOT_SERVING = "its agent does not serve claims (aliquot node --claims)"


@click.command()
@click.argument("what", metavar="pod|sharepod|claim")
@click.argument("name", required=False, default="")
@agent_port_option
@target_options
@form_option
def explain(what: str, name: str, agent_port: int, target: Target, form: str) -> None:
    """Explain why a pod, SharePod or ResourceClaim waits, by node and device, and what would make it fit; or where it
    is placed, and what memory is lent to it or why none is.

    Example, why a pod waits:
      kubectl aliquot explain pod train-7 -n research
    """
    kind, slash, after = what.partition("/")
    if slash and not name:
        name = after
    if kind not in KINDS or not name:
        raise UserError("explain a pod, SharePod or claim by its name: kubectl aliquot explain pod NAME")
    scene = target.run(read_scene(target))
    if KINDS[kind] == "claim":
        facts = explained_claim(scene, find_claim(scene, name))
    else:
        facts = explained(scene, find(scene, KINDS[kind], name))
    if borrowing := [piece for piece in facts.get("slices", []) if piece["memory_limit"]]:
        from aliquot.cli.kubectl.services import read_usage

        used = target.run(read_usage(target, scene, agent_port, {piece["node"] for piece in borrowing}))
        workload = facts.get("pod") or "/".join([facts["claim"].partition("/")[0], *facts["pods"][:1]])
        seen = [used.of(piece["node"], piece["uuid"], f"{workload}/{piece['container']}") for piece in borrowing]
        texts = [text for now in seen if now is not None for text in now.memory_texts]
        facts["sentences"] = [*facts["sentences"], *texts, *used.unknown()]
    show(form, facts, lambda: lines_of(facts))


def find_claim(scene: ClusterScene, name: str) -> ResourceClaim:
    """The ResourceClaim of that name.

    Raises:
        UserError: none has the name, or more than one in all the namespaces.
    """
    claims = [one for one in scene.claims if scene.here(one) and one.metadata.name == name]
    _only_one(claims, f'ResourceClaim "{name}"', scene)
    return claims[0]


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
    facts: dict[str, Any] = {"pod": pod.metadata.key, "state": "", "node": pod.spec.node_name, "sentences": []}
    if pod.ended:
        return facts | {"state": "ended", "sentences": [f"it has ended ({pod.status.phase}) and holds nothing"]}
    ask, plan, fault = None, None, ""
    try:
        plan = read_plan(pod.metadata.annotations)
        ask = read(pod)
    except (BadPod, BadPlan) as error:
        fault = str(error)
    if fault and not (plan and pod.spec.node_name):
        return facts | {"state": "wrong", "sentences": [fault]}
    claimed = _claimed(scene, [claim for claim in scene.claims if claim.name_in(pod)], pod)
    lost = ", ".join(borrowers(scene.ledger, pod.metadata.namespace, scene.pods_by_key.get))
    when = "when others of its cohort ask for what is nominal for them, its newest pods will be evicted, in this order"
    borrowed = {"sentences": [f"its namespace holds more than is nominal for it; {when}: {lost}"] if lost else []}
    if not pod.spec.node_name:
        asked = _waiting(scene, pod, ask) if ask is not None else {}
        if not asked and not claimed:
            return facts | {"state": "other", "sentences": ["it requests no GPU; why it waits: kubectl describe pod"]}
        return facts | _together([asked, claimed, borrowed]) | {"state": "waiting"}
    if plan is None and claimed:
        return facts | claimed
    if plan is None:
        sentence = f"it is on {pod.spec.node_name} without a plan"
        why = (
            f"{sentence}, so it holds no GPU here: it was bound without Aliquot; let a scheduler that calls Aliquot "
            "bind it (kubectl aliquot doctor)"
        )
        return facts | {"state": "unplanned", "sentences": [f"{sentence}; it requests no GPU" if ask is None else why]}
    sentences = [f"what its annotations say now changes nothing, its plan decides: {fault}"] if fault else []
    if conflict := scene.ledger.inconsistent.get(pod.metadata.uid, ""):
        sentences.append(f"its plan does not fit the ledger: {conflict}")
    if status := pod.metadata.annotations.get(names.PLAN_STATUS, ""):
        sentences.append(f"its node reports: {status}")
    own = {"slices": _slices(scene, plan), "sentences": sentences}
    return facts | _together([own, claimed, borrowed]) | {"state": "placed"}


def explained_claim(scene: ClusterScene, claim: ResourceClaim) -> dict[str, Any]:
    """The explanation of a claim, as of a pod; `pods` are those that use it."""
    pods = [pod for pod in scene.pods if claim.name_in(pod) and not pod.ended]
    facts = {"claim": claim.metadata.key, "pods": [pod.metadata.name for pod in pods], "node": "", "sentences": []}
    waits = next((pod for pod in pods if not pod.spec.node_name), Pod())
    facts |= _claimed(scene, [claim], waits) or {"state": "other", "sentences": ["it asks for no GPU of Aliquot's"]}
    if facts["state"] == "waiting" and not pods:
        facts["sentences"] = [
            *facts["sentences"],
            "no pod uses it; kube-scheduler allocates it for the first that does",
        ]
    return facts


def _claimed(scene: ClusterScene, claims: Sequence[ResourceClaim], pod: Pod) -> dict[str, Any]:
    """Where claims are, or why they wait with this pod; nothing where they ask for none of our GPUs."""
    sizes = {str(device.uuid): device.memory_mib for spec in scene.ledger.cluster.nodes for device in spec.gpus}
    told = []
    for claim in claims:
        plan, wrong = readable_plan(claim, sizes)
        if plan is None and not wrong:
            continue
        ready = "" if claim.status.devices else "its node has not prepared it: kubectl describe pod"
        sentences = [wrong or scene.ledger.inconsistent.get(claim.metadata.uid, "") or ready]
        told.append({
            "state": "placed", "node": plan.node if plan else "", "slices": _slices(scene, plan) if plan else [],
            "sentences": [f'claim "{claim.called}": {sentence}' for sentence in sentences if sentence],
        })  # fmt: skip
    try:
        if ask := claims_ask([claim for claim in claims if claim.status.allocation is None], pod.metadata.uid):
            told.append(_waiting(scene, pod, ask, kind="claim"))
    except BadRequest as error:
        told.append({"state": "wrong", "sentences": [str(error)]})
    return _together(told)


def _together(told: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Several accounts as one: lists are joined, of the rest the last counts."""
    facts: dict[str, Any] = {}
    for one in told:
        for key, value in one.items():
            facts[key] = [*facts.get(key, []), *value] if isinstance(value, list) else value
    return facts


def _slices(scene: ClusterScene, plan: PodPlan) -> list[dict[str, Any]]:
    index = scene.index
    return [
        {
            "container": container,
            "node": plan.node,
            "gpu": index[piece.gpu][1] if piece.gpu in index else -1,
            "uuid": str(piece.gpu),
            "request_milli": piece.request_milli,
            "limit_milli": piece.limit_milli,
            "memory_mib": piece.memory_mib,
            "memory_limit": given.memory_limit,
            "uses": given.uses,
            "init": given.init > 0,
        }
        for container, given in plan.containers.items()
        for piece in given.slices
    ]


def _waiting(scene: ClusterScene, pod: Pod, ask: PodAsk, kind: str = "container") -> dict[str, Any]:
    """The account of each request of a pod without a node, and what else keeps it waiting, or does not."""
    ledger, namespace, gates = scene.ledger, ask.namespace, pod.spec.scheduling_gates
    closed = closed_nodes(ledger, ask, pod, scene.nodes, scene.pods)()
    if kind == "claim" and scene.slices is not None:
        serving = [name for name in ledger.cluster.index if slice_name(name, "devices") in scene.slices]
        closed |= dict.fromkeys(ledger.cluster.index.keys() - serving, NOT_SERVING)
    accounts = [
        (unit.container, explain_with(ledger.decider, unit.ask, namespace, closed)) for unit in ask.units(ledger.known)
    ]
    said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), "")
    sentences = []
    if not ledger.cluster.index:
        sentences.append("no node has GPUs that Aliquot knows of; is aliquot node running (kubectl aliquot doctor)?")
    sentences += [f"node {sentence_of(ledger.absent(name))}" for name in sorted(ledger.faulty)]
    sentences += ask.notes
    if pod.metadata.annotations.get(names.DIALECT) == aliyun.Aliyun.name:  # rewritten: its own words are gone
        amounts = [c.request.memory.mib or 0 for c in ask.containers if c.request.memory is not None]
        sentences += [note for amount in amounts if (note := aliyun.unit_note(amount))]
    if gates:
        sentences.append(f"it is held back by scheduling gates: {', '.join(gate.name for gate in gates)}")
    if accounts and all(account.placement for _, account in accounts):
        verdict = verdicts(ledger, ask, [name for name in ledger.cluster.index if name not in closed])
        if not verdict.fitting:
            for reason, count in Counter([*verdict.failed.values(), *verdict.unresolvable.values()]).most_common():
                sentences.append(f"{count} node{'s' * (count > 1)}: {reason}")
        elif not said and not gates:
            have = "1 node has" if len(verdict.fitting) == 1 else f"{len(verdict.fitting)} nodes have"
            sentences.append(f"{have} the GPUs it requests; kube-scheduler has not considered it yet")
    if kind == "container" and not (gates or group_of(pod) or held_group_of(pod)):
        failed = verdicts(ledger, ask, [name for name in ledger.cluster.index if name not in closed]).failed
        victims = asyncio.run(cheapest(ledger, pod, ask, list(failed)[:NODES_TRIED], scene.pods_by_key.get))
        if victims is not None and victims.allocations:
            why = "its namespace is within its nominal quota, so the newest pods that borrow will be evicted for it"
            why = why if victims.borrowed else "pods of lower priority will be evicted for it"
            sentences.append(f"{why}, on {victims.node}: {', '.join(victim.key for victim in victims.allocations)}")
    if said:
        sentences.append(reported(said))
    fits = FREE_NOW if said or gates else FITS
    requests = [
        {"container": container, **account.facts(), "lines": account.lines(f'{kind} "{container}"', fits=fits)}
        for container, account in accounts
    ]
    return {"state": "waiting", "closed": dict(closed), "requests": requests, "sentences": sentences}


def lines_of(told: dict[str, Any]) -> Iterable[str]:
    """The account as people read it."""
    name, state = told.get("pod") or f"claim {told['claim']}", told["state"]
    if state not in ("waiting", "placed"):
        yield f"{name}: {'; '.join(told['sentences'])}"
        return
    left_out: list[str] = []
    requests = told.get("requests", [])
    for request in requests:
        lines = list(request["lines"])
        if len(requests) == 1:
            lines[0] = re.sub(r'^(container|claim) "[^"]*"', name, lines[0])
        else:
            lines[0] = f"{name} {lines[0]}"
        yield from (line for line in lines if line not in left_out)
        left_out += [line for line in lines if line.startswith("not counted: ")]
    slices = told.get("slices", [])
    if slices or state == "placed":
        yield f"{name} is on {told['node']}:" if state == "placed" else f"{name} has been given, on {told['node']}:"
    for piece in slices:
        where = f"GPU {piece['gpu']}" if piece["gpu"] >= 0 else "a GPU that the node does not have now"
        uses = f", after {piece['uses']} or before it" if piece["uses"] else ""
        uses = uses or (", until the init containers have ended" if piece["init"] else "")
        lent = f", lent up to {parse_memory(piece['memory_limit'])}" if piece["memory_limit"] else ""
        yield (
            f"  {piece['container']}  {where}  request {format_milli(piece['request_milli'])}, limit "
            f"{format_milli(piece['limit_milli'])}, {format_mib(piece['memory_mib'])}{lent}  {piece['uuid']}{uses}"
        )
    yield from dict.fromkeys(told["sentences"])
