"""Read-your-own-writes cache of vGPUs: the watch cache overlaid with responses to our writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aliquot.kube.custom import VGPU
from aliquot.kube.index import Index
from aliquot.kube.reflector import Change, Reflector


@dataclass
class WriteThroughCache:
    """Indexed by name and by device, for thousands of single look-ups; `changed` must be called for every change."""

    watched: Reflector[VGPU]
    _by_device: Index[VGPU] = field(default_factory=lambda: Index(lambda vgpu: [vgpu.status.uuid]))
    _ahead: dict[str, VGPU] = field(default_factory=dict)

    def changed(self, change: Change[VGPU]) -> None:
        """The watch reported a change of a vGPU."""
        self._by_device.changed(change)
        if change.kind == "deleted":
            self.forget(change.object.metadata.name)

    def wrote(self, vgpu: VGPU) -> None:
        """A write of ours was answered with this."""
        self._ahead[vgpu.metadata.name] = vgpu

    def forget(self, name: str) -> None:
        """Discard the responses to our writes."""
        self._ahead.pop(name, None)

    def get(self, name: str) -> VGPU | None:
        """One by its name."""
        seen, ahead = self.watched.get(name), self._ahead.get(name)
        if ahead is None or (seen is not None and _version(seen) >= _version(ahead)):
            self.forget(name)
            return seen
        return ahead

    def on(self, uuid: str) -> list[VGPU]:
        """The vGPUs of this device."""
        names = {vgpu.metadata.name for vgpu in self._by_device.naming(uuid)} | {*self._ahead}
        return [vgpu for name in names if (vgpu := self.get(name)) is not None and vgpu.status.uuid == uuid]

    def __iter__(self) -> Iterator[VGPU]:
        """All of them."""
        names = dict.fromkeys(vgpu.metadata.name for vgpu in self.watched) | dict.fromkeys(self._ahead)
        yield from [vgpu for name in names if (vgpu := self.get(name)) is not None]


def _version(vgpu: VGPU) -> int:
    return int(vgpu.metadata.resource_version)
