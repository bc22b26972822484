"""Bind: the one place where a share is allocated.

The node was chosen by kube-scheduler. The ledger is checked again, the share is held, and node and plan are posted in
one Binding with the pod's uid as precondition. Whatever the outcome of that request, the share is neither lost nor
given twice:

- bound: the allocation stays until the watch shows the pod, then until the pod ends;
- refused (conflict, pod gone, another uid): the pod is read again and the ledger follows its plan; one that is still
  unbound has no allocation any more, unless an earlier bind of it had no answer;
- no answer: the allocation stays, *in doubt*. The next bind of that pod to that node sends the very same plan, so it
  does not matter which of the two arrives; a bind to another node takes an allocation of its own, and the API server
  lets only one of them through. Whatever the pod then says frees the others. Doubts that last longer than any request
  can are settled by reading the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock
from aliquot.kube.dialects import FOREIGN, of_origin, read
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.errors import Busy, KubeError, NotFound, Unreachable
from aliquot.kube.names import PLAN, TRACEPARENT
from aliquot.kube.objects import PODS, Binding, Meta, ObjectReference, Pod
from aliquot.kube.plan import write_plan
from aliquot.kube.reflector import Change
from aliquot.kube.requests import BadPod
from aliquot.lib.log import Logger
from aliquot.model.errors import UserError
from aliquot.model.ids import split_key
from aliquot.model.requests import Device
from aliquot.scheduler.allocations import POST_S, Allocation
from aliquot.scheduler.extender.metrics import trace_of
from aliquot.scheduler.extender.wire import BindingArgs
from aliquot.scheduler.ledger import Ledger, NodeFull

log = Logger("scheduler")
DOUBT_S: Final = 70.0
"""Longer than the API server works on a request (60 s by default)."""


class CanNotBind(Exception):
    """The pod is not bound; kube-scheduler retries. The text gives the reason."""


@dataclass
class Binder:
    """Binds pods. `leads` is checked right before each write; `find` gives a pod from the cache by its key."""

    api: Api
    ledger: Ledger
    find: Callable[[str], Pod | None]
    leads: Callable[[], bool] = lambda: True
    clock: Clock = field(default_factory=Clock)
    dialects: Mapping[str, Dialect] = field(default_factory=lambda: FOREIGN)
    traced: bool = False
    """Whether a pod carries its trace's context to its node."""

    async def bind(self, args: BindingArgs) -> None:
        """Bind a pod to the node, with its plan.

        Raises:
            CanNotBind: it is not bound, or it is not known whether it is.
        """
        pod = self.find(f"{args.pod_namespace}/{args.pod_name}")
        if pod is None or pod.metadata.uid != args.pod_uid:  # kube-scheduler may be ahead of the cache
            try:
                pod = await self.api.get(PODS, args.pod_name, namespace=args.pod_namespace)
            except KubeError as error:
                raise CanNotBind(str(error)) from None
        if pod.metadata.uid != args.pod_uid:
            raise CanNotBind(f"pod {pod.metadata.key} is another one now (uid {pod.metadata.uid}, not {args.pod_uid})")
        if pod.spec.node_name:
            self._bound_already(pod, args.node)
            return
        try:
            ask = read(pod, self.dialects)
        except BadPod as error:
            raise CanNotBind(str(error)) from None
        if not self.leads():
            raise CanNotBind("this scheduler does not lead; another one does or will soon")
        if ask is None:
            await self._post(pod, args.node, {})
            return
        try:
            allocation = self.ledger.allocate(ask, args.node, self.clock.monotonic_s())
        except (NodeFull, UserError) as error:
            raise CanNotBind(f"pod {ask.key}: {error}") from None
        annotations: dict[str, str] = {}
        if (dialect := of_origin(pod, self.dialects)) is not None:  # what tools of the pod's dialect read
            now_ns = int(self.clock.wall().timestamp() * 10**9)
            cluster = self.ledger.cluster
            gpus = cluster.spec(cluster.index[args.node]).gpus if args.node in cluster.index else ()
            devices: dict[str, Device] = {device.uuid: device for device in gpus}
            annotations = dialect.planned(pod, allocation.plan, devices, now_ns)
        if self.traced and (context := trace_of(pod.metadata).root.text):
            annotations = {**annotations, TRACEPARENT: context}
        await self._post(pod, args.node, {**annotations, PLAN: write_plan(allocation.plan)}, allocation)

    async def settle(self) -> int:
        """Read the pods of allocations that were long unconfirmed, update the ledger; returns how many were freed."""
        freed = 0
        before_s = self.clock.monotonic_s() - DOUBT_S
        allocations = chain.from_iterable(self.ledger.allocations.values())
        for allocation in [a for a in allocations if not a.confirmed and not a.assumed and a.since_s < before_s]:
            namespace, name = split_key(allocation.key)
            try:
                pod = await self.api.find(PODS, name, namespace=namespace)
            except KubeError as error:
                log.warning("pod %s: whether it is bound is not known: %s", allocation.key, error)
                continue
            if allocation.confirmed or allocation.since_s >= before_s:
                continue  # while the pod was read, the watch showed it bound, or another bind took over this allocation
            if pod is not None and pod.metadata.uid == allocation.uid and pod.spec.node_name:
                self.ledger.pod_changed(Change("modified", pod))
            else:
                self.ledger.forget(allocation)
                freed += 1
        return freed

    def _bound_already(self, pod: Pod, node: str) -> None:
        self.ledger.pod_changed(Change("modified", pod))
        if pod.spec.node_name != node:
            raise CanNotBind(f"pod {pod.metadata.key} is on node {pod.spec.node_name} already")

    async def _post(
        self, pod: Pod, node: str, annotations: Mapping[str, str], allocation: Allocation | None = None
    ) -> None:
        meta = pod.metadata
        binding = Binding(
            Meta(name=meta.name, namespace=meta.namespace, uid=meta.uid, annotations=dict(annotations)),
            ObjectReference(kind="Node", name=node),
        )
        path = PODS.path(namespace=meta.namespace, name=meta.name, sub="binding")
        earlier_may_come = allocation is not None and allocation.in_doubt
        if allocation is not None:
            allocation.in_doubt = True
        try:
            async with asyncio.timeout(POST_S):
                body = msgspec.json.encode(binding)
                await self.api.request("POST", path, content=body, repeat=False, timeout_s=POST_S)
        except TimeoutError:
            lost = Unreachable(f"post {path}: no answer within {POST_S:g} s", may_have_happened=True)
            await self._look(pod, node, allocation, lost, may_come=True)
        except (Unreachable, Busy) as error:
            await self._look(pod, node, allocation, error, may_come=True)
        except KubeError as error:
            await self._look(pod, node, allocation, error, may_come=earlier_may_come)
        if allocation is not None:
            allocation.in_doubt = False

    async def _look(
        self, pod: Pod, node: str, allocation: Allocation | None, error: KubeError, *, may_come: bool
    ) -> None:
        """After an unconfirmed bind: read the pod. Returns if it is bound as it should be.

        `may_come` means that the request, or one before it, could still arrive, so an unbound pod proves nothing.
        """
        meta = pod.metadata
        try:
            now: Pod | None = await self.api.get(PODS, meta.name, namespace=meta.namespace)
        except NotFound:
            now = None
        except KubeError:
            raise CanNotBind(f"{error}; whether the pod is bound is not known yet") from None
        if now is None or now.metadata.uid != meta.uid:
            if allocation is not None:
                self.ledger.forget(allocation)
            raise CanNotBind(f"pod {meta.key} is gone") from None
        if now.spec.node_name:
            self._bound_already(now, node)
            return
        if allocation is not None and not may_come:
            self.ledger.forget(allocation)
        raise CanNotBind(str(error)) from None
