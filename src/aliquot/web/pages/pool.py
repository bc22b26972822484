"""Pool and quota: named GPUs through their phases, and what each namespace has of each model."""

from __future__ import annotations

from typing import Final

from aliquot.status import StatusSource
from aliquot.web.pages import Drawn, Query, commands
from aliquot.web.render import block

PHASES: Final = ("Creating", "Active", "Idle", "Deleting")
SHOWN: Final = 60


def has_content(facts: StatusSource) -> bool:
    """Whether there is a vGPU or a quota; where there is neither, the page is left out of the navigation."""
    bounded = any(line.hard_milli is not None or line.hard_mib is not None for line in facts.quota())
    return bounded or bool(facts.pool().vgpus)


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The first of both; the API has all."""
    pool, quota = facts.pool(), facts.quota()
    shown, total = pool.vgpus[:SHOWN], len(pool.vgpus)
    counts = {phase: sum(vgpu.phase == phase for vgpu in pool.vgpus) for phase in PHASES}
    blocks = [
        block("pool", "blocks/pool.html", policy=pool.policy, vgpus=shown, counts=counts, total=total),
        block("quota", "blocks/quota.html", lines=quota[:SHOWN], total=len(quota)),
    ]
    return Drawn("Pool and quota", blocks, {"command": commands.pool(facts)})
