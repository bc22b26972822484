"""Agent, scheduler and arbiter stopped, killed and on full disks, in random order: pods keep their shares.

The scheduler keeps nothing on a disk: what it has learned is in a ConfigMap. `ALIQUOT_SEED` repeats an order.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_scene import DISKS, Chaos
from cluster.kubelet_node import KubeletNode
from cluster.whole import whole

SHORT, LONG = 6, 100


@pytest.fixture(scope="module")
def chaos(kubelet_node: KubeletNode) -> Iterator[Chaos]:
    """Everything runs, agent and arbiter on small disks."""
    plane, rooms = kubelet_node.control_plane, kubelet_node.control_plane.rooms
    for disk in DISKS:
        rooms.run(["/bin/sh", "-ec", f"mkdir -p {disk}; mount -t tmpfs -o size=48m,mode=755 tmpfs {disk}"])
    # The disks are mounted inside only.
    inside = Path(f"/proc/{rooms._holder_pid}/root")
    kubelet_node.path = lambda path: inside / str(path).lstrip("/")  # type: ignore[method-assign]
    plane.make_namespace("chaos")
    with whole(kubelet_node, "v100x2") as cluster:
        made = Chaos(cluster, "chaos")
        try:
            made.create()
            made.settle()
            yield made
            made.remove()
            plane.remove_namespace("chaos")
        finally:
            for disk in DISKS:
                rooms.run(["/bin/umount", "-l", disk])


def endure(chaos: Chaos, count: int) -> None:
    """So many faults."""
    seed = int(os.environ.get("ALIQUOT_SEED") or random.SystemRandom().randrange(10**6))
    chance, longest_s = random.Random(seed), 0.0
    print(f"ALIQUOT_SEED={seed}")
    for number in range(count):
        print(f"{number + 1}: {chaos.fault(chance)}", flush=True)
        longest_s = max(longest_s, chaos.settle())
    print(f"{count} faults, killed {chaos.kills}; all held again within {longest_s:.1f} s of each")


@pytest.mark.timeout(600)
def test_a_few_faults_in_random_order_cost_no_pod_its_share(chaos: Chaos):
    """After each fault every pod computes on its share, ledgers agree, and no pod was started again."""
    endure(chaos, SHORT)


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_a_hundred_faults_in_random_order_cost_no_pod_its_share(chaos: Chaos):
    """The same at length."""
    endure(chaos, LONG)
