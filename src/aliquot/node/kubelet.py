"""Kubelet's two records of device allocations: PodResources v1, and its device checkpoint.

Source of the checkpoint's form: kubelet's device manager, package checkpoint (an object `Data` with entries of pod uid,
container, resource, device ids by memory node, and the plugin's answer in protobuf). Kubelet promises nothing about it,
so any other form counts as unreadable.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from aliquot.kube.names import GPU_PERCENT
from aliquot.node.identity import Held, Noted
from aliquot.node.kubelet_api import deviceplugin_pb2, podresources_pb2, podresources_pb2_grpc

CHECKPOINT: Final = "kubelet_internal_checkpoint"
CDI_KIND: Final = "aliquot.dev/gpu"
ANSWER_BYTES: Final = 16 << 20
TIMEOUT_S: Final = 10.0


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] | list[str] | None = msgspec.field(name="DeviceIDs")
    alloc_resp: str | None = None


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None
    registered_devices: dict[str, list[str]] | None = None


class _File(msgspec.Struct, rename="pascal"):
    data: _Data


class PodResources:
    """Kubelet's PodResources; the connection is made when it is first needed and again after kubelet restarted."""

    def __init__(self, socket: Path, resource: str = GPU_PERCENT) -> None:
        self._socket = socket
        self._resource = resource
        self._channel: grpc.aio.Channel | None = None

    async def held(self) -> list[Held]:
        """What each container holds; kubelet lists an entry per id, they are put together here.

        Raises:
            OSError: kubelet does not answer.
        """
        if self._channel is None:
            options = [("grpc.max_receive_message_length", ANSWER_BYTES)]
            self._channel = grpc.aio.insecure_channel(f"unix://{self._socket}", options=options)
        stub: Any = podresources_pb2_grpc.PodResourcesListerStub(self._channel)  # type: ignore[no-untyped-call]
        try:
            answer = await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            await self.close()
            raise OSError(f"kubelet's PodResources at {self._socket} does not answer: {error.details()}") from None
        found: dict[tuple[str, str, str], set[str]] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                for device in container.devices:
                    if device.resource_name == self._resource:
                        found.setdefault((pod.namespace, pod.name, container.name), set()).update(device.device_ids)
        return [Held(*key, frozenset(ids)) for key, ids in found.items()]

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def noted(folder: Path, resource: str = GPU_PERCENT) -> list[Noted] | None:
    """Kubelet's device checkpoint for one resource; None when it cannot be read."""
    try:
        file = msgspec.json.decode((folder / CHECKPOINT).read_bytes(), type=_File)
        entries = file.data.pod_device_entries or []
        return [
            Noted(entry.pod_uid, entry.container_name, _ids(entry), _names(entry))
            for entry in entries
            if entry.resource_name == resource
        ]
    except (OSError, msgspec.DecodeError, binascii.Error, DecodeError):
        return None


def offered(folder: Path) -> dict[str, int] | None:
    """How many devices of each resource kubelet offers by its device checkpoint; None when that is damaged.

    Empty if it does not exist, or may not be read.
    """
    try:
        file = msgspec.json.decode((folder / CHECKPOINT).read_bytes(), type=_File)
    except (FileNotFoundError, PermissionError):
        return {}
    except (OSError, msgspec.DecodeError):
        return None
    return {resource: len(ids or []) for resource, ids in (file.data.registered_devices or {}).items()}


def _ids(entry: _Entry) -> frozenset[str]:
    listed = entry.device_ids or []
    return frozenset(listed) if isinstance(listed, list) else frozenset(i for part in listed.values() for i in part)


def _names(entry: _Entry) -> tuple[str, ...]:
    answer: Any = deviceplugin_pb2.ContainerAllocateResponse()
    answer.ParseFromString(base64.b64decode(entry.alloc_resp or "", validate=True))
    before = f"{CDI_KIND}="
    return tuple(device.name.removeprefix(before) for device in answer.cdi_devices if device.name.startswith(before))
