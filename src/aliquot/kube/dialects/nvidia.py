"""The stock device plugin: `nvidia.com/gpu` counts whole GPUs."""

from __future__ import annotations

from typing import Final

from aliquot.kube.dialects.base import CanNotSay, Dialect, Owned, Words, count, only_plain
from aliquot.kube.objects import Pod
from aliquot.kube.requests import ContainerAsk, PodAsk, containers_of
from aliquot.model.quantities import MILLI
from aliquot.model.requests import GpuRequest

GPU: Final = "nvidia.com/gpu"


class Nvidia(Dialect):
    """Whole GPUs."""

    name = "nvidia"
    owned = Owned(frozenset({GPU}))
    yields_to = frozenset({"hami"})  # which counts GPUs by the same resource

    def asks(self, pod: Pod, faults: list[str]) -> tuple[list[ContainerAsk], list[str]]:
        """So many whole GPUs for each container that asks."""
        return [
            ContainerAsk(c.name, GpuRequest(number * MILLI), role)
            for c, role, path in containers_of(pod)
            if (number := count(c, path, GPU, faults))
        ], []

    def write(self, ask: PodAsk) -> Words:
        """Whole GPUs only."""
        only_plain(ask, self.name)
        words = Words()
        for c in ask.containers:
            if c.request.rest_milli:
                raise CanNotSay(f'container "{c.container}" asks for a part of a GPU; {GPU} counts whole ones')
            words.resources[c.container] = {GPU: c.request.whole}
        return words
