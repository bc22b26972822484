"""GPUQuota: its bounds as placement counts them, and what is wrong with them.

They are enforced where a placement is written into the ledger; here they are only read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aliquot.kube.custom import GPUQuota, ModelQuota
from aliquot.lib.log import Logger
from aliquot.model.quantities import BadQuantity, format_mib, format_milli, parse_memory, parse_milli
from aliquot.placement.quota import Quota

log = Logger("scheduler")
Usage = Mapping[str, tuple[int, int]]
"""Model -> (milli-GPU, MiB) that a namespace holds."""


def quotas_of(found: GPUQuota) -> list[Quota]:
    """The bounds of one GPUQuota; those that cannot be read are left out and logged."""
    spec, meta = found.spec, found.metadata
    quotas = [Quota(meta.namespace, name=meta.name, forbids=tuple(spec.forbid))] if spec.forbid else []
    for limit in found.spec.limits:
        try:
            quotas.append(replace(bound(limit, found.metadata.namespace), name=found.metadata.name))
        except BadQuantity as error:
            log.warning("gpuquota %s: %s", found.metadata.key, error)
    return quotas


def bound(limit: ModelQuota, namespace: str = "") -> Quota:
    """One bound.

    Raises:
        BadQuantity: one of its fields is not a quantity, or memory is given as a part of a device.
    """
    milli = None if limit.gpus is None else parse_milli(limit.gpus)
    memory = None if limit.memory is None else parse_memory(limit.memory)
    if memory is not None and memory.part is not None:
        raise BadQuantity(f'"{limit.memory}" is a part of a device; a bound on memory is an amount, as 64Gi')
    return Quota(namespace, limit.model, milli, None if memory is None else memory.mib)


def faults(limits: Iterable[ModelQuota], usage: Usage) -> list[str]:
    """The errors in bounds, each with its path; a bound below what is held already is an error."""
    found = []
    for number, limit in enumerate(limits):
        where = f"spec.limits[{number}]"
        try:
            quota = bound(limit)
        except BadQuantity as error:
            found.append(f"{where}: {error}")
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
