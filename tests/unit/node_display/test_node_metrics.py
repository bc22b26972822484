"""Each number of a container and a GPU has one metric; other programs' names tell the same facts in their units."""

import re
from pathlib import Path

import msgspec
import pytest
from node_scenes import UUIDS, facts, sources, tenant
from prometheus_client.parser import text_string_to_metric_families

from aliquot.model.errors import UserError
from aliquot.node.display.aliases import ALIASES
from aliquot.node.display.facts import read_report
from aliquot.node.display.metrics import (
    CONTAINER_COUNTERS,
    CONTAINER_GAUGES,
    GPU_GAUGES,
    SENSOR_GAUGES,
    registry_of,
)
from aliquot.node.settings import METRIC_ALIASES
from aliquot.node.spans import KubeletCalls
from aliquot.status.nodes import NodeReport
from aliquot.status.sensors import Sensors
from aliquot.status.tenants import WakeStatus

ALWAYS = (
    "aliquot_node_arbiter_up",
    "aliquot_node_info",
    "aliquot_node_audited",
    "aliquot_node_unregistered_found_total",
    "aliquot_node_unregistered_killed_total",
)
NAMES = {
    *ALWAYS,
    *GPU_GAUGES,
    *(f"aliquot_container_gpu_{name}" for name in CONTAINER_GAUGES),
    *(f"aliquot_container_gpu_{name}_total" for name in CONTAINER_COUNTERS),
}
DOCS = Path(__file__).resolve().parents[3] / "docs"
WEB = {"namespace": "team", "pod": "web-1", "container": "app", "gpu": "0", "uuid": UUIDS[0], "node": "node-a"}
TRAIN = WEB | {"pod": "train-0", "container": "main"}


def scraped(now: NodeReport, *aliases: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """What Prometheus would read: by name, labels and value."""
    from prometheus_client.exposition import generate_latest

    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry_of(lambda: now, aliases)).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def value(found: dict[str, list[tuple[dict[str, str], float]]], name: str, labels: dict[str, str]) -> float:
    """Of the one sample that has at least those labels."""
    (only,) = [value for have, value in found[name] if labels.items() <= have.items()]
    return only


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        (0.3, "request_ratio"), (0.8, "limit_ratio"), (0.25, "usage_ratio"), (1 << 30, "memory_used_bytes"),
        (4 << 30, "memory_limit_bytes"), (100 << 20, "memory_context_bytes"), (0.012, "wait_seconds_median"),
        (0.1, "quota_seconds"), (0.003, "debt_seconds"), (2, "processes"), (2.5, "charged_seconds_total"),
        (1.5, "throttled_seconds_total"), (7, "handovers_total"), (4, "oom_total"), (0, "waiting"),
    ],
)  # fmt: skip
def test_each_fact_of_a_container_has_a_metric(expected: float, name: str):
    """In base units, under the container's pod and GPU."""
    assert expected == pytest.approx(value(scraped(facts()), f"aliquot_container_gpu_{name}", TRAIN))


@pytest.mark.parametrize(
    ("expected", "name"),
    [
        (1, "healthy"), (0.75, "busy_ratio"), (1, "held"), (2, "containers"), (0.3, "free_ratio"),
        (16 << 30, "memory_bytes"), (1536 << 20, "memory_used_bytes"),
    ],
)  # fmt: skip
def test_each_fact_of_a_gpu_has_a_metric(expected: float, name: str):
    """The GPU by node, index, UUID and model."""
    labels = {"node": "node-a", "gpu": "0", "uuid": UUIDS[0], "model": "Tesla V100"}

    assert expected == pytest.approx(value(scraped(facts()), f"aliquot_node_gpu_{name}", labels))


def test_the_names_that_are_listed_are_those_that_are_told():
    """What boards and alerts may rely on is what a scrape shows."""
    assert NAMES == set(scraped(facts()))


def test_an_arbiter_that_is_away_is_told_and_no_use_is_made_up():
    """GPUs stay, containers go, and one metric says why."""
    found = scraped(facts(status=lambda: None))

    assert 0 == value(found, "aliquot_node_arbiter_up", {})
    assert (2, False) == (len(found["aliquot_node_gpu_healthy"]), "aliquot_container_gpu_usage_ratio" in found)


def test_an_unhealthy_gpu_is_told():
    """Its health is 0, that of the others 1."""
    found = scraped(facts(unhealthy=lambda: {UUIDS[1]: "XID 79"}))

    assert [1, 0] == [value for _, value in found["aliquot_node_gpu_healthy"]]


def test_hostile_names_stay_inside_their_label():
    """Quotes, line ends and backslashes of a name come back as they were."""
    hostile = 'a"b\n\\c'
    now = facts()
    odd = facts(status=lambda: _with_tenant(f"team/{hostile}/x"), owners=dict)

    labels = [labels for labels, _ in scraped(odd)["aliquot_container_gpu_usage_ratio"]]

    assert [hostile] == [each["pod"] for each in labels]
    assert now.node == odd.node


def _with_tenant(name: str):
    from node_scenes import status

    now = status()
    now.gpus[0].tenants[:] = [tenant(name, 100)]
    now.gpus[1].tenants.clear()
    return now


def test_gpu_managers_names_tell_cards_hundredths_and_mib():
    """Each card and the total, as its dashboards sum them."""
    found = scraped(facts(), "gpu-manager")
    who = {"pod_name": "train-0", "namespace": "team", "node": "node-a", "container_name": "main"}

    assert 25 == value(found, "container_gpu_utilization", who | {"gpu": "gpu0"})
    assert 37.5 == value(found, "container_gpu_utilization", who | {"gpu": "total"})
    assert 3072 == value(found, "container_gpu_memory_total", who | {"gpu_memory": "total"})
    assert 1.3 == value(found, "container_request_gpu_utilization", who | {"req_of_gpu": "total"})
    assert 8192 == value(found, "container_request_gpu_memory", who | {"req_of_gpu_memory": "total"})


@pytest.mark.parametrize(
    ("dialect", "names", "who", "gpu"),
    [
        (
            "hami",
            (
                "hami_vgpu_memory_used_bytes",
                "hami_container_device_utilization_ratio",
                "hami_host_gpu_utilization_ratio",
            ),
            {"namespace": "team", "pod": "train-0", "container": "main", "vdevice_index": "1", "device_uuid": UUIDS[1]},
            {"node": "node-a", "device_index": "0", "device_uuid": UUIDS[0], "device_type": "NVIDIA-Tesla V100"},
        ),
        (  # before HAMi 2.9
            "hami-legacy",
            ("vGPU_device_memory_usage_in_bytes", "Device_utilization_desc_of_container", "HostCoreUtilization"),
            {"podnamespace": "team", "podname": "train-0", "ctrname": "main", "vdeviceid": "1", "deviceuuid": UUIDS[1]},
            {"deviceidx": "0", "deviceuuid": UUIDS[0]},
        ),
    ],
)
def test_hamis_names_tell_bytes_and_hundredths(
    dialect: str, names: tuple[str, ...], who: dict[str, str], gpu: dict[str, str]
):
    """Names and labels are those of HAMi; the container's second GPU is its device 1."""
    found = scraped(facts(), dialect)

    assert [2048 << 20, 12.5, 75] == [
        value(found, name, labels) for name, labels in zip(names, (who, who, gpu), strict=True)
    ]


def test_what_hamis_scheduler_tells_of_a_gpu_is_told_by_its_node():
    """HAMi's board joins capacity and promises of each GPU with its use by UUID, and its menu lists `node`."""
    found = scraped(facts(), "hami")
    gpu = {"node": "node-a", "device_uuid": UUIDS[0], "device_index": "0"}
    kind = {"device_type": "NVIDIA-Tesla V100"}

    assert 16384 << 20 == value(found, "hami_gpu_memory_limit_bytes", gpu | kind)
    assert 8192 << 20 == value(found, "hami_gpu_memory_allocated_bytes", gpu | kind | {"device_cores": "100"})
    assert 2 == value(found, "hami_gpu_shared_count", gpu | kind)
    assert 70 == value(found, "hami_gpu_core_allocated_ratio", gpu | kind)
    assert 0.5 == value(found, "hami_node_gpu_memory_allocated_ratio", gpu)


def test_aliases_are_told_only_where_asked():
    """Without one there is no foreign name, so that two programs can be scraped side by side."""
    assert [] == [name for name in scraped(facts()) if not name.startswith("aliquot_")]


def test_an_alias_that_does_not_exist_is_refused_with_the_list():
    """At the start, not at the first scrape."""
    with pytest.raises(UserError, match="'dcgm' is not known; the names are gpu-manager, hami, hami-legacy"):
        registry_of(facts, ["dcgm"])


def test_the_settings_know_the_same_aliases():
    """What the agent's settings accept is what there is."""
    assert set(METRIC_ALIASES) == set(ALIASES)


def test_every_metric_that_a_page_names_exists():
    """In all of the documentation but the reference, which is made from the code."""
    pages = [path for path in DOCS.rglob("*.md") if "reference" not in path.parts]
    named = {name for page in pages for name in re.findall(r"`(aliquot_(?:node|container)_\w+)`", page.read_text())}

    assert "aliquot_node_audited" in named
    assert set() == named - NAMES - WAKES - CALLS - set(SENSOR_GAUGES)


CALLS = {family.name for family in KubeletCalls("").seconds.describe()}
"""Of kubelet's calls, beside the snapshot."""

WAKES = {f"aliquot_container_gpu_wake_{name}" for name in ("promised_seconds", "seconds", "kept")}
"""Of containers that were promised to wake in time alone."""


def test_a_promise_of_waking_has_metrics_where_there_is_one():
    """What was promised, the measured quantiles, and whether it is kept; without a promise nothing."""
    before = facts()
    (gpu, *others) = before.gpus
    (use, *uses) = gpu.uses
    status = msgspec.structs.replace(use.status, wake=WakeStatus(5.0, 1.5, 4.0, 200, True, 3.25))
    replace = msgspec.structs.replace
    now = replace(before, gpus=(replace(gpu, uses=(replace(use, status=status), *uses)), *others))
    found = scraped(now)

    assert WAKES == set(found) - set(scraped(before))
    assert [0.005] == [seconds for _, seconds in found["aliquot_container_gpu_wake_promised_seconds"]]
    assert {"0.5": 0.0015, "0.99": 0.004} == {
        labels["quantile"]: seconds for labels, seconds in found["aliquot_container_gpu_wake_seconds"]
    }
    assert [1.0] == [kept for _, kept in found["aliquot_container_gpu_wake_kept"]]


def test_sensors_are_metrics_in_base_units():
    """Temperature, power and clocks are told in degrees, watts and hertz; a GPU that does not answer has no sample."""
    sensed = {UUIDS[0]: Sensors(celsius=61, watts=250.5, sm_mhz=1530)}
    found = scraped(read_report(sources(sensors=lambda: sensed), sensors=True))

    expected = {"temperature_celsius": 61, "power_watts": 250.5, "sm_clock_hertz": 1.53e9}
    told = {name.removeprefix("aliquot_node_gpu_"): samples for name, samples in found.items()}
    assert expected == {name: told[name][0][1] for name in expected}
    assert [1, 1, 1] == [len(told[name]) for name in expected]
    assert not {"power_limit_watts", "memory_clock_hertz"} & told.keys()


def test_sensors_are_read_for_viewers_only():
    """A look of the agent's own reads no sensors."""
    assert facts(sensors=lambda: pytest.fail("sensors were read")).gpus[0].sensors is None
