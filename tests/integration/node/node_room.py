"""The node's allocator, plugin and tenants with a real arbiter and an emulated machine; the others are stand-ins."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

import msgspec
from kit.arbiter import RunningArbiter
from kubelet_stand_in import KubeletStandIn

from aliquot.driver import emulation
from aliquot.driver.native import HOOK, native_part
from aliquot.driver.volume.volume import DriverVolume
from aliquot.kube.names import GPU_PERCENT, PLAN, PREFIX
from aliquot.kube.objects import PODS
from aliquot.kube.plan import ContainerPlan, Outcome, PodPlan, write_plan
from aliquot.model.requests import Slice
from aliquot.node.allocation.checkpoint import PodKey
from aliquot.node.allocation.lifecycle import Allocations
from aliquot.node.allocation.outcomes import Outcomes
from aliquot.node.driver import emulated_driver
from aliquot.node.machine import NodeOffer, emulated_machine
from aliquot.node.plugin import DevicePlugin
from aliquot.node.pods import NodePod, NodePods
from aliquot.node.provisioner import TenantProvisioner
from aliquot.node.settings import NodeSettings
from aliquot.tenancy.removal import Answer

NODE = "node-1"


class FakePods:
    """The node's pods, as the test says; `late` are those that only a question to the API server brings."""

    def __init__(self) -> None:
        self.synced = True
        self.known: dict[str, NodePod] = {}
        self.late: dict[str, NodePod] = {}

    def __iter__(self) -> Iterator[NodePod]:
        return iter(list(self.known.values()))

    def by_uid(self) -> dict[str, NodePod]:
        return dict(self.known)

    def keys(self) -> dict[str, PodKey]:
        return {uid: pod.key for uid, pod in self.known.items()}

    def get(self, uid: str) -> NodePod | None:
        return self.known.get(uid)

    async def refresh(self) -> None:
        self.known |= self.late

    def lives(self, uid: str) -> bool:
        return uid in self.known and not self.known[uid].ended

    def says(self, uid: str) -> Answer:
        return "used" if self.lives(uid) else "gone" if self.synced else "silent"


class Answers:
    """Stands for the API server and the agent's events; `deleted` are the pods that were."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.reasons: list[str] = []
        self.reasons_of_pods: list[str] = []
        self.messages: list[str] = []
        self.annotations: dict[str, str] = {}

    async def patch(self, resource: object, name: str, body: dict[str, Any], *, namespace: str) -> None:
        assert resource is PODS
        self.annotations |= body["metadata"]["annotations"]

    async def delete(self, resource: object, name: str, *, namespace: str, uid: str) -> None:
        assert resource is PODS
        self.deleted.append(f"{namespace}/{name} {uid}")

    async def about_pod(self, _pod: PodKey, reason: str, message: str) -> None:
        self.messages.append(message)
        self.reasons.append(reason)
        self.reasons_of_pods.append(reason)

    async def about_node(self, *facts: str) -> None:
        self.reasons.append(facts[0])


class Ticking:
    """A clock that the test sets."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class Room:
    """Everything of a node agent but the API server; `close` ends it."""

    def __init__(self, gpus: str = "v100x2", *, nodes: bool = False) -> None:
        """An emulated machine; `nodes` gives it a folder of device nodes."""
        self.folder = Path(tempfile.mkdtemp(prefix="aq-"))
        self.kubelet = KubeletStandIn(self.folder / "kubelet")
        self.pods = FakePods()
        self.answers = Answers()
        self.clock = Ticking()
        self._background: list[asyncio.Task[None]] = []
        self.told: list[tuple[str, str, str, str]] = []
        self.settings = NodeSettings(
            node_name=NODE, runtime_dir=str(self.folder), state_dir=str(self.folder / "state"),
            cdi_dir=str(self.folder / "cdi"), kubelet_dir=str(self.folder / "kubelet"), pre_start_wait_s=1.0,
        )  # fmt: skip
        self.arbiter = RunningArbiter(self.folder, "")
        if nodes:
            emulation.make_nodes(self.settings.emulated, gpus)
        self.machine = emulated_machine(gpus, self.settings.emulated)
        self.settings.tenants.mkdir()
        driver = emulated_driver(self.machine, DriverVolume(self.settings.driver_volume, native_part(HOOK)))
        self.provisioner = TenantProvisioner(NODE, NodeOffer(self.machine), self.settings.tenants, self.folder, driver)
        self.kubelet.start()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.plugin = self.do(self._open())
        self._run = asyncio.run_coroutine_threadsafe(self.plugin.run(), self._loop)

    def agent_allocations(self, settings: NodeSettings, provisioner: TenantProvisioner) -> Allocations:
        """The allocations of an agent that starts; its outcomes are in `told`."""
        api: Any = self.answers
        background = lambda _, work: self._background.append(asyncio.get_running_loop().create_task(work))  # noqa: E731
        pods = cast("NodePods", self.pods)
        outcomes = Outcomes(settings, api, pods, api, cast("Any", self.clock))
        made = Allocations(settings, pods, provisioner, api, outcomes, background)
        report = made.report

        async def recorded(owner: PodKey, container: str, outcome: Outcome, why: str) -> None:
            self.told.append((str(owner), container, outcome, why))
            await report(owner, container, outcome, why)

        made.report = recorded  # type: ignore[method-assign]
        return made

    async def _open(self) -> DevicePlugin:
        self.allocations = self.agent_allocations(self.settings, self.provisioner)
        self.provisioner.offer.withheld = ""
        self.listed = 0
        return DevicePlugin(self.settings, self.allocations, on_listed=self._listed)

    def _listed(self) -> None:
        assert self.plugin.listed
        self.listed += 1

    def wait_listed(self, times: int) -> bool:
        """Whether some kubelet has the devices for the so-manyth time, soon."""
        until_s = time.monotonic() + 10
        while self.listed < times and time.monotonic() < until_s:
            time.sleep(0.01)
        return self.listed == times

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Runs something in the agent's loop and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def pod(
        self, name: str, gpu: int, milli: int, mib: int, *, most: str = "", late: bool = False,
        privileged: bool = False, **notes: str,
    ) -> PodPlan:  # fmt: skip
        """A pod of one container with a plan, to which memory is lent up to `most`; `notes` are further annotations,
        `aliquot.dev/` being left out."""
        piece = Slice(self.machine.gpus[gpu].uuid, milli, 1000, mib)  # type: ignore[arg-type]
        plan = PodPlan(NODE, {"main": ContainerPlan((piece,), memory_limit=most)})
        limits = {GPU_PERCENT: str(milli // 10)}
        body = {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"uid-{name}",
                "annotations": {PLAN: write_plan(plan)} | {f"{PREFIX}{key}": text for key, text in notes.items()},
            },
            "spec": {
                "containers": [
                    {"name": "main", "resources": {"limits": limits}, "securityContext": {"privileged": privileged}}
                ]
            },
        }
        made = msgspec.json.decode(msgspec.json.encode(body), type=NodePod)
        (self.pods.late if late else self.pods.known)[made.metadata.uid] = made
        return plan

    def admit(self, name: str, count: int) -> str:
        """Admission by kubelet; the CDI device name that it was answered with."""
        answer = self.kubelet.admit("ns", name, "main", GPU_PERCENT, count).answer
        assert (1, 0, 0) == (len(answer.cdi_devices), len(answer.mounts), len(answer.envs))
        return str(answer.cdi_devices[0].name)

    def start(self, name: str) -> None:
        """The start of an admitted container."""
        self.kubelet.start_container("ns", name, "main", GPU_PERCENT)

    def started(self, name: str, gpu: int = 0, milli: int = 300, mib: int = 1024, **pod: Any) -> str:
        """A pod whose container has been started; the name of its device."""
        self.pod(name, gpu, milli, mib, **pod)
        device = self.admit(name, max(1, milli // 10))
        self.start(name)
        return device

    def edits(self, device: str) -> dict[str, Any]:
        """What the CDI file of a device changes."""
        file = self.folder / "cdi" / f"aliquot.dev-gpu_{device.partition('=')[2]}.json"
        return dict(msgspec.json.decode(file.read_bytes())["devices"][0]["containerEdits"])

    def tenants(self) -> dict[str, tuple[str, int]]:
        """Name -> (GPU, MiB) at the arbiter."""
        gpus = self.arbiter.admin.status().gpus
        return {t.name: (gpu.uuid, t.memory_limit_mib) for gpu in gpus for t in gpu.tenants}

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[Self]:
        """One whose kubelet has the devices of two GPUs, until the end of the block."""
        made = cls()
        try:
            made.kubelet.wait_allocatable(GPU_PERCENT, 200)
            yield made
        finally:
            made.close()

    def close(self) -> None:
        """Ends everything."""
        self._run.cancel()
        self.do(asyncio.sleep(0.4))
        self.do(self.allocations.resources.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.kubelet.stop()
        self.arbiter.kill()
        shutil.rmtree(self.folder)
