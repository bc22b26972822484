"""A stand-in for kubelet towards device plugins, for tests that need neither root nor a cluster.

It uses kubelet's own interfaces on the same sockets (registration and PodResources; it calls the plugin's), and stores
what kubelet stores: which container has which id. It plays containers by calling the plugin in kubelet's order; it
starts nothing.
tests/e2e/test_kubelet_contract.py runs it and a real kubelet through the same tests.

Source: kubelet 1.36, device plugin interface v1beta1 and PodResources v1.
"""

import shutil
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from aliquot.node.kubelet_api import deviceplugin_pb2 as plugin_pb
from aliquot.node.kubelet_api import deviceplugin_pb2_grpc as plugin_rpc
from aliquot.node.kubelet_api import podresources_pb2 as pods_pb
from aliquot.node.kubelet_api import podresources_pb2_grpc as pods_rpc

VERSION: Final = "v1beta1"
DIAL_S: Final = 10.0
CALL_S: Final = 30.0
KEPT: Final = "kubelet_internal_checkpoint"
_STUB: Final[Any] = plugin_rpc.DevicePluginStub


class AdmissionError(Exception):
    """Kubelet fails the pod for good: too few healthy devices are free, or Allocate failed."""


class StartError(Exception):
    """The container waits: PreStartContainer failed; kubelet tries again later."""


@dataclass(frozen=True)
class Holder:
    """A container as PodResources names it, and the resource that it holds ids of."""

    namespace: str
    pod: str
    container: str
    resource: str


@dataclass
class Allocated:
    """What kubelet remembers of an allocation: the ids, and the plugin's answer, which it repeats at each restart."""

    ids: tuple[str, ...]
    answer: Any


@dataclass
class _Plugin:
    """One registered resource; `devices` is id -> healthy, as last sent by the plugin."""

    channel: grpc.Channel
    stub: Any
    options: Any
    devices: dict[str, bool] = field(default_factory=dict)
    connected: bool = True


class KubeletStandIn:
    """Serves in `root` as kubelet does in /var/lib/kubelet: `device-plugins/` and `pod-resources/`.

    Paths of sockets have at most 107 bytes, so `root` is short. Every method may be called from any thread.
    """

    def __init__(self, root: Path) -> None:
        self.plugins_folder = root / "device-plugins"
        self.pod_resources = root / "pod-resources" / "kubelet.sock"
        self._plugins: dict[str, _Plugin] = {}
        self._held: dict[Holder, Allocated] = {}
        self._changed = threading.Condition()
        self._servers: list[grpc.Server] = []

    def start(self) -> None:
        """Clears the plugins' sockets away, as kubelet does, and serves."""
        self.plugins_folder.mkdir(parents=True, exist_ok=True)
        self.pod_resources.parent.mkdir(parents=True, exist_ok=True)
        for path in self.plugins_folder.iterdir():
            if path.name != KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.pod_resources.unlink(missing_ok=True)
        served: tuple[tuple[Any, Any, Path], ...] = (
            (plugin_rpc.add_RegistrationServicer_to_server, _Registration(self), self.plugins_folder / "kubelet.sock"),
            (pods_rpc.add_PodResourcesListerServicer_to_server, _PodResources(self), self.pod_resources),
        )
        for add, servicer, socket in served:
            server = grpc.server(futures.ThreadPoolExecutor(8))
            add(servicer, server)
            server.add_insecure_port(f"unix://{socket}")
            server.start()
            self._servers.append(server)

    def stop(self) -> None:
        """Ends; containers keep running, and what was allocated stays known to the next `start`."""
        for server in self._servers:
            server.stop(None).wait()
        self._servers.clear()
        with self._changed:
            plugins, self._plugins = self._plugins, {}
        for plugin in plugins.values():
            plugin.channel.close()

    def restart(self) -> None:
        """`stop`, then `start`: plugins have to register again."""
        self.stop()
        self.start()

    def wait_allocatable(self, resource: str, count: int, timeout_s: float = 10.0) -> None:
        """Waits until the node would advertise this many devices.

        Raises:
            TimeoutError: it does not; the text says how many it has.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.allocatable(resource) == count, timeout_s):
                raise TimeoutError(f"{resource}: {self.allocatable(resource)} allocatable, not {count}")

    def allocatable(self, resource: str) -> int:
        """How many devices the node advertises: the healthy ones of a plugin that is connected."""
        plugin = self._plugins.get(resource)
        return sum(plugin.devices.values()) if plugin and plugin.connected else 0

    def admit(self, namespace: str, pod: str, container: str, resource: str, count: int) -> Allocated:
        """Allocates devices to a container of a pod that was scheduled here.

        Raises:
            AdmissionError: as the class says.
        """
        holder = Holder(namespace, pod, container, resource)
        with self._changed:
            if holder in self._held:
                return self._held[holder]
            plugin = self._plugins.get(resource)
            if not plugin or not plugin.connected:
                raise AdmissionError(f"no plugin serves {resource}")
            taken = {one for other, had in self._held.items() if other.resource == resource for one in had.ids}
            free = sorted(one for one, healthy in plugin.devices.items() if healthy and one not in taken)
            if len(free) < count:
                raise AdmissionError(f"{count} of {resource} asked, {len(free)} are free")
            try:
                ids = self._chosen(plugin, free, count)
                request = plugin_pb.AllocateRequest(
                    container_requests=[plugin_pb.ContainerAllocateRequest(devices_ids=ids)]
                )
                answers = plugin.stub.Allocate(request, timeout=CALL_S).container_responses
            except grpc.RpcError as error:
                raise AdmissionError(f"Allocate: {error.details()}") from error
            if len(answers) != 1:
                raise AdmissionError(f"Allocate answered for {len(answers)} containers, 1 was asked")
            self._held[holder] = Allocated(tuple(ids), answers[0])
            return self._held[holder]

    def start_container(self, namespace: str, pod: str, container: str, resource: str) -> Allocated:
        """Starts, or starts again, an admitted container: PreStartContainer comes first, with the ids it holds.

        Raises:
            StartError: the plugin refused or was not there.
        """
        held = self._held[Holder(namespace, pod, container, resource)]
        plugin = self._plugins.get(resource)
        if not plugin or not plugin.connected:
            raise StartError(f"no plugin serves {resource}")
        if plugin.options.pre_start_required:
            try:
                plugin.stub.PreStartContainer(plugin_pb.PreStartContainerRequest(devices_ids=held.ids), timeout=CALL_S)
            except grpc.RpcError as error:
                raise StartError(f"PreStartContainer: {error.details()}") from error
        return held

    def end_pod(self, namespace: str, pod: str) -> None:
        """The pod has ended: its ids are free again. The plugin is not notified."""
        with self._changed:
            over = [holder for holder in self._held if (holder.namespace, holder.pod) == (namespace, pod)]
            for holder in over:
                del self._held[holder]

    def _chosen(self, plugin: _Plugin, free: list[str], count: int) -> list[str]:
        """The plugin's preference, if it answers with free devices; otherwise the first free ones."""
        if plugin.options.get_preferred_allocation_available:
            one = plugin_pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=count)
            request = plugin_pb.PreferredAllocationRequest(container_requests=[one])
            answers = plugin.stub.GetPreferredAllocation(request, timeout=CALL_S).container_responses
            preferred = list(answers[0].deviceIDs) if answers else []
            if len(preferred) == count == len(set(preferred) & set(free)):
                return preferred
        return free[:count]

    def _register(self, request: Any) -> None:
        """Kubelet's answer to Register: it calls back at once, so the plugin has to serve already."""
        if request.version != VERSION:
            raise ValueError(f"version {request.version!r} is not {VERSION}")
        if "/" not in request.resource_name or "/" in request.endpoint:
            raise ValueError(
                f"resource {request.resource_name!r} at {request.endpoint!r}: wanted domain/name and a file name"
            )
        channel = grpc.insecure_channel(f"unix://{self.plugins_folder / request.endpoint}")
        stub = _STUB(channel)
        options = stub.GetDevicePluginOptions(plugin_pb.Empty(), timeout=DIAL_S, wait_for_ready=True)
        plugin = _Plugin(channel, stub, options)
        with self._changed:
            replaced = self._plugins.get(request.resource_name)
            self._plugins[request.resource_name] = plugin
        if replaced:
            replaced.channel.close()
        threading.Thread(target=self._follow, args=(plugin,), daemon=True).start()

    def _follow(self, plugin: _Plugin) -> None:
        """Receives every list the plugin sends; when the stream ends, all its devices are gone."""
        try:
            for answer in plugin.stub.ListAndWatch(plugin_pb.Empty()):
                with self._changed:
                    plugin.devices = {device.ID: device.health == "Healthy" for device in answer.devices}
                    self._changed.notify_all()
        except (grpc.RpcError, ValueError):
            pass
        with self._changed:
            plugin.connected = False
            self._changed.notify_all()

    def _listed(self) -> Iterator[Any]:
        """Pods as PodResources reports them: one entry for each device id, as kubelet does."""
        pods: dict[tuple[str, str], dict[str, list[Any]]] = {}
        for holder, held in sorted(self._held.items(), key=lambda item: repr(item[0])):
            entries = [pods_pb.ContainerDevices(resource_name=holder.resource, device_ids=[one]) for one in held.ids]
            pods.setdefault((holder.namespace, holder.pod), {}).setdefault(holder.container, []).extend(entries)
        for (namespace, name), containers in pods.items():
            listed = [pods_pb.ContainerResources(name=key, devices=devices) for key, devices in containers.items()]
            yield pods_pb.PodResources(name=name, namespace=namespace, containers=listed)


class _Registration(plugin_rpc.RegistrationServicer):
    def __init__(self, kubelet: KubeletStandIn) -> None:
        self._kubelet = kubelet

    def Register(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            self._kubelet._register(request)
        except (ValueError, grpc.RpcError) as error:
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return plugin_pb.Empty()


class _PodResources(pods_rpc.PodResourcesListerServicer):
    def __init__(self, kubelet: KubeletStandIn) -> None:
        self._kubelet = kubelet

    def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        # Without the lock: a plugin may ask during Allocate, while this kubelet waits for it.
        return pods_pb.ListPodResourcesResponse(pod_resources=list(self._kubelet._listed()))

    def GetAllocatableResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        devices = [
            pods_pb.ContainerDevices(resource_name=resource, device_ids=[one])
            for resource, plugin in self._kubelet._plugins.items()
            for one, healthy in plugin.devices.items()
            if healthy
        ]
        return pods_pb.AllocatableResourcesResponse(devices=devices)
