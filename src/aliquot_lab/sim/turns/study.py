"""Mixes under policies: one case for each, and the table of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from aliquot.tokens import SECOND, Share, TokenConfig, Turns, token_policy

from .measures import TenantRun, judge_mix
from .mixes import Mix
from .node import STEP_NS, MachineSpeeds, SimulatedNode

WARM_S: Final = 5.0


def play(
    mix: Mix, turns: Turns, seed: int, seconds: float, *, window_s: float = 10.0, machine: MachineSpeeds | None = None
) -> SimulatedNode:
    """One mix under one policy, to its end."""
    policy = token_policy(TokenConfig(window_ns=round(window_s * SECOND), turns=turns))
    return SimulatedNode(policy, mix, seed, seconds, machine).run()


def case_of(node: SimulatedNode, turns: Turns, seed: int, *, window_s: float = 10.0) -> dict[str, Any]:
    """The figures of a mix that was played."""
    mix = node.mix
    seen = {
        member.name: TenantRun(
            Share(member.request_milli, member.limit_milli),
            member.gpus,
            [(begin / SECOND, end / SECOND) for begin, end in node.tenants[member.name].phases],
            [ran / SECOND for ran in node.tenants[member.name].ran],
        )
        for member in mix.members
    }
    found = judge_mix(mix, seen, STEP_NS / SECOND, window_s=window_s, warm_s=WARM_S)
    waits_ms = [wait / 1e6 for wait in node.tenants[mix.wakes].waits_ns] if mix.wakes else []
    wake = {f"p{part}_ms": round(float(np.percentile(waits_ms, part)), 2) for part in (50, 99)} if waits_ms else None
    a_second = round(node.handovers / (node.end_ns / SECOND), 1)
    return {**found, "turns": turns.value, "seed": seed, "wake": wake, "handovers_per_s": a_second}


def study(mixes: Iterable[Mix], turns: Sequence[Turns], seeds: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Every mix under every policy with every seed."""
    return [case_of(play(mix, way, seed, seconds), way, seed) for mix in mixes for way in turns for seed in seeds]


def table(cases: Sequence[dict[str, Any]]) -> str:
    """A row for each mix and policy, the worst of its seeds but for the medians; 80 columns."""
    heads = " ".join(f"{head:>5}" for head in ("P95", "WORST", "A %", "C %", "USED", "GAIN"))
    rows = [f"{'MIX':<12} {'TURNS':<9} {heads} {'WAKE ms':>11} {'CHANGES':>7}"]
    for mix, way in dict.fromkeys((case["mix"], case["turns"]) for case in cases):
        mine = [case for case in cases if (case["mix"], case["turns"]) == (mix, way)]
        cells = [
            _number(mine, "error_p95", max, 3), _number(mine, "error_worst", max, 3),
            _number(mine, "promise_a", min, 1, 100), _number(mine, "promise_c", min, 1, 100),
            _number(mine, "used_of_fluid", min, 3), _number(mine, "gain_points", max, 1),
        ]  # fmt: skip
        wakes = [case["wake"] for case in mine if case["wake"]]
        wake = f"{np.median([w['p50_ms'] for w in wakes]):.1f} {max(w['p99_ms'] for w in wakes):.1f}" if wakes else "-"
        rate = float(np.mean([case["handovers_per_s"] for case in mine]))
        rows.append(f"{mix:<12} {way:<9} {' '.join(f'{cell:>5}' for cell in cells)} {wake:>11} {rate:>7.1f}")
    return "\n".join(rows)


def _number(cases: Sequence[dict[str, Any]], key: str, of_all: Any, digits: int, times: float = 1) -> str:
    values = [case[key] for case in cases if case[key] is not None]
    return f"{of_all(values) * times:.{digits}f}" if values else "-"
