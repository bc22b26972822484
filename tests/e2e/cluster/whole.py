"""All of Aliquot on one cluster: kinds, scheduler with operator and webhook, and a real node with GPUs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import images
from .control_plane import ControlPlane
from .gpu_node import GpuNode, gpu_node
from .kubelet_node import KubeletNode
from .ours import SCHEDULER, OurScheduler, OurWebhook, install_crds

WEBHOOK_PORT = 8771


@dataclass(frozen=True)
class Whole:
    """What runs."""

    plane: ControlPlane
    scheduler: OurScheduler
    webhook: OurWebhook
    gpus: GpuNode


@contextmanager
def whole(
    node: KubeletNode,
    spec: str,
    *,
    scheduler_flags: Sequence[str] = (),
    agent_flags: Sequence[str] = (),
    arbiter_flags: Sequence[str] = (),
) -> Iterator[Whole]:
    """Everything on a started node, its GPUs emulated as `spec` says, ready for `kubectl apply`; ended in order.

    The scheduler has a user of its own, for the webhook lets nobody else change plans.
    """
    plane = node.control_plane
    role = ("clusterrolebinding", SCHEDULER, "--clusterrole=cluster-admin", f"--user={SCHEDULER}")
    plane.kubectl("create", *role, check=False)  # it may be there from the last time
    install_crds(plane)
    webhook = OurWebhook(plane, WEBHOOK_PORT)
    webhook.register()
    flags = ("--kubeconfig", str(plane.user(SCHEDULER)), *webhook.flags, "--holder-image", images.PAUSE)
    scheduler = OurScheduler(plane, 8770, *flags, *scheduler_flags)
    node.import_image(images.example(Path(plane.programs.program("busybox"))))
    with gpu_node(node, spec, flags=agent_flags, arbiter_flags=arbiter_flags) as gpus:
        scheduler.part.start()
        plane.parts["aliquot-scheduler"] = scheduler.part
        try:
            scheduler.configure()
            webhook.wait_trusted()
            yield Whole(plane, scheduler, webhook, gpus)
        finally:
            plane.parts.pop("aliquot-scheduler")
            scheduler.part.stop()
            webhook.remove()
            plane.schedule_with({})
