"""Whether all containers of a pod fit at once, from columns and by placing them one by one."""

from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.kube.requests import BadPod
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.entries import NodeSpec
from aliquot.placement.policy import policy
from aliquot.placement.quota import Quota, Quotas
from aliquot.scheduler.ledger import Ledger, NodeFull

MODELS = {"V": ("Tesla V100-SXM2-16GB", 16384), "A": ("NVIDIA A100-SXM4-80GB", 81920), "S": ("Tesla P4", 7680)}
NODES = {"a": "V", "b": "AA", "c": "VVAA", "d": "VVVVVVVV", "e": "SSV"}
SPECS = [
    NodeSpec(name, tuple(Device(g, GpuUuid(f"GPU-{name}-{g}"), *MODELS[kind]) for g, kind in enumerate(kinds)))
    for name, kinds in NODES.items()
]
POLICIES = ("aliquot", "kubeshare", "spread", "binpack", "random", "gaia", "fgd")
PERCENT = st.sampled_from([3, 10, 25, 30, 50, 70, 90, 100, 150, 200])
MEMORY = st.sampled_from(["", "", "", "512Mi", "3Gi", "12Gi", "40Gi"])
LABELS = st.sampled_from([
    {}, {}, {}, {"affinity": "x"}, {"anti-affinity": "x"}, {"exclusion": "x"}, {"gpu-model": "A100"},
    {"gpu-parts": "2"}, {"gpu-id": "one"}, {"wake": "5ms"}, {"mixed-models": "true"}, {"gpu-uuid": "GPU-a-0,GPU-c-1"},
])  # fmt: skip


@st.composite
def pods(draw: st.DrawFn, most: int) -> dict[str, Any]:
    """A pod of some containers, init containers among them; equal ones more often than not."""
    kinds = draw(st.lists(st.tuples(PERCENT, MEMORY), min_size=1, max_size=3))
    found: dict[str, list[dict[str, Any]]] = {"containers": [], "initContainers": []}
    for number in range(draw(st.integers(1, most))):
        percent, memory = draw(st.sampled_from(kinds))
        limits = {"aliquot.dev/gpu-percent": percent} | ({"aliquot.dev/gpu-memory": memory} if memory else {})
        role = draw(st.sampled_from(["app", "app", "app", "init", "sidecar"]))
        made = {"name": f"c{number}", "resources": {"limits": limits}}
        made |= {"restartPolicy": "Always"} if role == "sidecar" else {}
        found["containers" if role == "app" else "initContainers"].append(made)
    notes = {f"aliquot.dev/{key}": value for key, value in draw(LABELS).items()}
    return {"metadata": {"namespace": "default", "annotations": notes}, "spec": found}


def asked(document: dict[str, Any], name: str) -> Any:
    """What a pod asks for; contradictory ones are not drawn."""
    document["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    try:
        return read(msgspec.convert(document, Pod))
    except BadPod:
        return None


@settings(max_examples=100, deadline=None)
@given(pods(9), st.lists(st.tuples(pods(2), st.sampled_from([*NODES])), max_size=12), st.data())
def test_bounds_hold_under_every_policy(pod: dict[str, Any], others: list[tuple[dict[str, Any], str]], data: Any):
    """Where the columns say that all fit, every policy finds a place for each; where they say no, none does."""
    ask = asked(pod, "x")
    assume(ask is not None)
    ledger = Ledger(policy("binpack"))
    for spec in SPECS:
        ledger.cluster.add_node(spec)
    for number, (document, name) in enumerate(others):
        if other := asked(document, f"p{number}"):
            try:
                ledger.allocate(other, name, 0.0)
            except NodeFull:
                continue
    quota = data.draw(st.sampled_from([None, None, 1500, 6000]))
    if quota is not None:
        ledger.decider.quotas = Quotas([Quota("default", milli=quota)])
    units = ask.units(ledger.known)
    for name in [data.draw(st.sampled_from(POLICIES))]:
        fresh = Ledger(policy(name))
        fresh.decider.quotas = ledger.decider.quotas
        for spec in SPECS:
            fresh.cluster.add_node(spec)
        for tenant, holding in ledger.cluster.tenants.items():
            fresh.cluster.reserve(tenant, holding.placement, holding.ask)
        alone = [fresh.decider.feasible(unit.ask, "default") for unit in units]
        nodes = (fresh.cluster.gpu_count > 0).nonzero()[0]
        nodes = nodes[[all(fits[number] for fits in alone) for number in nodes]]
        surely, maybe = fresh.decider.together(units, nodes, "default")
        found = [
            fresh.decider.place_together(units, fresh.cluster.spec(n).name, "default") is not None
            for n in nodes.tolist()
        ]

        assert [(True, True)] * sum(surely) == [(f, m) for f, m, s in zip(found, maybe, surely, strict=True) if s]
        assert not any(fits for fits, may in zip(found, maybe, strict=True) if not may)
        one = units[0].ask
        if all(unit.ask == one and not unit.init for unit in units) and one.plain and one.devices == 1 and not quota:
            assert surely.tolist() == maybe.tolist() == found
