"""GPUQuota: its bounds as placement counts them, and what is wrong with them.

They are enforced where a placement is written into the ledger; here they are only read.
"""

from __future__ import annotations

from dataclasses import replace

from aliquot.kube.custom import GPUQuota, GPUQuotaSpec, ModelQuota
from aliquot.lib.log import Logger
from aliquot.model.quantities import BadQuantity, format_mib, format_milli, parse_memory, parse_milli
from aliquot.placement.quota import Quota, Usage

log = Logger("scheduler")


def quotas_of(found: GPUQuota) -> list[Quota]:
    """The bounds of one GPUQuota; those that cannot be read are left out and logged."""
    spec, meta = found.spec, found.metadata
    quotas = [Quota(meta.namespace, name=meta.name, forbids=tuple(spec.forbid))] if spec.forbid else []
    for limit in found.spec.limits:
        try:
            quotas.append(replace(bound(limit, meta.namespace, spec.cohort), name=meta.name))
        except BadQuantity as error:
            log.warning("gpuquota %s: %s", meta.key, error)
    return quotas


def bound(limit: ModelQuota, namespace: str = "", cohort: str = "") -> Quota:
    """One bound; in a cohort all of it is nominal, unless the limit says how much is.

    Raises:
        BadQuantity: there is none, one of its fields is not a quantity, memory is given as a part of a device, or a
            nominal quota is above the bound or has no cohort to be lent to. The text begins with the field's name.
    """
    if limit.gpus is None and limit.memory is None:
        raise BadQuantity("gpus and memory are both left out; write one of them, or both")
    amounts: dict[str, int | None] = dict.fromkeys(("gpus", "memory", "nominalGpus", "nominalMemory"))
    for name, text in zip(amounts, (limit.gpus, limit.memory, limit.nominal_gpus, limit.nominal_memory), strict=True):
        if text is None:
            continue
        if name.startswith("nominal") and not cohort:
            raise BadQuantity(
                f"{name} {text} is lent to other namespaces of spec.cohort; name one, or leave {name} out"
            )
        try:
            amounts[name] = parse_milli(text) if name.lower().endswith("gpus") else parse_memory(text).mib
        except BadQuantity as error:
            raise BadQuantity(f"{name}: {error}") from None
        if amounts[name] is None:
            raise BadQuantity(f'{name}: "{text}" is a part of a device; a bound on memory is an amount, as 64Gi')
    milli, mib, *nominal = amounts.values()
    for name, most, part in zip(("gpus", "memory"), (milli, mib), nominal, strict=True):
        if most is not None and part is not None and part > most:
            raise BadQuantity(
                f"nominal{name.capitalize()} is above {name}, the most that it may hold; write at most that"
            )
    lent = (milli if nominal[0] is None else nominal[0], mib if nominal[1] is None else nominal[1])
    return Quota(namespace, limit.model, milli, mib, cohort=cohort, nominal=lent if cohort else (None, None))


def faults(spec: GPUQuotaSpec, usage: Usage) -> list[str]:
    """The errors in bounds, each with its path; a bound below what is held already is an error."""
    found = []
    for number, limit in enumerate(spec.limits):
        where = f"spec.limits[{number}]"
        try:
            quota = bound(limit, cohort=spec.cohort)
        except BadQuantity as error:
            found.append(f"{where}.{error}")
            continue
        milli, mib = quota.counted(usage)
        of = f" of {limit.model}" if limit.model else ""
        for name, most, used, written, unit in (
            ("gpus", quota.milli, milli, format_milli, " GPUs"),
            ("memory", quota.memory_mib, mib, format_mib, ""),
        ):
            if most is not None and used > most:
                found.append(
                    f"{where}.{name} {written(most)} is below the {written(used)}{unit}{of} that the namespace holds; "
                    "let pods end first, or write at least that"
                )
    return found
