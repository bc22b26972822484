"""Prometheus' own promtool reads the rules: each alert fires and clears, each recorded sum is right."""

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cluster.cache import Unavailable
from cluster.prometheus import program

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
ALERTS, RECORDING = FOLDER / "aliquot-alerts.yaml", FOLDER / "aliquot-recording.yaml"
GPU = 'node="a",gpu="0",uuid="GPU-1",model="H100"'
CONTAINER = 'node="a",gpu="0",uuid="GPU-1",namespace="n",pod="p",container="c"'


class Scene(NamedTuple):
    """Series by selector, as promtool writes them, one value a minute; when the alert is silent and when it fires."""

    series: dict[str, str]
    silent: tuple[str, ...]
    firing: str
    labels: str


SCENES = {
    "AliquotArbiterAway": Scene(
        {'aliquot_node_arbiter_up{node="a"}': "1x9 0x9 1x9"}, ("10m", "21m"), "12m", 'node="a"'
    ),
    "AliquotGpuUnhealthy": Scene({f"aliquot_node_gpu_healthy{{{GPU}}}": "1x9 0x9 1x9"}, ("10m", "21m"), "12m", GPU),
    "AliquotPromiseBroken": Scene(
        {
            f"aliquot_container_gpu_promise_windows_total{{{CONTAINER}}}": "0+10x100",
            f"aliquot_container_gpu_promise_kept_total{{{CONTAINER}}}": "0+10x30 303+3x20 370+10x50",
        },
        ("29m", "75m"), "40m", CONTAINER,
    ),
    "AliquotMemoryRefused": Scene(
        {f"aliquot_container_gpu_oom_total{{{CONTAINER}}}": "0x10 1x40"}, ("10m", "25m"), "12m", CONTAINER
    ),
    "AliquotNotHeld": Scene(
        {
            f"aliquot_container_gpu_unrouted_functions_total{{{CONTAINER}}}": "0x60",
            f"aliquot_container_gpu_ungated_seconds_total{{{CONTAINER}}}": "0x10 2x40",
        },
        ("10m", "25m"), "12m", CONTAINER,
    ),
    "AliquotMemoryNearlyFull": Scene(
        {
            f"aliquot_container_gpu_memory_used_bytes{{{CONTAINER}}}": "50x4 96x19 50x9",
            f"aliquot_container_gpu_memory_limit_bytes{{{CONTAINER}}}": "100x40",
        },
        ("15m", "26m"), "22m", CONTAINER,
    ),
    "AliquotDebtGrows": Scene(
        {f"aliquot_container_gpu_debt_seconds{{{CONTAINER}}}": "0x4 11x14 1x9"}, ("10m", "21m"), "17m", CONTAINER
    ),
    "AliquotUnregisteredProcesses": Scene(
        {f"aliquot_node_gpu_unregistered_processes{{{GPU}}}": "0x4 2x4 0x9"}, ("4m", "12m"), "8m", GPU
    ),
    "AliquotNoSchedulerLeads": Scene(
        {'aliquot_scheduler_leads{pod="s"}': "1x9 0x9 1x9", 'aliquot_node_arbiter_up{node="a"}': "1x40"},
        ("10m", "21m"), "14m", "",
    ),
    "AliquotInconsistentPods": Scene(
        {'aliquot_scheduler_inconsistent_pods{pod="s"}': "0x4 1x14 0x9"}, ("9m", "21m"), "16m", 'pod="s"'
    ),
    "AliquotInventoryUnreadable": Scene(
        {'aliquot_scheduler_unreadable_nodes{pod="s"}': "0x4 1x9 0x9"}, ("6m", "17m"), "12m", 'pod="s"'
    ),
}  # fmt: skip
VALUES = {"AliquotUnregisteredProcesses": "2", "AliquotInconsistentPods": "1", "AliquotInventoryUnreadable": "1"}


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return program("promtool")
    except Unavailable as why:
        pytest.skip(str(why))


def run(promtool: Path, *words: str | Path) -> str:
    """What it prints; it has to succeed."""
    done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ask(promtool: Path, folder: Path, rules: Path, test: dict[str, Any]) -> str:
    """What `promtool test rules` says of one case."""
    case = folder / "case.json"
    whole = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [{"interval": "1m", **test}]}
    case.write_text(json.dumps(whole))
    return run(promtool, "test", "rules", case)


def series(values: dict[str, str]) -> list[dict[str, str]]:
    """As promtool takes them."""
    return [{"series": selector, "values": text} for selector, text in values.items()]


def rules_of(file: Path) -> list[dict[str, Any]]:
    """Every rule of a file."""
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def expected(name: str, labels: str) -> dict[str, Any]:
    """The alert with its labels, and its texts with the labels' values in them."""
    (rule,) = (rule for rule in rules_of(ALERTS) if rule["alert"] == name)
    pairs = dict(yaml.safe_load(f"{{{labels.replace('=', ': ')}}}"))

    def text(template: str) -> str:
        for key, value in pairs.items():
            template = template.replace(f"{{{{ $labels.{key} }}}}", value)
        return template.replace("{{ $value }}", VALUES.get(name, ""))

    return {
        "exp_labels": pairs | rule["labels"],
        "exp_annotations": {key: text(template) for key, template in rule["annotations"].items()},
    }


@pytest.mark.parametrize("file", [ALERTS, RECORDING], ids=lambda file: file.stem)
def test_prometheus_reads_the_rules(promtool: Path, file: Path):
    """Every rule parses, and none is doubled."""
    assert f"SUCCESS: {len(rules_of(file))} rules found" in run(promtool, "check", "rules", file)


def test_every_alert_has_a_scene():
    """An alert that is never seen to fire is no alert."""
    assert set(SCENES) == {rule["alert"] for rule in rules_of(ALERTS)}


@pytest.mark.parametrize("name", SCENES)
def test_an_alert_fires_and_clears(promtool: Path, tmp_path: Path, name: str):
    """It is silent before its cause, fires while the cause lasts, with its texts filled in, and is silent after."""
    scene = SCENES[name]
    silent = [{"eval_time": at, "alertname": name, "exp_alerts": []} for at in scene.silent]
    fires = {"eval_time": scene.firing, "alertname": name, "exp_alerts": [expected(name, scene.labels)]}

    ask(promtool, tmp_path, ALERTS, {"input_series": series(scene.series), "alert_rule_test": [*silent, fires]})


def test_a_scheduler_that_is_away_altogether_is_missed(promtool: Path, tmp_path: Path):
    """No sample of any scheduler is as bad as one that says it does not lead, where there are nodes to serve."""
    fires = {"eval_time": "5m", "alertname": "AliquotNoSchedulerLeads"}
    nodes = series({'aliquot_node_arbiter_up{node="a"}': "1x9"})

    for given, alerts in ((nodes, [expected("AliquotNoSchedulerLeads", "")]), ([], [])):
        ask(promtool, tmp_path, ALERTS, {"input_series": given, "alert_rule_test": [fires | {"exp_alerts": alerts}]})


def test_gpu_hours_are_recorded(promtool: Path, tmp_path: Path):
    """Two containers of one namespace: .5 requested and .75 used, .3 requested and .1 used, for two hours and one."""
    one, two = CONTAINER, CONTAINER.replace('pod="p"', 'pod="q"')
    given = series({
        f"aliquot_container_gpu_request_ratio{{{one}}}": "0.5x119 stale",
        f"aliquot_container_gpu_charged_seconds_total{{{one}}}": "0+45x119",
        f"aliquot_container_gpu_request_ratio{{{two}}}": "0.3x59 stale",
        f"aliquot_container_gpu_charged_seconds_total{{{two}}}": "0+6x59",
    })  # fmt: skip
    at_30 = {"requested:sum": 0.8, "used:rate5m": 0.85, "borrowed:rate5m": 0.25, "unused:rate5m": 0.2}
    moments = [
        {"expr": f"round(namespace:aliquot_gpu_{name}, 1e-6)", "eval_time": "30m",
         "exp_samples": [{"labels": '{namespace="n"}', "value": value}]}
        for name, value in at_30.items()
    ]  # fmt: skip
    hours = "round(sum_over_time(namespace:aliquot_gpu_requested:sum[1d]) / 60, 1e-6)"
    moments.append({"expr": hours, "eval_time": "180m", "exp_samples": [{"labels": '{namespace="n"}', "value": 1.3}]})

    ask(promtool, tmp_path, RECORDING, {"input_series": given, "promql_expr_test": moments})
