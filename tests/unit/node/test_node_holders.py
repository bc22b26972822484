"""Which GPUs of a stock plugin are held for Aliquot, from pods and kubelet's account."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from aliquot.driver.gpu import Gpu
from aliquot.kube.errors import Forbidden
from aliquot.kube.names import HOLDS
from aliquot.kube.objects import Meta, PodStatus
from aliquot.node.allocation.kubelet import ContainerDevices
from aliquot.node.holders import Holders, held_gpus
from aliquot.node.machine import Machine, NodeOffer
from aliquot.node.pods import NodePod

HOME = "kube-system"
GPUS = ("GPU-a", "GPU-b", "GPU-c")


def holder(name: str, namespace: str = HOME, *, phase: str = "Running", label: bool = True) -> NodePod:
    """A pod as the scheduler's pool makes it."""
    labels = {"aliquot.dev/vgpu": name} if label else {}
    meta = Meta(name=name, namespace=namespace, uid=f"uid-{name}", labels=labels)
    return NodePod(metadata=meta, status=PodStatus(phase=phase))


def row(name: str, *ids: str, namespace: str = HOME) -> ContainerDevices:
    """What kubelet says that a pod has of the stock plugin."""
    return ContainerDevices(namespace, name, "hold", frozenset(ids))


def test_the_gpu_of_a_holder_is_held_and_that_of_another_pod_is_not():
    """A labelled pod's UUID counts; a pod without the label that has a whole GPU keeps it for itself."""
    pods = [holder("one"), holder("training", label=False)]

    found, faults = held_gpus(pods, [row("one", "GPU-b"), row("training", "GPU-a")], HOME, GPUS)

    assert ({"GPU-b": pods[0]}, ()) == (found, faults)


@pytest.mark.parametrize(
    ("namespace", "phase"),
    [
        ("team", "Running"),  # who labels a pod of their own gets nobody onto its GPU
        (HOME, "Succeeded"),  # kubelet may still list one that has ended; its GPU is free to be given to another
        (HOME, "Failed"),
    ],
)
def test_a_label_alone_makes_no_holder(namespace: str, phase: str):
    """A holder is a pod of the agent's own namespace that has not ended."""
    pods = [holder("one", namespace, phase=phase)]

    assert ({}, ()) == held_gpus(pods, [row("one", "GPU-a", namespace=namespace)], HOME, GPUS)


@pytest.mark.parametrize(
    "rows",
    [
        [row("one", "GPU-a", "GPU-b")],
        [row("one", "GPU-a::0")],
        [row("one", "0")],
        [row("one", "GPU-a"), row("other", "GPU-a", namespace="team")],
        [row("one", "GPU-a"), row("other", "GPU-a", namespace="team"), row("other", "GPU-b", namespace="team")],
        [row("one", "GPU-a"), row("one", "GPU-b")],
    ],
    ids=["two", "replica", "no-uuid", "shared", "shared by one of two containers", "two containers"],
)
def test_what_is_no_whole_gpu_is_not_shared_and_told(rows: list[ContainerDevices]):
    """Two GPUs, a replica of one, an id that is no UUID, or a GPU that somebody else has too: none, with a sentence."""
    found, faults = held_gpus([holder("one")], rows, HOME, GPUS)

    assert {} == found
    assert len(faults) == 1 and faults[0].startswith("kube-system/one holds ")


def test_a_kubelet_that_has_lost_its_memory_takes_no_gpu_away():
    """A restarted kubelet lists no pod at first; what is written on a living holder counts, until another pod has the
    GPU or the holder is deleted."""
    one = holder("one")
    one.metadata.annotations[HOLDS] = "GPU-a"

    assert ({"GPU-a": one}, ()) == held_gpus([one], [], HOME, GPUS)
    assert ({}, ()) == held_gpus([one], [row("other", "GPU-a", namespace="team")], HOME, GPUS)
    one.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    assert ({}, ()) == held_gpus([one], [], HOME, GPUS)


class FakeKubelet:
    """Answers with `rows`, or not at all while they are None."""

    def __init__(self) -> None:
        self.rows: list[ContainerDevices] | None = []

    async def held(self) -> list[ContainerDevices]:
        """See `Account`."""
        if self.rows is None:
            raise OSError("no answer")
        return self.rows


class FakeApi:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.patches: list[tuple[str, str, dict[str, Any]]] = []

    async def patch(self, _kind: Any, name: str, body: dict[str, Any], *, namespace: str) -> None:
        self.patches.append((namespace, name, body["metadata"]["annotations"]))


def machine(*, links: bool = False) -> Machine:
    """A node with the three GPUs."""
    rows = [["X", "NV1", "SYS"], ["NV1", "X", "PIX"], ["SYS", "PIX", "X"]] if links else [[], [], []]
    gpus = tuple(Gpu(i, uuid, "V100", 16384, links=rows[i]) for i, uuid in enumerate(GPUS))
    return Machine(gpus, Path("libcuda.so.1"), Path("libnvidia-ml.so.1"))


def test_gpus_come_and_go_and_nothing_changes_while_kubelet_is_silent():
    """Each look says what is new and what is gone; a kubelet that does not answer takes nothing away."""
    kubelet, api, pods = FakeKubelet(), FakeApi(), [holder("one"), holder("two")]
    holders = Holders(api, kubelet, pods, HOME, NodeOffer(machine(), coexist=True))  # type: ignore[arg-type]

    def refreshed() -> tuple[set[str], set[str]]:
        gained, lost = asyncio.run(holders.refresh())
        return set(gained), set(lost)

    kubelet.rows = [row("one", "GPU-a")]
    assert ({"GPU-a"}, set()) == refreshed()
    assert [(HOME, "one", {"aliquot.dev/holds": "GPU-a"})] == api.patches
    kubelet.rows = None
    assert (set(), set()) == refreshed()
    assert {"GPU-a"} == holders.held
    kubelet.rows = [row("two", "GPU-c")]
    assert ({"GPU-c"}, {"GPU-a"}) == refreshed()


def test_who_is_on_a_gpu_that_is_lost_is_told_and_nobody_who_was(monkeypatch: pytest.MonkeyPatch):
    """The tenants are those of the moment, not those of the agent's start, and their pods are still there."""
    monkeypatch.setattr("aliquot.node.holders.AWAITED_S", 0)
    monkeypatch.setattr("aliquot.node.holders.PERIOD_S", 0)
    told: list[str] = []
    changes = asyncio.Event()

    class FakeEvents:
        async def about_pod(self, pod: Any, *_: str) -> None:
            """Remember whom it is about."""
            told.append(pod.pod)

    def tenant(pod: str) -> Any:
        slices = [SimpleNamespace(gpu="GPU-a")]
        owner = SimpleNamespace(namespace="team", pod=pod, uid=f"uid-{pod}")
        return SimpleNamespace(owner=owner, container="main", plan=SimpleNamespace(slices=slices))

    async def on_change() -> None:
        changes.set()

    async def scene() -> None:
        kubelet = FakeKubelet()
        kubelet.rows = [row("one", "GPU-a")]
        offer = NodeOffer(machine(), coexist=True)
        pods = [holder("one"), holder("early", "team", label=False), holder("late", "team", label=False)]
        holders = Holders(FakeApi(), kubelet, pods, HOME, offer)  # type: ignore[arg-type]
        provisioner = SimpleNamespace(tenants={"early": tenant("early")})
        task = asyncio.create_task(holders.run(on_change, provisioner, FakeEvents()))  # type: ignore[arg-type]
        await asyncio.wait_for(changes.wait(), 10)
        changes.clear()
        provisioner.tenants = {name: tenant(name) for name in ("gone", "late")}
        kubelet.rows = []
        await asyncio.wait_for(changes.wait(), 10)
        while not told:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 20))

    assert ["late"] == told


def test_a_gpu_is_awaited_while_its_holder_starts():
    """Only then is kubelet asked more often; one that runs on what is no whole GPU would be asked about for ever."""

    def awaited(*pods: NodePod) -> bool:
        return Holders(FakeApi(), FakeKubelet(), pods, HOME, NodeOffer(machine(), coexist=True)).awaited  # type: ignore[arg-type]

    starting, told = holder("one", phase="Pending"), holder("two", phase="Pending")
    told.metadata.annotations[HOLDS] = "GPU-1"

    assert awaited(told, starting)
    assert not awaited(told, holder("three"), holder("four", "elsewhere", phase="Pending"))


def test_a_holder_that_can_not_be_told_what_it_holds_is_told_of_once():
    """The API server is asked again at each look; its sentence is one line in the log, and the GPU is held."""
    kubelet, api = FakeKubelet(), FakeApi()
    kubelet.rows = [row("one", "GPU-a")]
    holders = Holders(api, kubelet, [holder("one")], HOME, NodeOffer(machine(), coexist=True))  # type: ignore[arg-type]

    async def refuses(*_: Any, **__: Any) -> None:
        raise Forbidden("pods may not be patched")

    async def three_looks() -> None:
        for _ in range(3):
            await holders.refresh()

    api.patch = refuses  # type: ignore[method-assign]
    with capture_logs() as told:
        asyncio.run(three_looks())

    refusals = [line["why"] for line in told if line["event"] == "holder-not-told"]
    assert (["pods may not be patched"], {"GPU-a"}) == (refusals, holders.held)


def test_a_machine_with_some_of_its_gpus_keeps_their_numbers_and_links():
    """What is offered of a machine is wired as it is in the machine."""
    offered = machine(links=True).only({"GPU-a", "GPU-c"})

    assert [(0, "GPU-a", ["X", "SYS"]), (2, "GPU-c", ["SYS", "X"])] == [
        (g.index, g.uuid, g.links) for g in offered.gpus
    ]
