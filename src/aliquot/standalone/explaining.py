"""The engine's account of placement: its GPUs with their tenants, and why a request waits or is placed where it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from aliquot import status
from aliquot.driver.gpu import Gpu, core_list
from aliquot.lib.misspelt import hint
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid, TenantName
from aliquot.model.requests import GpuRequest
from aliquot.placement.asks import Ask
from aliquot.placement.decide import Decider
from aliquot.placement.explain import PlacementExplanation, explain_with
from aliquot.placement.machine import MachineLedger, NeverFits, NoRoom
from aliquot.placement.read_model import ledger_gpus
from aliquot.placement.sentences import never
from aliquot.standalone.accounts import Account, own_account
from aliquot.standalone.wire import ExplainCall, ExplanationFacts, Explanations, GpuFacts, GpuTenant

if TYPE_CHECKING:
    from aliquot.standalone.engine import Engine
    from aliquot.standalone.pods import Pods


def gpu_facts(ledger: MachineLedger, gpus: Sequence[Gpu]) -> list[GpuFacts]:
    """Every GPU with what is left of it and the holders of the rest."""
    listed = []
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for held in ledger_gpus(ledger.cluster, ledger.node):
        gpu = by_uuid[GpuUuid(held.uuid)]
        residents = ledger.residents(gpu.uuid)
        labels = {
            "affinity": ",".join(sorted({r.labels.affinity for r in residents} - {""})),
            "anti-affinity": ",".join(sorted({r.labels.anti_affinity for r in residents} - {""})),
            "exclusion": ",".join(sorted({r.labels.exclusion for r in residents} - {""})),
            "gpuID": ",".join(sorted({r.gpu_id for r in residents} - {""})),
        }
        tenants = [GpuTenant(share.tenant, share.request_milli, share.memory_mib) for share in held.shares]
        facts = GpuFacts(
            gpu.index, gpu.uuid, gpu.model, gpu.memory_mib, held.free_milli, held.free_mib, tenants,
            {kind: text for kind, text in labels.items() if text}, gpu.links, gpu.numa, core_list(gpu.near_cores),
            gpu.driver,
        )  # fmt: skip
        listed.append(facts)
    return listed


def promised_gpus(engine: Engine) -> list[status.Gpu]:
    """Every GPU of the machine as its ledger promises it, nothing of it measured."""
    gpus = engine.look(lambda ledger: ledger_gpus(ledger.cluster, ledger.node))
    return [msgspec.structs.replace(gpu, emulated=True) for gpu in gpus] if engine.emulated else gpus


def explanations(
    engine: Engine,
    pods: Pods,
    call: ExplainCall,
    caller: Account,
    queue: Sequence[tuple[str, GpuRequest, Account]] = (),
) -> Explanations:
    """What a call asks to explain: a request of the caller, what has a name, or all that waits; `queue` are runs.

    Raises:
        UserError: no tenant or SharePod of that name.
        NeverFits: no context fits in the memory that is asked for.
    """
    status = engine.measure()
    request = call.request
    if request is not None:
        engine.check_context(request)
        return Explanations([_of_account(engine, call.name or "the request", request, caller)])
    names = [call.name] if call.name else [pod.name for pod in pods.facts() if pod.phase == "Pending"]
    runs = [run for run in queue if call.name in ("", run[0])]
    answers = [] if runs and call.name else [_by_name(engine, pods, name) for name in names]
    answers += [_of_account(engine, *run) for run in runs]
    for explanation in answers:
        # How soon the tenant wakes and what endangers its promise, worded as in `aliquot top`.
        gpus = status.gpus if status is not None else []
        mine = [tenant for gpu in gpus for tenant in gpu.tenants if tenant.name == explanation.name]
        explanation.lines += [f"  {text}" for tenant in mine for text in tenant.memory_texts]
        if why := engine.parked.get(TenantName(explanation.name)):
            explanation.lines.append(f"  {why}")
        if waking := [tenant for tenant in mine if tenant.wake is not None]:
            explanation.lines += [f"  {tenant.wake_text}" for tenant in waking]
            explanation.facts["wake"] = [msgspec.to_builtins(tenant.wake) for tenant in waking]
    return Explanations(answers)


def explained(ledger: MachineLedger, name: str, request: GpuRequest) -> ExplanationFacts:
    """A request that is not in the ledger."""
    try:
        found = _facts(name, ledger.explain(request))
        if not found.fits and (moves := ledger.moves_for(request)):
            found.lines.append("Moves: " + ", then ".join(f"aliquot move {each} --gpu {gpu}" for each, gpu in moves))
            found.facts["moves"] = [{"tenant": each, "gpu": gpu} for each, gpu in moves]
        return found
    except NeverFits as error:
        return ExplanationFacts(name, False, [never(name, str(error))], {"fits": False, "never": str(error)})


def _of_account(engine: Engine, name: str, request: GpuRequest, owner: Account) -> ExplanationFacts:
    """A request of an account that is not in the ledger, which the quota of the account may keep waiting."""

    def explain(ledger: MachineLedger) -> ExplanationFacts:
        found = explained(ledger, name, request)
        try:
            engine.check_new(owner, request, ledger.plan(request, again=True) if found.fits else None)
        except NeverFits as error:
            return ExplanationFacts(name, False, [never(name, str(error))], {"fits": False, "never": str(error)})
        except NoRoom as error:
            lines, facts = ([], {}) if found.fits else (found.lines, found.facts)
            over = [f"{name} waits: {error}", *lines]
            return ExplanationFacts(name, False, over, {**facts, "fits": False, "waits": str(error)})
        return found

    return engine.look(explain)


def explained_on(decider: Decider, name: str, request: GpuRequest) -> ExplanationFacts:
    """A request on a cluster."""
    return _facts(name, explain_with(decider, Ask(request)))


def _by_name(engine: Engine, pods: Pods, name: str) -> ExplanationFacts:
    full = name if "/" in name or pods.request_of(name) else f"default/{name}"
    tenants = engine.tenants

    def placed(ledger: MachineLedger) -> ExplanationFacts | None:
        """Its place, and whether it would be placed there again; None where it has just left the ledger."""
        for tenant in (TenantName(full), TenantName(name)):
            if tenant in tenants and tenant in ledger.plans:
                return _facts(tenant, ledger.explain_tenant(tenant))
        return None

    if (explanation := engine.look(placed)) is not None:
        return explanation
    request = pods.request_of(full)
    if request is None:
        known_names = sorted({*tenants, *(pod.name for pod in pods.facts())})
        raise UserError(f'there is no sharepod or tenant "{name}"; {hint(full, known_names, prefix="default/")}')
    phase = next((pod.phase for pod in pods.facts(full)), "")
    if phase in ("Succeeded", "Failed"):
        return ExplanationFacts(full, True, [f"{full} has ended ({phase}); it holds no GPU."], {"fits": True})
    return _of_account(engine, full, request, pods.owner_of(full) or own_account())


def _facts(name: str, explanation: PlacementExplanation) -> ExplanationFacts:
    fits = explanation.placement is not None or bool(explanation.held)
    return ExplanationFacts(name, fits, explanation.lines(name), explanation.facts())
