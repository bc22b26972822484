"""The device plugin for `aliquot.dev/gpu-percent`: serves, registers, and does both again when kubelet was restarted.

The device ids that kubelet counts, such as `g3-042`, are a fixed number for each GPU, whose health they carry. They are
short and their number is bounded, since kubelet takes no message over 4 MiB and stores each id it gives. The plan
decides which GPU a container gets, not its ids; a GPU's ids only report its health to kubelet. A GPU has more of them
than that number, or fewer, where containers have been resized and kubelet still counts what they were created with.

Source: Kubernetes device plugin API v1beta1. Kubelet dials back during Register, so the server serves before. When
kubelet starts it removes all sockets in its folder, which is how a restart is noticed; another inode of kubelet's own
socket shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from aliquot.driver.gpu import Gpu
from aliquot.kube.names import GPU_PERCENT
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.quantities import parse_count
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.model.ids import GpuUuid
from aliquot.node.allocation.lifecycle import Allocations
from aliquot.node.allocation.resizing import Resizes
from aliquot.node.kubelet_api import deviceplugin_pb2 as pb
from aliquot.node.kubelet_api import deviceplugin_pb2_grpc as rpc
from aliquot.node.settings import NodeSettings

_LOG: Final = Logger("node")
API: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
POLL_S: Final = 0.1
REGISTER_TIMEOUT_S: Final = 15.0
ASK_BYTES: Final = 16 << 20
HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"


def id_of(gpu: int, number: int) -> str:
    """`g0-007`: the GPU by its index, and a number."""
    return f"g{gpu}-{number:03}"


def gpu_of(device: str) -> int | None:
    """The index of the GPU an id belongs to; None for an id that is none of ours."""
    head, dash, number = device.partition("-")
    return int(head[1:]) if dash and head[:1] == "g" and head[1:].isdigit() and number.isdigit() else None


def offered(gpus: Sequence[Gpu], per_gpu: int, held: Collection[str], more: Mapping[GpuUuid, int]) -> list[str]:
    """`per_gpu` ids of each GPU and so many `more`: all that containers hold, which kubelet must not miss, and others.

    Where containers hold more ids of a GPU than it is to have, another GPU has fewer.
    """
    kept: dict[int | None, list[str]] = {gpu.index: [] for gpu in gpus}
    for device in sorted(held):
        kept.get(gpu_of(device), []).append(device)
    wanted = {gpu.index: per_gpu + more.get(gpu.uuid, 0) - len(kept[gpu.index]) for gpu in gpus}
    surplus, ids = -sum(min(free, 0) for free in wanted.values()), list[str]()
    for index, free in wanted.items():
        taken = min(max(free, 0), surplus)
        surplus -= taken
        others = (device for number in count() if (device := id_of(index, number)) not in held)
        ids += [*kept[index], *islice(others, max(free, 0) - taken)]
    return ids


def devices_of(gpus: Sequence[Gpu], ids: Iterable[str], unhealthy: Collection[str]) -> list[Any]:
    """These ids of a node as kubelet takes them; those of an unhealthy GPU are unhealthy.

    They have a memory node only if all GPUs share one: kubelet's Topology Manager chooses ids, and CPU cores to match,
    before the plan's GPU is known, and could admit or refuse a pod by the wrong one.
    """
    nodes = {gpu.numa for gpu in gpus}
    numa = nodes.pop() if len(nodes) == 1 else None
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)]) if numa is not None and numa >= 0 else None
    ill = {gpu.index for gpu in gpus if gpu.uuid in unhealthy}
    return [
        pb.Device(ID=device, health=UNHEALTHY if gpu_of(device) in ill else HEALTHY, topology=topology)
        for device in ids
    ]


def preferred(available: Iterable[str], must: Iterable[str], size: int, gpus: Sequence[int]) -> list[str]:
    """`size` ids, those of `gpus` first and in order; required ids are always included."""
    chosen = sorted(set(must))
    order = {gpu: place for place, gpu in enumerate(gpus)}

    def rank(device: str) -> tuple[int, str]:
        gpu = gpu_of(device)
        return (order.get(gpu, len(order)) if gpu is not None else len(order), device)

    rest = sorted(set(available) - set(chosen), key=rank)
    return (chosen + rest)[: max(size, 0)]


class DevicePlugin(rpc.DevicePluginServicer):
    """The plugin in kubelet's folder. `run` serves until cancelled."""

    def __init__(
        self,
        settings: NodeSettings,
        allocations: Allocations,
        *,
        on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_listed` is called when kubelet has the devices for the first time since the plugin was registered."""
        self.resource = GPU_PERCENT
        self.registrations = 0
        self._folder = settings.device_plugins
        self._ids_per_gpu = settings.ids_per_gpu
        self._allocations = allocations
        self._resizes: Resizes = allocations.resizes
        self._more: Mapping[GpuUuid, int] = {}
        self._endpoint = self.resource.replace("/", "-") + ".sock"
        self._on_listed = on_listed
        self._listed = False
        self._changed = asyncio.Condition()
        self._version = 0
        self._serving = 0
        self._server: grpc.aio.Server | None = None
        self._kubelet = 0

    @property
    def registered(self) -> bool:
        """Whether kubelet knows this plugin, as far as the plugin can see."""
        if self._server is None or not (kubelet := _inode(self._folder / KUBELET_SOCKET)):
            return False
        return kubelet == self._kubelet and (self._folder / self._endpoint).exists()

    @property
    def listed(self) -> bool:
        """Whether the devices were sent to kubelet: before that it permanently refuses pods that request them."""
        return self._listed and self.registered

    async def run(self) -> None:
        """Serve and register, again and again; ends by cancellation, with the socket removed."""
        try:
            while True:
                if not self.registered:
                    await self._register_anew()
                if self._more != self._compensation():
                    await self.send_devices()
                await asyncio.sleep(POLL_S)
        finally:
            await self._end_server()
            (self._folder / self._endpoint).unlink(missing_ok=True)

    def memory_more_mib(self, gpus: Iterable[Gpu]) -> int:
        """MiB of these GPUs that are counted for containers beyond what they have; negative where it is less."""
        return sum(self._resizes.compensation.get(gpu.uuid, (0, 0))[1] for gpu in gpus)

    async def send_devices(self) -> None:
        """Send the devices to kubelet again after their health changed."""
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _compensation(self) -> dict[GpuUuid, int]:
        return {uuid: ids for uuid, (ids, _) in self._resizes.compensation.items() if ids}

    async def _register_anew(self) -> None:
        await self._end_server()
        kubelet = _inode(self._folder / KUBELET_SOCKET)
        if not kubelet:
            return
        socket = self._folder / self._endpoint
        request = pb.RegisterRequest(
            version=API, endpoint=self._endpoint, resource_name=self.resource, options=_options()
        )
        try:
            socket.unlink(missing_ok=True)
            server = grpc.aio.server(options=[("grpc.max_receive_message_length", ASK_BYTES)])
            rpc.add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(f"unix://{socket}")
            await server.start()
            self._serving += 1
            self._listed = False
            self._server = server
            async with grpc.aio.insecure_channel(f"unix://{self._folder / KUBELET_SOCKET}") as channel:
                stub: Any = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
                await stub.Register(request, timeout=REGISTER_TIMEOUT_S)
        except (grpc.aio.AioRpcError, OSError, RuntimeError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            _LOG.warning("not-registered", why=why)
            await self._end_server()
            await asyncio.sleep(5 * POLL_S)
            return
        self._kubelet = kubelet
        self.registrations += 1
        _LOG.info("registered", resource=self.resource, times=self.registrations)
        if self._listed:  # kubelet called before it answered Register
            self._on_listed()

    async def _end_server(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            self._serving += 1
            await self.send_devices()
            await server.stop(0.2)

    # -- the interface, in kubelet's names -----------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The methods that kubelet calls."""
        return _options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """All devices at once, and all again at each change; the stream lasts as long as the server.

        While nothing can be given, none is healthy.
        """
        offer = self._allocations.provisioner.offer
        serving, told = self._serving, -1
        while serving == self._serving:
            told = self._version
            gpus = offer.shared.gpus
            unhealthy: Collection[str] = {gpu.uuid for gpu in gpus} if offer.withheld else offer.unhealthy
            self._more = self._compensation()
            held = {device for record in self._allocations.records for device in record.ids}
            ids = offered(gpus, self._ids_per_gpu, held, self._more)
            yield pb.ListAndWatchResponse(devices=devices_of(gpus, ids, unhealthy))
            if not self._listed and serving == self._serving:
                self._listed = True
                if self.registered:
                    self._on_listed()
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != told)  # noqa: B023

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The ids of the GPU that the plan names, where it is known."""
        answers = []
        for ask in request.container_requests:
            gpus = [gpu.index for gpu in self._oldest_waiting(ask.allocation_size)]
            ids = preferred(ask.available_deviceIDs, ask.must_include_deviceIDs, ask.allocation_size, gpus)
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=ids))
        return pb.PreferredAllocationResponse(container_responses=answers)

    def _oldest_waiting(self, size: int) -> list[Gpu]:
        """The planned GPUs of the oldest pod that waits for this many ids; none where that is not known."""
        provisioner = self._allocations.provisioner
        for pod in sorted(self._allocations.pods, key=lambda pod: pod.metadata.creation_timestamp or ""):
            for container in pod.requesting():
                key = f"{pod.metadata.uid}/{container.name}"
                percent = container.resources.limits.get(GPU_PERCENT, 0)
                if not pod.ended and key not in provisioner.tenants and parse_count(percent) == size:
                    with contextlib.suppress(BadPlan):
                        plan = read_plan(pod.metadata.annotations)
                        return provisioner.gpus(plan, container.name) if plan is not None else []
                    return []
        return []

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A CDI device name and nothing else: the container is not known yet."""
        async with _refusing(context):
            names = [await self._allocations.allocate(tuple(asked.devices_ids)) for asked in request.container_requests]
            devices = [pb.CDIDevice(name=name) for name in names]
            answers = [pb.ContainerAllocateResponse(cdi_devices=[device]) for device in devices]
            return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The container of these ids is about to be created; an error keeps it waiting, with our sentence."""
        async with _refusing(context):
            await self._allocations.prepare(tuple(request.devices_ids))
            return pb.PreStartContainerResponse()


@contextlib.asynccontextmanager
async def _refusing(context: Any) -> AsyncIterator[None]:
    """Answer kubelet with our sentence where the work inside fails."""
    try:
        yield
    except AliquotError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"aliquot: {error}")


def _options() -> Any:
    return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def _inode(path: Path) -> int:
    """Distinguishes a socket from an earlier one at the same path; 0 if it does not exist."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino ^ (status.st_ctime_ns << 1)
    return 0
