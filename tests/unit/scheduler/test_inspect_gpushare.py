"""What `kubectl inspect gpushare` computes from nodes and pods is what the ledger has.

The plugin is not run here; `inspected` computes what it computes, from the same fields.

Source: AliyunContainerService/gpushare-device-plugin cmd/inspect/nodeinfo.go and podinfo.go: a node's total is its
allocatable aliyun.com/gpu-mem, shared out evenly over its aliyun.com/gpu-count; a pod that has not ended counts with
the sum of its containers' limits on the GPU of its annotation ALIYUN_COM_GPU_MEM_IDX, and on -1 without one.
"""

import asyncio
from typing import Any

import pytest
from control_scene import Scene, Truth
from kit.objects import node

from aliquot.driver.gpu import Gpu
from aliquot.kube.dialects import foreign
from aliquot.kube.dialects.aliyun import COUNT, MEMORY, Unit
from aliquot.node.status import resources_of
from aliquot.scheduler.admission.rules import Admission

GPUS = [Gpu(i, f"GPU-n-{i}", "Tesla V100-SXM2-16GB", 16384, "570.1", [], [], 0) for i in range(2)]


class Gpushare:
    """A cluster of one node where pods are created, rewritten by the webhook, and bound."""

    def __init__(self, unit: Unit, **admission: Any) -> None:
        self.truth = Truth()
        self.scene = Scene(self.truth, [node("n", 2)])
        self.scene.binder.dialects = foreign(aliyun_unit=unit)
        self.admission = Admission(foreign(aliyun_unit=unit), **admission)
        self.allocatable = resources_of(GPUS, unit)

    def run(self, name: str, limits: dict[str, Any]) -> None:
        """A pod with these limits, as far as its bind."""
        document = {
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        said = self.admission.mutate({"object": document})
        made = said.changed or document
        pod = self.truth.create(
            name,
            made["spec"]["containers"][0]["resources"]["limits"],
            annotations=made["metadata"].get("annotations", {}),
        )
        self.scene.catch_up()
        assert "" == asyncio.run(self.scene.bind(pod, "n"))
        self.scene.catch_up()

    def inspected(self) -> dict[int, tuple[int, int]]:
        """(used, total) of each GPU by its number, as the plugin shows them."""
        total, count = self.allocatable.get(MEMORY, 0), self.allocatable.get(COUNT, 0)
        found = {number: [0, total // count] for number in range(count)}
        for document in self.truth.pods.values():
            containers = document["spec"]["containers"]
            memory = sum(int(c["resources"]["limits"].get(MEMORY, 0)) for c in containers)
            if memory and document["status"]["phase"] not in ("Succeeded", "Failed"):
                number = int(document["metadata"]["annotations"].get("ALIYUN_COM_GPU_MEM_IDX", -1))
                found.setdefault(number, [0, total // count])[0] += memory
        return {number: (used, whole) for number, (used, whole) in found.items()}


@pytest.mark.parametrize(("unit", "size"), [("GiB", 1), ("MiB", 1024)])
def test_the_plugin_shows_what_pods_of_gpushare_hold(unit: Unit, size: int):
    """Each GPU's total is its memory, and what is used is what running pods were given there, in the cluster's unit."""
    gpushare = Gpushare(unit, kept=frozenset({MEMORY}))
    for name, amount in (("a", 9), ("b", 6), ("c", 8), ("d", 1)):
        gpushare.run(name, {MEMORY: amount * size})
    gpushare.truth.end("b")
    gpushare.scene.catch_up()
    reserved = gpushare.scene.reserved()

    assert {i: (reserved[f"GPU-n-{i}"][1] * size // 1024, 16 * size) for i in (0, 1)} == gpushare.inspected()


def test_pods_keep_their_limit_only_where_the_plugin_is_served():
    """gpushare's own extender binds pods that carry its resource, past Aliquot, while it is still configured."""
    gpushare = Gpushare("GiB")
    gpushare.run("a", {MEMORY: 9})

    assert {0: (0, 16), 1: (0, 16)} == gpushare.inspected()
    assert {"GPU-n-0": (10, 9216)} == gpushare.scene.reserved()
