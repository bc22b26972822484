"""Mixes under policies: what each tenant got, what the fluid would have given it, and whether the promise was kept.

By the kernels that ran and the time each program wanted the GPU by its own record, never by the arbiter's records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aliquot.lib.arrays import FloatArray
from aliquot.tokens import SECOND, Share, TokenConfig, Turns, token_policy
from aliquot.tokens.account import SLACK_MILLI, WHOLE_WINDOW
from aliquot.tokens.fluid import WHOLE, rates

from .mixes import Mix
from .node import STEP_NS, MachineSpeeds, SimulatedNode

WARM_S: Final = 5.0
SLACK: Final = SLACK_MILLI / 1000


@dataclass(frozen=True)
class TenantRun:
    """One tenant: its share, its busy phases, and the time that its kernels had run for at every step."""

    share: Share
    gpus: tuple[str, ...]
    phases: Sequence[tuple[float, float]]
    """Begin and end, in seconds."""
    ran_s: Sequence[float]


def wanted(phases: Sequence[tuple[float, float]], at_s: FloatArray) -> FloatArray:
    """For how long the GPU has been wanted, at each time."""
    if not phases:
        return np.zeros(len(at_s))
    edges = np.array(phases, float)
    sums = np.concatenate([[0.0], np.cumsum(edges[:, 1] - edges[:, 0])])
    passed: FloatArray = np.interp(at_s, edges.reshape(-1), np.repeat(sums, 2)[1:-1], left=0.0, right=float(sums[-1]))
    return passed


def fluid(tenants: Mapping[str, TenantRun], at_s: FloatArray) -> dict[str, FloatArray]:
    """What the fluid has given each by each time, in seconds."""
    names = list(tenants)
    edges = [edge for seen in tenants.values() for phase in seen.phases for edge in phase]
    cuts = np.unique(np.concatenate([np.array(edges, float), at_s]))
    on = np.zeros((len(names), len(cuts) - 1), bool)
    for row, name in enumerate(names):
        for begin, end in tenants[name].phases:
            on[row, np.searchsorted(cuts, begin) : np.searchsorted(cuts, end)] = True
    rate = np.zeros(on.shape)
    for busy in {tuple(column) for column in on.T}:
        rows = [row for row, wants in enumerate(busy) if wants]
        chosen = [tenants[names[row]] for row in rows]
        here = np.all(on.T == np.array(busy), axis=1)
        for row, of_row in zip(rows, rates([s.share for s in chosen], [s.gpus for s in chosen]), strict=True):
            rate[row, here] = of_row / WHOLE
    spans = np.diff(cuts)
    return {
        name: np.interp(at_s, cuts, np.concatenate([[0.0], np.cumsum(rate[row] * spans)]))
        for row, name in enumerate(names)
    }


def judge_mix(
    mix: Mix, tenants: Mapping[str, TenantRun], step_s: float, *, window_s: float, warm_s: float
) -> dict[str, Any]:
    """The same of a mix: the one that misbehaves is excused, and what it gained is in points of the GPU."""
    found = judge(tenants, step_s, window_s=window_s, warm_s=warm_s, excused=mix.suspect)
    if not mix.clocked:  # what it wants depends on what it gets, so no fluid can be computed from outside
        found |= dict.fromkeys(("error_p95", "error_worst", "promise_a", "promise_c", "used_of_fluid"))
    gain = next((round(100 * (t["got"] - t["fluid"]), 2) for t in found["tenants"] if t["name"] == mix.suspect), None)
    return {"mix": mix.name, **found, "gain_points": gain}


def judge(
    tenants: Mapping[str, TenantRun], step_s: float, *, window_s: float, warm_s: float, excused: str = ""
) -> dict[str, Any]:
    """Every window of `window_s`, one a step, after `warm_s`: the errors, the promises, and what was used.

    The tenant that is excused gets what it makes of its turns: its windows are not judged.

    Raises:
        ValueError: there is no whole window.
    """
    steps = min(len(seen.ran_s) for seen in tenants.values())
    at_s: FloatArray = np.arange(steps, dtype=np.float64) * step_s
    first, width = round(warm_s / step_s), round(window_s / step_s)
    if steps <= first + width:
        raise ValueError(f"{steps * step_s:.1f} s hold no window of {window_s:g} s after {warm_s:g} s")

    def windows(sums: FloatArray) -> FloatArray:
        return (sums[first + width :] - sums[first:-width]) / window_s

    given = fluid(tenants, at_s)
    errors: list[FloatArray] = []
    kept, busy_kept, told = [], [], []
    whole_s = float(at_s[-1] - at_s[first])
    for name, seen in tenants.items():
        ran = np.array(seen.ran_s[:steps], float)
        wants = windows(wanted(seen.phases, at_s))
        got, request = windows(ran), seen.share.request_milli / 1000
        if name != excused:
            errors.append(np.abs(got - windows(given[name])))
            kept.append((got >= request * wants - SLACK)[wants > 0])
            busy_kept.append((got >= request - SLACK)[wants >= WHOLE_WINDOW])
        told.append({
            "name": name, "request": request, "limit": seen.share.limit_milli / 1000,
            "got": round(float((ran[-1] - ran[first]) / whole_s), 4),
            "fluid": round(float((given[name][-1] - given[name][first]) / whole_s), 4),
            "over_limit": round(float(np.max(got)) - seen.share.limit_milli / 1000, 4),
        })  # fmt: skip
    every, of_all, of_busy = np.concatenate(errors), np.concatenate(kept), np.concatenate(busy_kept)
    due = sum(float(series[-1] - series[first]) for series in given.values()) / whole_s
    used = sum(float(seen.ran_s[steps - 1] - seen.ran_s[first]) for seen in tenants.values()) / whole_s
    return {
        "tenants": told,
        "error_p95": round(float(np.percentile(every, 95)), 4),
        "error_worst": round(float(every.max()), 4),
        "promise_a": round(float(of_all.mean()), 4) if len(of_all) else None,
        "promise_c": round(float(of_busy.mean()), 4) if len(of_busy) else None,
        "used_of_fluid": round(used / due, 4) if due else None,
    }


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
        cells = worst_of(mine)
        wakes = [case["wake"] for case in mine if case["wake"]]
        wake = f"{np.median([w['p50_ms'] for w in wakes]):.1f} {max(w['p99_ms'] for w in wakes):.1f}" if wakes else "-"
        rate = float(np.mean([case["handovers_per_s"] for case in mine]))
        rows.append(f"{mix:<12} {way:<9} {' '.join(f'{cell:>5}' for cell in cells)} {wake:>11} {rate:>7.1f}")
    return "\n".join(rows)


def worst_of(cases: Sequence[dict[str, Any]]) -> list[str]:
    """The errors, promises, use and gain of cases, the worst of each, as texts."""
    return [
        _number(cases, "error_p95", max, 3), _number(cases, "error_worst", max, 3),
        _number(cases, "promise_a", min, 1, 100), _number(cases, "promise_c", min, 1, 100),
        _number(cases, "used_of_fluid", min, 3), _number(cases, "gain_points", max, 1),
    ]  # fmt: skip


def _number(cases: Sequence[dict[str, Any]], key: str, of_all: Any, digits: int, times: float = 1) -> str:
    values = [case[key] for case in cases if case[key] is not None]
    return f"{of_all(values) * times:.{digits}f}" if values else "-"
