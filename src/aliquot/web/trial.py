"""Dry runs and explanations, by the placement that the engine itself uses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aliquot.model.ids import TenantName
from aliquot.model.quantities import parse_memory, parse_milli
from aliquot.model.requests import GpuRequest, Labels, Slice, checked, parse_label
from aliquot.placement.explain import elsewhere_now
from aliquot.placement.machine import MachineBooks, NeverFits
from aliquot.placement.reasons import Verdict
from aliquot.web.api import AskFor, Explanation, Gpu, Piece, Reason, Share, Trial
from aliquot.web.gather import gpu_state

YOURS = TenantName("your-request")


def asked(ask: AskFor) -> GpuRequest:
    """The request that a person wrote.

    Raises:
        UserError: a quantity cannot be read, or the numbers contradict each other.
    """
    request = GpuRequest(
        request_milli=parse_milli(ask.request),
        limit_milli=parse_milli(ask.limit) if ask.limit else None,
        memory=parse_memory(ask.memory) if ask.memory else None,
        model=ask.model,
        gpu=ask.gpu,
        gpu_id=parse_label(ask.gpu_id) if ask.gpu_id else "",
        labels=Labels(*(parse_label(one) if one else "" for one in (ask.affinity, ask.anti_affinity, ask.exclusion))),
    )
    return checked(request, request_name="request", limit_name="limit")


def try_request(books: MachineBooks, gpus: Sequence[Gpu], ask: AskFor) -> Trial:
    """Where a request would be placed; the ledger is unchanged.

    Raises:
        UserError: the request makes no sense.
    """
    request = asked(ask)
    try:
        found = books.explain(request)
    except NeverFits as error:
        return Trial(False, f"It never fits here: {error}", books.policy)
    nearest = found.nearest.text if found.nearest else ""
    if found.placement is None:
        verdict = found.verdicts[0]
        sentence = f"It does not fit now and would wait: {verdict.reason}."
        return Trial(False, sentence, books.policy, reasons=_reasons(verdict), nearest=nearest)
    slices = found.placement.slices
    pieces = _pieces(books, slices)
    touched = [gpu for gpu in gpus if any(piece.gpu == gpu.uuid for piece in slices)]
    sentence = f"It fits now, on {' and '.join(f'GPU {piece.index}' for piece in pieces)} of {books.node}."
    after = [_after(gpu, slices) for gpu in touched]
    return Trial(True, sentence, books.policy, pieces, touched, after, why=list(found.why))


def explain_request(books: MachineBooks, name: str, request: GpuRequest) -> Explanation:
    """Why a request waits, device by device, and the smallest change that would let it in."""
    try:
        found = books.explain(request)
    except NeverFits as error:
        return Explanation(name, f"{name} never fits here: {error}")
    lines = found.lines(name)
    if found.placement is not None:
        return Explanation(name, f"{name} fits on {books.node} now and is about to start.", why=list(found.why))
    nearest = found.nearest.text if found.nearest else ""
    return Explanation(name, lines[0], reasons=_reasons(found.verdicts[0]), nearest=nearest)


def explain_tenant(books: MachineBooks, name: TenantName) -> Explanation:
    """Where a tenant is, and why it would be placed there again; a tenant without a place gets a message."""
    plan = books.plans.get(name)
    if plan is None:
        return Explanation(name, f"{name} has ended; it holds no GPU.")
    pieces = _pieces(books, plan.slices)
    sentence = f"{name} is on {' and '.join(f'GPU {piece.index}' for piece in pieces)} of {books.node}."
    again = books.explain_tenant(name)
    now = [piece.gpu for piece in again.placement.slices] if again.placement else []
    if now == plan.uuids:
        return Explanation(name, sentence, why=list(again.why))
    index = {device.uuid: device.index for device in books.devices}
    other = " and ".join(f"GPU {index[uuid]}" for uuid in now)
    return Explanation(name, sentence, why=[elsewhere_now(other)])


def _reasons(verdict: Verdict) -> list[Reason]:
    """The obstacle on each device; devices without one are left out."""
    return [
        Reason(f"GPU {reason.gpu}", reason.text, lasting=reason.lasting)
        for reason in verdict.devices
        if reason is not None
    ]


def _pieces(books: MachineBooks, slices: Sequence[Slice]) -> list[Piece]:
    index = {device.uuid: device.index for device in books.devices}
    return [Piece(books.node, index[p.gpu], p.gpu, p.request_milli, p.limit_milli, p.memory_mib) for p in slices]


def _after(gpu: Gpu, slices: Sequence[Slice]) -> Gpu:
    """A touched GPU as it would be."""
    piece = next(piece for piece in slices if piece.gpu == gpu.uuid)
    shares = [*gpu.shares, Share(YOURS, piece.request_milli, piece.limit_milli, 0, piece.memory_mib, 0)]
    return msgspec.structs.replace(
        gpu,
        shares=shares,
        state=gpu_state([share.request_milli for share in shares]),
        free_milli=gpu.free_milli - piece.request_milli,
        free_mib=gpu.free_mib - piece.memory_mib,
    )
