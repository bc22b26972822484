"""The device plugin for `aliquot.dev/gpu-percent`: serves, registers, and does both again when kubelet was restarted.

Source: Kubernetes device plugin API v1beta1. Kubelet dials back during Register, so the server serves before. When
kubelet starts it removes all sockets in its folder, which is how a restart is noticed; another inode of kubelet's own
socket shows the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from aliquot.kube.names import GPU_PERCENT
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.node.allocation.lifecycle import Allocations
from aliquot.node.devices import HEALTHY, UNHEALTHY, DeviceId
from aliquot.node.kubelet_api import deviceplugin_pb2 as pb
from aliquot.node.kubelet_api import deviceplugin_pb2_grpc as rpc

_LOG: Final = Logger("node")
API: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
POLL_S: Final = 0.1
REGISTER_TIMEOUT_S: Final = 15.0
ASK_BYTES: Final = 16 << 20


class DevicePlugin(rpc.DevicePluginServicer):
    """The plugin in kubelet's folder. `run` serves until cancelled."""

    def __init__(
        self,
        folder: Path,
        allocations: Allocations,
        *,
        on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_listed` is called when kubelet has the devices for the first time since the plugin was registered."""
        self.resource = GPU_PERCENT
        self.registrations = 0
        self._folder = folder
        self._allocations = allocations
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
        return self._server is not None and self._is_current()

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
                await asyncio.sleep(POLL_S)
        finally:
            await self._end_server()
            (self._folder / self._endpoint).unlink(missing_ok=True)

    async def send_devices(self) -> None:
        """Send the devices to kubelet again after their health changed."""
        async with self._changed:
            self._version += 1
            self._changed.notify_all()

    async def _register_anew(self) -> None:
        await self._end_server()
        kubelet = _inode(self._folder / KUBELET_SOCKET)
        if not kubelet:
            return
        try:
            await self._serve()
            await self._register()
        except (grpc.aio.AioRpcError, OSError, RuntimeError) as error:
            _LOG.warning(
                "not-registered", why=error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            )
            await self._end_server()
            await asyncio.sleep(5 * POLL_S)
            return
        self._kubelet = kubelet
        self.registrations += 1
        _LOG.info("registered", resource=self.resource, times=self.registrations)
        if self._listed:  # kubelet called before it answered Register
            self._on_listed()

    async def _serve(self) -> None:
        socket = self._folder / self._endpoint
        socket.unlink(missing_ok=True)
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", ASK_BYTES)])
        rpc.add_DevicePluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        self._serving += 1
        self._listed = False
        self._server = server

    async def _register(self) -> None:
        request = pb.RegisterRequest(
            version=API, endpoint=self._endpoint, resource_name=self.resource, options=_options()
        )
        async with grpc.aio.insecure_channel(f"unix://{self._folder / KUBELET_SOCKET}") as channel:
            stub: Any = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, timeout=REGISTER_TIMEOUT_S)

    async def _end_server(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            self._serving += 1
            await self.send_devices()
            await server.stop(0.2)

    def _is_current(self) -> bool:
        kubelet = _inode(self._folder / KUBELET_SOCKET)
        return bool(kubelet) and kubelet == self._kubelet and (self._folder / self._endpoint).exists()

    # -- the interface, in kubelet's names -----------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The methods that kubelet calls."""
        return _options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """All devices at once, and all again at each change; the stream lasts as long as the server."""
        serving, told = self._serving, -1
        while serving == self._serving:
            told = self._version
            yield pb.ListAndWatchResponse(devices=[_device(device) for device in self._allocations.devices()])
            if not self._listed and serving == self._serving:
                self._listed = True
                if self.registered:
                    self._on_listed()
            async with self._changed:
                await self._changed.wait_for(lambda: self._version != told)  # noqa: B023

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The ids of the GPU that the plan names, where it is known."""
        answers = [
            pb.ContainerPreferredAllocationResponse(
                deviceIDs=self._allocations.prefer(
                    one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
                )
            )
            for one in request.container_requests
        ]
        return pb.PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A CDI device name and nothing else: the container is not known yet."""

        async def one(ids: Sequence[str]) -> Any:
            device = pb.CDIDevice(name=await self._allocations.allocate(ids))
            return pb.ContainerAllocateResponse(cdi_devices=[device])

        async def all_of_them() -> Any:
            return pb.AllocateResponse(
                container_responses=[await one(tuple(r.devices_ids)) for r in request.container_requests]
            )

        return await _or_refuse(context, all_of_them())

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The container of these ids is about to be created; an error keeps it waiting, with our sentence."""

        async def prepare() -> Any:
            await self._allocations.prepare(tuple(request.devices_ids))
            return pb.PreStartContainerResponse()

        return await _or_refuse(context, prepare())


async def _or_refuse(context: Any, work: Awaitable[Any]) -> Any:
    try:
        return await work
    except AliquotError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"aliquot: {error}")


def _options() -> Any:
    return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


def _device(device: DeviceId) -> Any:
    made: Any = pb.Device(ID=device.name, health=HEALTHY if device.healthy else UNHEALTHY)
    if device.numa is not None and device.numa >= 0:
        made.topology.nodes.add(ID=device.numa)
    return made


def _inode(path: Path) -> int:
    """Distinguishes a socket from an earlier one at the same path; 0 if it does not exist."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ino ^ (status.st_ctime_ns << 1)
    return 0
