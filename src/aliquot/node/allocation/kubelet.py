"""Kubelet's two records of device allocations, and the identification of a container by them.

The records are PodResources v1 (an API; namespace, pod and container of all but plain init containers) and its device
checkpoint (a file of its own; the pod's uid, the container, and the very answer that we gave to Allocate, which carries
a name that we gave only once). Both contain a container before PreStartContainer is called, which does not name it:
`identify` goes from its device ids to the container itself. The name is unambiguous, even when an init container and a
later container have the same ids. Nothing is guessed: if the two records name different pods, or neither names one, the
start is refused.

Source of the checkpoint's form: kubelet's device manager, package checkpoint (an object `Data` with entries of pod uid,
container, resource, device ids by memory node, and the plugin's answer in protobuf). Kubelet promises nothing about it,
so any other form counts as unreadable.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from aliquot.driver.cdi import GPU_KIND
from aliquot.kube.names import GPU_PERCENT
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import AliquotError
from aliquot.node.allocation.checkpoint import Allotment, PodKey
from aliquot.node.kubelet_api import deviceplugin_pb2, podresources_pb2, podresources_pb2_grpc

CHECKPOINT: Final = "kubelet_internal_checkpoint"
ANSWER_BYTES: Final = 16 << 20
TIMEOUT_S: Final = 10.0


class UnknownOwner(AliquotError):
    """Kubelet does not (yet) report the owner of these ids."""


class Disagreement(AliquotError):
    """Two records of the owner of the ids contradict each other."""


@dataclass(frozen=True)
class ContainerDevices:
    """What one container holds of our resource, by PodResources."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


@dataclass(frozen=True)
class PodDevicesEntry:
    """An entry of kubelet's device checkpoint for our resource; `names` are the CDI names in our stored answer."""

    uid: str
    container: str
    ids: frozenset[str]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A container that holds the ids, and the CDI device name that the runtime will ask for it."""

    name: str
    owner: PodKey
    container: str


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

    async def held(self) -> list[ContainerDevices]:
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
        return [ContainerDevices(*key, frozenset(ids)) for key, ids in found.items()]

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None


def read_device_checkpoint(folder: Path, resource: str = GPU_PERCENT) -> list[PodDevicesEntry] | None:
    """Kubelet's device checkpoint for one resource; None when it cannot be read."""
    try:
        file = decode_json((folder / CHECKPOINT).read_bytes(), _File)
        entries, before = [], f"{GPU_KIND}="
        for entry in file.data.pod_device_entries or []:
            if entry.resource_name != resource:
                continue
            ids = entry.device_ids or []
            flat = ids if isinstance(ids, list) else [device for of_numa in ids.values() for device in of_numa]
            answer: Any = deviceplugin_pb2.ContainerAllocateResponse()
            answer.ParseFromString(base64.b64decode(entry.alloc_resp or "", validate=True))
            names = (device.name for device in answer.cdi_devices if device.name.startswith(before))
            ours = tuple(name.removeprefix(before) for name in names)
            entries.append(PodDevicesEntry(entry.pod_uid, entry.container_name, frozenset(flat), ours))
    except (OSError, msgspec.DecodeError, binascii.Error, DecodeError):
        return None
    return entries


def offered(folder: Path) -> dict[str, int] | None:
    """How many devices of each resource kubelet offers by its device checkpoint; None when that is damaged.

    Empty if it does not exist, or may not be read.
    """
    try:
        file = decode_json((folder / CHECKPOINT).read_bytes(), _File)
    except (FileNotFoundError, PermissionError):
        return {}
    except (OSError, msgspec.DecodeError):
        return None
    return {resource: len(ids or []) for resource, ids in (file.data.registered_devices or {}).items()}


def identify(
    ids: frozenset[str],
    held: Iterable[ContainerDevices],
    checkpoint: Iterable[PodDevicesEntry] | None,
    allotments: Iterable[Allotment],
    pods: Mapping[str, PodKey],
) -> list[Claim]:
    """Every container that these ids were given to; all of them belong to one pod.

    `checkpoint` is None when kubelet's file cannot be read; `pods` are the node's pods by uid.

    Raises:
        UnknownOwner: no account names a container, or a pod that it names is not known (yet).
        Disagreement: the accounts name different pods.
    """
    rows = [row for row in held if row.ids == ids]
    if checkpoint is None:  # PodResources and our own checkpoint count only where both have exactly one answer
        named = [allotment.name for allotment in allotments if frozenset(allotment.ids) == ids]
        if len(rows) != 1 or len(named) != 1:
            raise UnknownOwner(
                f"kubelet's checkpoint cannot be read, and PodResources has {len(rows)} containers with {_shown(ids)}, "
                f"our checkpoint {len(named)}"
            )
        row = rows[0]
        owner = next((p for p in pods.values() if (p.namespace, p.pod) == (row.namespace, row.pod)), None)
        if owner is None:
            raise UnknownOwner(f"pod {row.namespace}/{row.pod} that holds {_shown(ids)} is not known")
        return [Claim(named[0], owner, row.container)]
    entries = [entry for entry in checkpoint if entry.ids == ids]
    if not entries:
        raise UnknownOwner(f"kubelet's checkpoint does not name the container of {_shown(ids)} yet")
    uids = {entry.uid for entry in entries}
    if len(uids) > 1:
        raise Disagreement(f"kubelet's checkpoint gives {_shown(ids)} to {len(uids)} pods: {', '.join(sorted(uids))}")
    owner = pods.get(uid := uids.pop())
    if owner is None:
        raise UnknownOwner(f"the pod with uid {uid} that holds {_shown(ids)} is not known")
    for row in rows:
        if (row.namespace, row.pod) != (owner.namespace, owner.pod):
            raise Disagreement(
                f"{_shown(ids)} are {owner.namespace}/{owner.pod}'s by kubelet's checkpoint and "
                f"{row.namespace}/{row.pod}'s by its PodResources"
            )
    claims = []
    for entry in entries:
        names = entry.names
        if len(names) != 1:
            ours = [a for a in allotments if frozenset(a.ids) == ids and a.container in ("", entry.container)]
            names = tuple(allotment.name for allotment in ours)
        if len(names) != 1:
            raise UnknownOwner(f"container {entry.container} of the pod with uid {uid} has no CDI device name of ours")
        claims.append(Claim(names[0], owner, entry.container))
    return claims


def _shown(ids: frozenset[str]) -> str:
    few = sorted(ids)[:3]
    return f"{', '.join(few)}{f' and {len(ids) - len(few)} more' if len(ids) > len(few) else ''}"
