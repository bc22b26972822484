"""Device plugins for scenes: what a test wants a node to have, and what kubelet asked for it.

Kubelet's device plugin interface v1beta1: the plugin serves on a socket in kubelet's folder and registers its name
there; kubelet removes the socket when it restarts, and the plugin serves and registers again.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aliquot.node.kubelet_api import deviceplugin_pb2 as pb
from aliquot.node.kubelet_api import deviceplugin_pb2_grpc as rpc
from aliquot.node.kubelet_api import podresources_pb2, podresources_pb2_grpc

FOLDER = "/var/lib/kubelet/device-plugins"
POD_RESOURCES = "/var/lib/kubelet/pod-resources/kubelet.sock"
RESTART_LOOK_S = 0.05
# pod-resources answers with every pod of the node; the default of 4 MiB is soon too small.
ANSWER_BYTES = 16 << 20


@dataclass
class Asked:
    """What kubelet asked, in order: the device ids of each call."""

    preferred: list[int] = field(default_factory=list)
    allocated: list[tuple[str, ...]] = field(default_factory=list)
    started: list[tuple[str, ...]] = field(default_factory=list)


class DevicePlugin(rpc.DevicePluginServicer):
    """A plugin for one resource; `folder` is kubelet's device-plugins folder, as the test sees it.

    `allocate(ids)` answers an Allocate, `pre_start(ids)` may do something before a container starts or raise to refuse.
    """

    def __init__(
        self,
        folder: Path,
        resource: str,
        devices: Sequence[str],
        *,
        allocate: Callable[[tuple[str, ...]], Any] = lambda ids: pb.ContainerAllocateResponse(),
        pre_start: Callable[[tuple[str, ...]], None] | None = None,
    ) -> None:
        self.resource = resource
        self.asked = Asked()
        self.registrations = 0
        self._folder = folder
        self._endpoint = resource.replace("/", "-") + ".sock"
        self._health = dict.fromkeys(devices, "Healthy")
        self._changed = threading.Condition()
        self._version = 0
        self._answer = allocate
        self._pre_start = pre_start
        self._server: grpc.Server | None = None
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Serves, registers, and does both again whenever kubelet was restarted."""
        self._ended.clear()
        self._serve()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def stop(self) -> None:
        """Ends, as when the plugin's pod is deleted."""
        self._ended.set()
        if self._watcher:
            self._watcher.join()
        self._end_server()
        (self._folder / self._endpoint).unlink(missing_ok=True)

    def set_health(self, device: str, *, healthy: bool) -> None:
        """Changes a device's health and tells kubelet."""
        with self._changed:
            self._health[device] = "Healthy" if healthy else "Unhealthy"
            self._version += 1
            self._changed.notify_all()

    def _serve(self) -> None:
        socket = self._folder / self._endpoint
        socket.unlink(missing_ok=True)
        self._server = grpc.server(futures.ThreadPoolExecutor(16))
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{socket}")
        self._server.start()
        request = pb.RegisterRequest(
            version="v1beta1", endpoint=self._endpoint, resource_name=self.resource, options=self._options()
        )
        with grpc.insecure_channel(f"unix://{self._folder}/kubelet.sock") as channel:
            rpc.RegistrationStub(channel).Register(request, timeout=15)
        self.registrations += 1

    def _end_server(self) -> None:
        if self._server:
            with self._changed:
                self._version = -1
                self._changed.notify_all()
            self._server.stop(0.2).wait()
            self._server, self._version = None, 0

    def _watch(self) -> None:
        while not self._ended.wait(RESTART_LOOK_S):
            if not (self._folder / self._endpoint).exists():
                self._end_server()
                try:
                    self._serve()
                except (grpc.RpcError, OSError, RuntimeError):
                    (self._folder / self._endpoint).unlink(missing_ok=True)

    def _options(self) -> Any:
        return pb.DevicePluginOptions(
            pre_start_required=self._pre_start is not None, get_preferred_allocation_available=True
        )

    # -- the interface, in kubelet's names -----------------------------------------------------------------------

    def GetDevicePluginOptions(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """What kubelet may call."""
        return self._options()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        """All devices at once, and all again at each change."""
        told = None
        while context.is_active():
            with self._changed:
                if told == self._version:
                    self._changed.wait(0.2)
                if self._version < 0:
                    return
                if told == self._version:
                    continue
                told = self._version
                devices = [pb.Device(ID=name, health=health) for name, health in self._health.items()]
            yield pb.ListAndWatchResponse(devices=devices)

    def GetPreferredAllocation(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """The first ones, in the order of their names."""
        answers = []
        for one in request.container_requests:
            self.asked.preferred.append(one.allocation_size)
            chosen = sorted(one.available_deviceIDs)[: one.allocation_size]
            answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=chosen))
        return pb.PreferredAllocationResponse(container_responses=answers)

    def Allocate(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Answers as the test said."""
        answers = []
        for one in request.container_requests:
            ids = tuple(sorted(one.devices_ids))
            self.asked.allocated.append(ids)
            answers.append(self._answer(ids))
        return pb.AllocateResponse(container_responses=answers)

    def PreStartContainer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Does what the test said; its exception is the refusal."""
        ids = tuple(sorted(request.devices_ids))
        self.asked.started.append(ids)
        assert self._pre_start
        try:
            self._pre_start(ids)
        except Exception as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PreStartContainerResponse()


def stock_plugin(folder: Path, gpus: Sequence[str], machine: Path | None = None) -> DevicePlugin:
    """A stand-in with the contract of NVIDIA's plugin: `nvidia.com/gpu`, ids are the GPUs' UUIDs, whole GPUs only.

    `machine` is the folder of an emulated machine on the node. Containers then get its driver and see their GPUs alone,
    which on a real node is NVIDIA's runtime's doing.
    """

    def allocate(ids: tuple[str, ...]) -> Any:
        mine = ",".join(ids)
        if machine is None:
            return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": mine})
        envs = {"NVIDIA_VISIBLE_DEVICES": mine, "CUDA_VISIBLE_DEVICES": mine, "LD_LIBRARY_PATH": str(machine)}
        mount = pb.Mount(container_path=str(machine), host_path=str(machine))
        return pb.ContainerAllocateResponse(envs=envs, mounts=[mount])

    return DevicePlugin(folder, "nvidia.com/gpu", gpus, allocate=allocate)


def held_devices(socket: Path) -> dict[tuple[str, str, str, str], set[str]]:
    """(namespace, pod, container, resource) -> device ids, from kubelet's PodResources v1.

    Kubelet lists one entry for each device id; they are put together here.
    """
    options = [("grpc.max_receive_message_length", ANSWER_BYTES)]
    with grpc.insecure_channel(f"unix://{socket}", options=options) as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        answer = stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=10)
    held: dict[tuple[str, str, str, str], set[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for device in container.devices:
                key = (pod.namespace, pod.name, container.name, device.resource_name)
                held.setdefault(key, set()).update(device.device_ids)
    return held
