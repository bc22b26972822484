"""How many GPUs a trace needs: the same runs on clusters of several sizes, and the smallest that keeps waits short."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from aliquot.model.errors import UserError
from aliquot_lab.sim.figures import RunFigures
from aliquot_lab.sim.runs import RunTask, Scenario, offered_load
from aliquot_lab.sim.wording import duration, load_percent, number, part_waits

MAX_SIZES: Final = 100
WAITS: Final = ("mean", "p50", "p90", "p99")
_RANGE: Final = re.compile(r"\*(\d{1,9})\.\.(\d{1,9})(?=,|$)")


@dataclass(frozen=True)
class Goal:
    """How long jobs may wait (`at`: mean or a percentile), and what a GPU costs an hour, where that is known."""

    wait_s: float
    at: str
    gpu_hour_price: float | None = None


def sizes_of(nodes: str) -> list[str]:
    """The clusters that `v100x8*6..12` stands for, the smallest first; other texts stand for themselves.

    Raises:
        UserError: more than one range, one that runs backwards, or more than 100 sizes.
    """
    found = list(_RANGE.finditer(nodes))
    if not found:
        return [nodes]
    if len(found) > 1:
        raise UserError(f"--nodes {nodes}: has {len(found)} ranges; one part of a cluster can grow, as in v100x8*6..12")
    low, high = int(found[0][1]), int(found[0][2])
    if not 1 <= low <= high or high - low >= MAX_SIZES:
        raise UserError(
            f"--nodes {nodes}: {low}..{high} is no range of up to {MAX_SIZES} sizes from 1, the lower first"
        )
    before, after = nodes[: found[0].start()], nodes[found[0].end() :]
    return [f"{before}*{count}{after}" for count in range(low, high + 1)]


def scenarios(scenario: Scenario, sizes: Sequence[str]) -> list[Scenario]:
    """The same scenario on each cluster."""
    return [replace(scenario, nodes=nodes) for nodes in sizes]


def size_facts(done: Mapping[RunTask, RunFigures], goal: Goal) -> dict[str, Any]:
    """A row for each size and policy, and the smallest size of each policy from which on waits stay within the goal."""
    groups: dict[tuple[Scenario, str], list[tuple[RunTask, RunFigures]]] = {}
    for task, run in done.items():
        groups.setdefault((task.scenario, task.policy), []).append((task, run))
    rows = [_row(scenario, policy, runs, goal) for (scenario, policy), runs in groups.items()]
    rows.sort(key=lambda row: (row["gpus"], row["nodes"]))
    names = list(dict.fromkeys(policy for _, policy in groups))
    answers = [{"policy": name, **_answer([row for row in rows if row["policy"] == name], goal)} for name in names]
    return {
        "goal": {"wait_s": goal.wait_s, "at": goal.at, "gpu_hour_price": goal.gpu_hour_price},
        "answers": answers,
        "rows": rows,
    }


def _row(scenario: Scenario, policy: str, runs: list[tuple[RunTask, RunFigures]], goal: Goal) -> dict[str, Any]:
    asked = offered_load(scenario, runs[0][0].seed)
    waits = {f"wait_{at}_s": round(fmean(run.figures[f"wait_{at}_s"] for _, run in runs), 4) for at in WAITS}
    makespan_s = fmean(run.figures["makespan_s"] for _, run in runs)
    hours = asked.gpus * makespan_s / 3600
    row: dict[str, Any] = {
        "nodes": scenario.nodes, "gpus": asked.gpus, "policy": policy, "seeds": len(runs),
        "offered_load_percent": asked.facts()["percent"], **waits, "makespan_s": round(makespan_s, 4),
        "jobs": asked.jobs, "asked_gpu_hours": round(asked.gpu_hours, 4), "left_out": asked.impossible,
        "left_out_gpu_hours": round(asked.impossible_gpu_hours, 4), "cluster_gpu_hours": round(hours, 4),
    }  # fmt: skip
    return row if goal.gpu_hour_price is None else row | {"cost": round(hours * goal.gpu_hour_price, 2)}


def _answer(rows: list[dict[str, Any]], goal: Goal) -> dict[str, Any]:
    figure = f"wait_{goal.at}_s"
    enough = None
    for row in reversed(rows):
        if row[figure] > goal.wait_s:
            break
        enough = row
    return {"holds": enough is not None, **(enough or rows[-1])}


def chosen_size(facts: Mapping[str, Any]) -> str:
    """The cluster that a report shows in full: the smallest that keeps the goal with any policy, else the largest."""
    held = [answer for answer in facts["answers"] if answer["holds"]]
    best = min(held, key=lambda row: row["gpus"]) if held else max(facts["rows"], key=lambda row: row["gpus"])
    return str(best["nodes"])


def sentences(facts: Mapping[str, Any]) -> list[str]:
    """The answer for each policy, the one that needs the fewest GPUs first."""
    ordered = sorted(facts["answers"], key=lambda answer: (not answer["holds"], answer["gpus"]))
    return [f"Policy {answer['policy']}: {_sentence(answer, facts['goal'])}" for answer in ordered]


def _sentence(answer: Mapping[str, Any], goal: Mapping[str, Any]) -> str:
    """Whether a size is enough, and for which jobs: those that fit on no node wait for ever, whatever the size.

    A trace that ends can be served above a load of 100 %, arrivals that go on cannot.
    """
    never, whom, them, rest = answer["left_out"], "", "the jobs", ""
    if never:
        fit = answer["jobs"] - never
        whom, them = f" for the {fit:,} job{'s' * (fit > 1)} that fit{'s' * (fit == 1)} on a node", "them"
        hours = answer["left_out_gpu_hours"]
        of_all = f"{number(hours)} of {number(hours + answer['asked_gpu_hours'])} GPU-hours"
        rest = f"; {never:,} of {answer['jobs']:,} jobs ({of_all}) can never run"
    at = goal["at"]
    told = f"{part_waits(at, them)} {duration(answer[f'wait_{at}_s'])}"
    if not answer["holds"]:
        wanted = duration(goal["wait_s"])
        return f"none of these sizes is enough{whom}: with {answer['gpus']} GPUs {told}, wanted are {wanted}{rest}"
    cost = f", cost {number(answer['cost'])} for the trace" if "cost" in answer else ""
    percent = answer["offered_load_percent"] or 0
    if percent > 100:
        whom = whom or " for this trace"
        rest += f"; if jobs kept arriving at this rate, a load of {load_percent(percent)} %, waits would grow"
    return (
        f"{answer['gpus']} GPUs ({answer['nodes']}) are enough{whom}: {told}, within "
        f"{duration(goal['wait_s'])}{cost}{rest}"
    )


def table(facts: Mapping[str, Any]) -> str:
    """Waits by size and policy, for a terminal."""
    at = facts["goal"]["at"]
    policies = [answer["policy"] for answer in facts["answers"]]
    by_size: dict[tuple[int, str], dict[str, dict[str, Any]]] = {}
    for row in facts["rows"]:
        by_size.setdefault((row["gpus"], row["nodes"]), {})[row["policy"]] = row
    wide = max(14, *(len(name) + 2 for name in policies))
    priced = facts["goal"]["gpu_hour_price"] is not None
    lines = [
        f"{'GPUS':>6}{'LOAD %':>8}"
        + "".join(f"{name:>{wide}}" for name in policies)
        + (f"{'COST':>12}" if priced else "")
    ]
    for (gpus, _), rows in by_size.items():
        any_row = next(iter(rows.values()))
        percent = any_row["offered_load_percent"]
        load = "-" if percent is None else f"{percent:.0f}"
        waits = (duration(rows[name][f"wait_{at}_s"]) if name in rows else "-" for name in policies)
        cost = f"{number(any_row['cost']):>12}" if priced else ""
        lines.append(f"{gpus:6}{load:>8}" + "".join(f"{wait:>{wide}}" for wait in waits) + cost)
    told = "mean wait" if at == "mean" else f"wait of {at.removeprefix('p')} % of the jobs at most"
    return "\n".join([*lines, f"({told})"])
