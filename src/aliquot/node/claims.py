"""The DRA driver: kubelet asks for what the claims of a pod stand for before it starts the pod's containers.

prepare    the claim says who it is for and what it consumes; a tenant of all of its devices and a CDI device are made
           by the path of Allocate. What the node's ledger does not have is waited for, then refused, and kubelet asks
           again: kube-scheduler may give a share before kubelet has unprepared the last holder's, does not know what
           pods with extended resources hold, and allocations are checked nowhere else
unprepare  the pods of the claim have ended: tenant, CDI device and record go

Both may be repeated. The record is written last and removed last: a crash in between leaves a tenant that no record
has, which the next start sweeps, or a record, by which it is restored; in both cases kubelet asks again.

Source: kubelet's DRA plugin API v1, plugin registration v1, DRA health v1alpha1, of which v1 is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from aliquot.driver.cdi import GPU_KIND, CdiError, remove_spec, write_spec, written_names
from aliquot.kube.api import Api
from aliquot.kube.claims import (
    DRIVER,
    RESOURCE_CLAIMS,
    ClaimedDevice,
    ResourceClaim,
    claim_plan,
    device_name,
    prepared_body,
)  # fmt: skip
from aliquot.kube.clock import Clock, seconds_time
from aliquot.kube.errors import KubeError
from aliquot.kube.names import PLAN
from aliquot.kube.objects import PODS
from aliquot.kube.plan import Applied, PodPlan, read_plan, write_applied, write_plan
from aliquot.kube.settings import fixed_sizes
from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.node.allocation.checkpoint import Allotment, CheckpointError, PodKey
from aliquot.node.allocation.lifecycle import Allocations
from aliquot.node.kubelet_api import dra_pb2, dra_pb2_grpc, drahealth_pb2, drahealth_pb2_grpc, registration_pb2
from aliquot.node.kubelet_api import registration_pb2_grpc as registration_rpc
from aliquot.node.processes import pods_with_processes
from aliquot.node.provisioner import NotYet, ProvisionedTenant, UnusablePlan
from aliquot.node.settings import NodeSettings
from aliquot.node.slices import MANAGER, SlicePublisher, held_uncounted
from aliquot.node.tasks import every
from aliquot.tenancy.removal import Removable, Source, kept_by

_LOG: Final = Logger("node")
AGAIN_S: Final = 0.2
WAIT_PART: Final = 1.5
"""Kubelet waits for 45 s here, against 30 before a container, and asks again after a minute or more."""
PUBLISH_S: Final = 0.5
HEALTH_S: Final = 10.0
"""The longest time between two health reports; kubelet shows a device as unknown after half a minute without one."""
HEALTH_V1: Final = "v1.DRAResourceHealth"
VERSIONS: Final = ("v1.DRAPlugin", HEALTH_V1, "v1alpha1.DRAResourceHealth")


class ClaimDriver(
    dra_pb2_grpc.DRAPluginServicer, drahealth_pb2_grpc.DRAResourceHealthServicer, registration_rpc.RegistrationServicer
):
    """The driver of one node. `once` runs a task in the background, by a name."""

    def __init__(
        self,
        settings: NodeSettings,
        api: Api,
        allocations: Allocations,
        once: Callable[[str, Coroutine[Any, Any, None]], None],
    ) -> None:
        self._settings = settings
        self._api = api
        self._once = once
        self._pods = allocations.pods
        self._outcomes = allocations.outcomes
        self._records = allocations.records
        self._provisioner = allocations.provisioner
        self._cdi = Path(settings.cdi_dir)
        self._lock = asyncio.Lock()
        self._gone: set[str] = set()
        self._failure = ""
        self._resizes = allocations.resizes
        self._resizes.claims.on_change = lambda _: once("resizes", self._resizes.check())
        self.slices = SlicePublisher(
            api, allocations.provisioner.offer, settings.name, fixed_sizes(settings.claim_sizes)
        )

    async def run(self) -> None:
        """Serve, publish and reconcile, until cancelled; kubelet finds the sockets by itself."""
        folder = Path(self._settings.kubelet_dir)
        sockets = [folder / "plugins" / DRIVER / "dra.sock", folder / "plugins_registry" / f"{DRIVER}-reg.sock"]
        server = grpc.aio.server()
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        drahealth_pb2_grpc.add_DRAResourceHealthServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        registration_rpc.add_RegistrationServicer_to_server(self, server)  # type: ignore[no-untyped-call]
        watch = grpc.unary_stream_rpc_method_handler(
            self.NodeWatchResources,
            drahealth_pb2.NodeWatchResourcesRequest.FromString,
            drahealth_pb2.NodeWatchResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(HEALTH_V1, {"NodeWatchResources": watch})
        server.add_generic_rpc_handlers((handler,))
        for socket in sockets:
            socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            socket.unlink(missing_ok=True)
            server.add_insecure_port(f"unix://{socket}")
        await server.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.slices.reflector.run())
                tasks.create_task(self._resizes.claims.run())
                tasks.create_task(every(self._settings.allocation_check_period_s, self.reconcile))
                tasks.create_task(every(PUBLISH_S, self._publish))
        finally:
            await server.stop(0.2)
            for socket in sockets:
                socket.unlink(missing_ok=True)

    async def _publish(self) -> None:
        claims, failure = self._resizes.claims, ""
        try:
            if claims.synced.is_set():  # else capacity would be published that claims were grown by
                await self.slices.publish(held_uncounted(self._pods, self._provisioner.tenants, claims))
            else:
                failure = claims.counts.last_failure
        except KubeError as error:
            failure = str(error)
        if failure and failure != self._failure:
            _LOG.warning("slices-not-published", why=failure)
        self._failure = failure

    # -- prepare -------------------------------------------------------------------------------------------------

    async def prepare(self, namespace: str, name: str, uid: str) -> tuple[list[ClaimedDevice], str]:
        """The devices of a claim and the CDI device with its share, waiting for what may resolve itself.

        Raises:
            AliquotError: it must not be used now; kubelet asks again.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WAIT_PART * self._settings.pre_start_wait_s
        while True:
            try:
                async with self._lock:
                    return await self._prepare(namespace, name, uid)
            except (NotYet, CdiError, CheckpointError, KubeError, OSError):
                if loop.time() > until_s:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _require_one_each(self, namespace: str, names: list[str]) -> None:
        """Raise UnusablePlan where a container uses several of these claims of its pod: it has the share of one."""
        claims = [await self._api.get(RESOURCE_CLAIMS, name, namespace=namespace) for name in names]
        for consumer in claims[0].pods:
            if (pod := await self._api.find(PODS, consumer.name, namespace=namespace)) is None:
                continue
            ours = {
                own.name for own in pod.spec.resource_claims
                if any(own.resource_claim_name == claim.metadata.name if own.resource_claim_name
                       else own.name == claim.called for claim in claims)
            }  # fmt: skip
            for container in [*pod.spec.init_containers, *pod.spec.containers]:
                used = sorted({claim.name for claim in container.resources.claims} & ours)
                if len(used) > 1:
                    raise UnusablePlan(
                        f"container {container.name} uses the claims {' and '.join(used)}, and has the share of one: "
                        "ask for several GPUs in one claim"
                    )

    async def _prepare(self, namespace: str, name: str, uid: str) -> tuple[list[ClaimedDevice], str]:
        if why := self._provisioner.offer.withheld:
            raise NotYet(f"nothing can be given now: {why}")
        claim = await self._api.get(RESOURCE_CLAIMS, name, namespace=namespace)
        if claim.metadata.uid != uid:
            raise UnusablePlan(f"claim {namespace}/{name} is another one now (uid {claim.metadata.uid}, not {uid})")
        plan = claim_plan(claim, {gpu.uuid: gpu.memory_mib for gpu in self._provisioner.machine.gpus})
        if plan is None:
            raise NotYet(f"claim {namespace}/{name} has no device of {DRIVER}")
        text = write_plan(plan)
        cdi = f"{uid}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # another allocation is another CDI device
        record = self._record(uid)
        if record is not None and record.name != cdi:
            await self._remove(uid)
            record = None
        if record is not None and (now := read_plan({PLAN: record.plan})) is not None:
            plan, text = now, record.plan  # it may have been resized
        pod = claim.pods[0].name if claim.pods else name
        owner = PodKey(uid, namespace, pod, claim=name, user=claim.pods[0].uid if claim.pods else "")
        if record is not None and record.owner is not None:
            owner = record.owner  # prepared for another pod that shares it
        driver = record.driver if record is not None else ""
        users = [PodKey(user.uid, namespace, user.name) for user in claim.pods]
        try:
            tenant = await asyncio.to_thread(self._provisioner.provision, owner, claim.called, plan, driver=driver)
        except NotYet as error:  # an allocation stays while a pod uses it: only a new pod gets another GPU
            for user in users:
                self._outcomes.note(user, name, "waits", str(error))
            raise
        for user in users:
            self._outcomes.note(user, name, "provisioned", "")
        await asyncio.to_thread(write_spec, self._cdi, cdi, tenant.edits)
        await self._records.settle(cdi, owner, claim.called, (), text, tenant.driver)
        _LOG.info("claim-prepared", claim=claim.metadata.key, pod=str(owner), device=cdi, tenant=tenant.record.name)
        self._once(f"claim-status-{uid}", self._report(claim, plan, tenant))
        self._once("resizes", self._resizes.check())
        return claim.ours, f"{GPU_KIND}={cdi}"

    async def _report(self, claim: ResourceClaim, plan: PodPlan, tenant: ProvisionedTenant) -> None:
        """Write into the claim's status what each of its devices became, as far as our rights go."""
        applied = write_applied(Applied(plan.generation))
        body = prepared_body(claim, plan, tenant.record.name, applied, seconds_time(Clock().wall()))
        await self._api.apply(RESOURCE_CLAIMS, body, manager=MANAGER, sub="status")

    # -- unprepare -----------------------------------------------------------------------------------------------

    async def unprepare(self, uid: str) -> None:
        """Release what was prepared for a claim; a missing one is no error.

        Raises:
            CdiError, CheckpointError: its file or record cannot be removed; kubelet asks again.
        """
        async with self._lock:
            await self._remove(uid)

    async def _remove(self, uid: str) -> None:
        tenants = await asyncio.to_thread(self._provisioner.remove_pod, uid)
        names = [name for name in written_names(self._cdi) if name.startswith(f"{uid}-")]
        for name in names:
            remove_spec(self._cdi, name)
        record = self._record(uid)
        if record is not None:
            await self._records.drop([record.name])
        if tenants or names or record is not None:
            _LOG.info("claim-unprepared", uid=uid, tenants=tenants)

    def _record(self, uid: str) -> Allotment | None:
        return next((record for record in self._records if record.claim and record.uid == uid), None)

    async def reconcile(self) -> None:
        """Release the claims that kubelet has forgotten, as after it lost its state.

        Such a claim is not there, or reserved for no pod that is here, in two checks in a row, and no process runs of
        the pod that it was prepared for.
        """
        gone = set()
        for record in [r for r in self._records if r.claim and self._pods.says(r.user) == "gone"]:
            try:
                claim = await self._api.find(RESOURCE_CLAIMS, record.claim, namespace=record.namespace)
            except KubeError:
                continue
            same = claim is not None and claim.metadata.uid == record.uid
            if claim is None or not same or not any(self._pods.lives(pod.uid) for pod in claim.pods):
                gone.add((record.uid, record.user))
        processes = await asyncio.to_thread(pods_with_processes) if gone else set[str]()
        for uid, user in gone:
            if uid in self._gone and not kept_by(
                Removable.SHARE, {Source.API: "gone", Source.PROCESSES: "used" if user in processes else "gone"}
            ):
                with contextlib.suppress(CdiError, CheckpointError):  # tried again at the next check
                    await self.unprepare(uid)
        self._gone = {uid for uid, _ in gone}

    # -- the interfaces, in kubelet's names ------------------------------------------------------------------------

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """What the containers that name these claims get; a claim's error keeps its pod waiting, with our sentence."""

        async def one(asked: Any) -> Any:
            try:
                if len(request.claims) > 1:
                    await self._require_one_each(asked.namespace, [each.name for each in request.claims])
                devices, cdi = await self.prepare(asked.namespace, asked.name, asked.uid)
            except (AliquotError, OSError) as error:
                _LOG.warning("claim-not-prepared", claim=f"{asked.namespace}/{asked.name}", why=str(error))
                text = f"aliquot: claim {asked.namespace}/{asked.name}: {error}"
                return dra_pb2.NodePrepareResourceResponse(error=text)
            # All devices of a claim name the one CDI device of its share; runtimes inject it once.
            return dra_pb2.NodePrepareResourceResponse(devices=[
                dra_pb2.Device(
                    request_names=[given.request], pool_name=given.pool, device_name=given.device, cdi_device_ids=[cdi],
                    share_id=given.share_id or None,
                ) for given in devices
            ])  # fmt: skip

        answers = await asyncio.gather(*(one(asked) for asked in request.claims))
        uids = [asked.uid for asked in request.claims]
        return dra_pb2.NodePrepareResourcesResponse(claims=dict(zip(uids, answers, strict=True)))

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The pods of these claims have ended."""
        answer = dra_pb2.NodeUnprepareResourcesResponse()
        for asked in request.claims:
            answer.claims[asked.uid].error = ""
            try:
                await self.unprepare(asked.uid)
            except (AliquotError, OSError) as error:
                answer.claims[asked.uid].error = f"aliquot: {error}"
        return answer

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """The health of all devices, at each change and now and then."""
        before, sent_s = None, 0.0
        offer, now = self._provisioner.offer, time.monotonic
        while True:
            why_not = self.slices.why_not
            if before != why_not or now() - sent_s > HEALTH_S:
                before, sent_s = why_not, now()
                yield drahealth_pb2.NodeWatchResourcesResponse(devices=[
                    drahealth_pb2.DeviceHealth(
                        device=drahealth_pb2.DeviceIdentifier(
                            pool_name=self._settings.name, device_name=name
                        ),
                        health=drahealth_pb2.UNHEALTHY if gpu.uuid in why_not else drahealth_pb2.HEALTHY,
                        last_updated_time=int(time.time()), message=why_not.get(gpu.uuid, ""),
                    ) for gpu in offer.machine.gpus for name in (
                        device_name(gpu.uuid, shared=False),
                        *(device_name(gpu.uuid, shared=True, size=size) for size in ("", *self.slices.sizes)),
                    )
                ])  # fmt: skip
            await asyncio.sleep(PUBLISH_S)

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The driver's name and its interfaces."""
        endpoint = str(Path(self._settings.kubelet_dir, "plugins", DRIVER, "dra.sock"))
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=endpoint, supported_versions=list(VERSIONS)
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether kubelet has taken the driver."""
        _LOG.info("driver-registered", driver=DRIVER, ok=request.plugin_registered, why=request.error)
        return registration_pb2.RegistrationStatusResponse()
