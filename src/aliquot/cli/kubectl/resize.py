"""`kubectl aliquot resize NAME`: another share of its GPU for a SharePod, pod or claim in use."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Final

import click
from msgspec import structs

from aliquot.cli.forms import show
from aliquot.cli.kubectl.explain import KINDS, find, find_claim
from aliquot.cli.kubectl.scene import ClusterScene, Target, form_option, read_scene, target_options
from aliquot.cli.options import Milli, memory_limit_option, memory_option
from aliquot.cli.tables import size_change
from aliquot.kube.claims import ResourceClaim, holder_of, written_to
from aliquot.kube.custom import SHAREPODS
from aliquot.kube.dialects import read
from aliquot.kube.dialects.native import resized_words
from aliquot.kube.names import GPU_MEMORY_LIMIT, GPU_PERCENT, PENDING, PLAN, RESIZE
from aliquot.kube.objects import PODS, Pod
from aliquot.kube.plan import PodPlan, generation_of, read_applied, read_plan
from aliquot.kube.requests import ContainerAsk
from aliquot.model.errors import UserError
from aliquot.model.quantities import Memory, format_milli, parse_memory
from aliquot.model.requests import checked
from aliquot.scheduler.ledger import NodeFull
from aliquot.scheduler.resize import resized

POLL_S: Final = 0.2


@click.command()
@click.argument("name", metavar="[pod/|sharepod/|claim/]NAME")
@click.option("--gpu-request", type=Milli(), help="Guaranteed fraction of its GPU, below 1. [default: as it is]")
@click.option("--gpu-limit", type=Milli(), help="Maximum while others are idle. [default: as it is]")
@memory_option("GPU memory: 4Gi, 4096 (MiB), 25%. [default: as it is]")
@memory_limit_option("Beyond --gpu-mem memory is lent up to this; none, if it is the same. [default: as it is]")
@click.option("-c", "--container", default="", metavar="NAME", help="Of a pod, the container. [default: the only one]")
@click.option("--dry-run", is_flag=True, help="Say whether it fits, and change nothing.")
@click.option(
    "--timeout", "timeout_s", default=15.0, show_default=True, metavar="S", help="How long its node may take."
)
@target_options
@form_option
def resize(
    name: str, gpu_request: int | None, gpu_limit: int | None, gpu_mem: Memory | None, gpu_mem_limit: Memory | None,
    container: str, dry_run: bool, timeout_s: float, target: Target, form: str,
) -> int:  # fmt: skip
    """Change the share of a SharePod, pod or claim on its GPU while it runs; exit status 1 where it does not have it
    (yet). Of a pod with claims --container is the pod's name for one.

    The scheduler decides a larger share like a new request on the same GPU; where there is no room the pod keeps what
    it has and is tried again. Others get what a smaller one leaves once the node has applied it.

    Example, half a GPU and 6 GiB, if there is room:
      kubectl aliquot resize notebook --gpu-request .5 --gpu-mem 6Gi
    """
    if gpu_request is None and gpu_limit is None and gpu_mem is None and gpu_mem_limit is None:
        raise UserError("resize needs a new size: --gpu-request, --gpu-limit, --gpu-mem or --gpu-mem-limit")
    scene = target.run(read_scene(target))
    kind, _, short = name.rpartition("/")
    if kind not in ("", *KINDS):
        raise UserError(f'"{kind}" is not resized; name a pod, a sharepod or a claim, as in sharepod/{short}')
    named = any(one.metadata.name == short and scene.here(one) for one in scene.sharepods)
    pod, claims = Pod(), list[ResourceClaim]()
    if KINDS.get(kind) == "claim":
        claims = [find_claim(scene, short)]
    else:
        pod = find(scene, KINDS[kind] if kind else "sharepod" if named else "pod", short)
    if PLAN not in pod.metadata.annotations:
        claims = claims or [c for c in scene.claims if (called := c.name_in(pod)) and container in ("", called)]
    if len(claims) > 1:
        listed = " and ".join(claim.called for claim in claims)
        raise UserError(f"{pod.metadata.key} uses the claims {listed}; name one of them with --container")
    for claim in claims:
        if (held := holder_of(claim)) is None:
            why = f"kubectl aliquot explain claim {claim.metadata.name}"
            raise UserError(f"claim {claim.metadata.key} has no GPU yet, so it has no size; why: {why}")
        pod, container = held, ""
    plan, asked = _asked(pod, container)
    request = replace(
        asked.request,
        request_milli=asked.request.request_milli if gpu_request is None else gpu_request,
        limit_milli=asked.request.limit_milli if gpu_limit is None else gpu_limit,
        memory=gpu_mem or asked.request.memory or Memory(mib=plan.containers[asked.container].slices[0].memory_mib),
        memory_limit=gpu_mem_limit or asked.request.memory_limit,
    )
    checked(request, request_name="--gpu-request", limit_name="--gpu-limit", memory_name="--gpu-mem")
    asked_now = replace(asked, request=request)
    after, why = _decided(scene, pod, plan, asked_now)
    owner = next((o.name for o in pod.metadata.owner_references if o.kind == SHAREPODS.kind and o.controller), "")
    state = f"{PENDING}: {why}" if why else "fits (dry run)"
    if not why and after.containers == plan.containers and RESIZE not in pod.metadata.annotations:
        state = "unchanged"
    elif not dry_run:
        state = target.run(_write(target, pod, owner, asked_now, timeout_s))
    before, now = (one.containers[asked.container].slices[0] for one in (plan, after))
    lent = [one.containers[asked.container].memory_limit for one in (plan, after)]
    sizes = {
        when: {**structs.asdict(size), "memory_limit": most}
        for when, size, most in zip(("before", "after"), (before, now), lent, strict=True)
    }
    written, own = written_to(pod)
    resource, shown = ("sharepod", owner) if owner else ("pod" if written is PODS else "claim", own)
    facts = {"resource": resource, "name": shown, "namespace": pod.metadata.namespace, **sizes, "state": state}
    shown_limits = [str(parse_memory(most)) if most else "none" for most in lent]
    more = f", lent up to {' -> '.join(shown_limits)}" if any(lent) else ""
    change = "" if state.startswith(PENDING) else f": {size_change(before, now)}{more}"
    show(form, facts, lambda: [f"{resource}/{shown} {state}{change}"])
    return int(state.startswith(PENDING))


def _asked(pod: Pod, container: str) -> tuple[PodPlan, ContainerAsk]:
    """The plan of a pod that runs, and what the container with a share asks for now."""
    plan, ask = read_plan(pod.metadata.annotations), read(pod)
    if plan is None or ask is None or not pod.spec.node_name or pod.ended:
        raise UserError(f"{pod.metadata.key} has no share that could be resized; apply its manifest anew")
    asking = [c for c in ask.containers if not c.uses and container in ("", c.container)]
    if len(asking) != 1:
        known = ", ".join(c.container for c in ask.containers)
        raise UserError(f"{pod.metadata.key}: --container {container or 'is missing'}; these have a share: {known}")
    return plan, asking[0]


def _suffixed(pod: Pod, asked: ContainerAsk) -> dict[str, str | None]:
    """The annotations that say a container's size; its own where the pod has several with a share."""
    alone = len([c for c in pod.spec.containers + pod.spec.init_containers if GPU_PERCENT in c.resources.limits]) == 1
    return resized_words(asked, "" if alone else f".{asked.container}")


def _decided(scene: ClusterScene, pod: Pod, plan: PodPlan, asked: ContainerAsk) -> tuple[PodPlan, str]:
    """The plan that the scheduler would make of this size, by the cluster as it was read, or why it would make none."""
    notes = {**pod.metadata.annotations, **_suffixed(pod, asked)}
    said = {key: text for key, text in notes.items() if text is not None}
    wanted = Pod(structs.replace(pod.metadata, annotations=said), pod.spec, pod.status)
    allocation = next(iter(scene.ledger.allocations.get(pod.metadata.uid, [])), None)
    if allocation is None:
        raise UserError(f"{pod.metadata.key}: its node has no inventory of GPUs now; is its agent running?")
    try:
        return resized(scene.ledger, wanted, plan, allocation, dry_run=True), ""
    except NodeFull as error:
        return plan, f"{'Infeasible' if error.lasting else 'Deferred'}: {error}"


async def _write(target: Target, pod: Pod, owner: str, asked: ContainerAsk, timeout_s: float) -> str:
    """Write the size, and what becomes of it: `resized`, or what the pod says of it."""
    meta, request, memory, (resource, name) = pod.metadata, asked.request, asked.request.memory, written_to(pod)
    before = meta.annotations
    async with target.connect() as api:
        if owner:
            gpu = {
                "request": format_milli(request.request_milli),
                "limit": None if request.limit_milli is None else format_milli(request.limit_milli),
                "memory": f"{memory.mib}Mi" if memory is not None and memory.mib else str(memory),
            }
            notes = {GPU_MEMORY_LIMIT: request.memory_limit_text or None}
            patch = {"metadata": {"annotations": notes}, "spec": {"gpu": gpu}}
            await api.patch(SHAREPODS, owner, patch, namespace=meta.namespace)
        else:
            body = {"metadata": {"uid": meta.uid, "annotations": _suffixed(pod, asked)}}
            await api.patch(resource, name, body, namespace=meta.namespace)
        until_s = time.monotonic() + timeout_s
        while True:
            found = await api.get(resource, name, namespace=meta.namespace)
            now = ((holder_of(found) or pod) if isinstance(found, ResourceClaim) else found).metadata.annotations
            generation, said = generation_of(now.get(PLAN, "")), now.get(RESIZE, "")
            decided = generation > generation_of(before.get(PLAN, "")) or (RESIZE in before and not said)
            if decided and read_applied(now).generation == generation:
                return f"resized ({said})" if said else "resized"
            if (said.startswith(PENDING) and said != before.get(RESIZE)) or time.monotonic() > until_s:
                return said or f"{PENDING}: the scheduler has not decided within {timeout_s:g} s; does it run?"
            await asyncio.sleep(POLL_S)
