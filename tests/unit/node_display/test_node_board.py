"""The Grafana board and the alert rules ask only for metrics and labels that are told, in expressions that close."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_scenes import facts
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aliquot.node.display.metrics import registry_of
from aliquot.scheduler.extender.metrics import SchedulerMetrics

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
BOARD: dict[str, Any] = json.loads((FOLDER / "aliquot-board.json").read_text())
RULES = [
    rule for group in yaml.safe_load((FOLDER / "aliquot-alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]
EXPRESSIONS += [(rule["alert"], rule["expr"]) for rule in RULES]
SELECTOR = re.compile(r"\b(aliquot_\w+)(?:\{([^}]*)\})?")


def told() -> dict[str, set[str]]:
    """Every sample name of a node and of a scheduler, with its labels."""
    names: dict[str, set[str]] = {}
    scheduler = SchedulerMetrics()
    for metric in vars(scheduler).values():
        if getattr(metric, "_labelnames", ()):
            metric.labels(*("x" for _ in metric._labelnames))
    for registry in (registry_of(facts), scheduler.registry):
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            for sample in family.samples:
                names.setdefault(sample.name, set()).update(sample.labels)
    return names


TOLD = told()


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_expression_asks_for_what_is_told(where: str, expression: str):
    """Each metric exists, and so does each label that a selector or a grouping names."""
    asked = SELECTOR.findall(expression)
    labels = {name: re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside) for name, inside in asked}

    assert [] == [name for name in labels if name not in TOLD]
    assert {} == {name: set(have) - TOLD[name] for name, have in labels.items() if set(have) - TOLD[name]}


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_expression_asks_for_something_and_closes(where: str, expression: str):
    """No bracket stays open, whichever kind."""
    open_ones: list[str] = []
    for sign in re.sub(r'"[^"]*"', "", expression):
        if sign in "([{":
            open_ones.append({"(": ")", "[": "]", "{": "}"}[sign])
        elif sign in ")]}":
            assert sign == open_ones.pop()

    assert ([], True) == (open_ones, bool(SELECTOR.search(expression)))


def test_every_label_in_a_text_is_a_label_of_the_metric():
    """What a legend or an alert shows is there to be shown."""
    texts = [(t["expr"], t["legendFormat"]) for panel in BOARD["panels"] for t in panel["targets"]]
    texts += [(rule["expr"], text.replace("$labels.", "")) for rule in RULES for text in rule["annotations"].values()]
    for expression, text in texts:
        known = set.union(*(TOLD[name] for name, _ in SELECTOR.findall(expression)))
        used = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", text))
        assert used <= known, (expression, text)


def test_the_variables_ask_for_what_is_told():
    """The board's lists of nodes and namespaces."""
    queries = [v["query"]["query"] for v in BOARD["templating"]["list"] if v["type"] == "query"]

    for query in queries:
        (metric, label) = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in TOLD[metric]


def test_every_fact_of_a_container_is_on_the_board_or_in_an_alert_but_for_those_listed():
    """A metric that is added is shown, or is left out on purpose."""
    left_out = {f"aliquot_container_gpu_{name}" for name in
                ("limit_ratio", "memory_context_bytes", "waiting", "quota_seconds", "processes",
                 "charged_seconds_total", "wanted_seconds_total", "busy_windows_total", "busy_kept_total",
                 "fluid_error_ratio", "fluid_error_worst_ratio", "kernel_seconds_longest", "idle_seconds")}  # fmt: skip
    asked = {name for _, expression in EXPRESSIONS for name, _ in SELECTOR.findall(expression)}

    assert left_out == {name for name in TOLD if name.startswith("aliquot_container_")} - asked


def test_panels_lie_side_by_side():
    """None covers another, and each has its own number and title."""
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in BOARD["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len(BOARD["panels"]) == len({p["id"] for p in BOARD["panels"]}) == len({p["title"] for p in BOARD["panels"]})
