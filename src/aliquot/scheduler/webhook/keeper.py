"""Manages the webhook's certificates: in a Secret that all replicas share, and in the API server's trust bundle.

The leader writes, all replicas read. The Secret is replaced by compare and swap; what the API server trusts is patched
in, so that the configurations still belong to their installer (a chart).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.errors import AlreadyExists, Conflict, KubeError
from aliquot.kube.objects import Meta, Secret, Wire
from aliquot.kube.resources import SECRETS, Resource
from aliquot.lib.log import Logger
from aliquot.scheduler.webhook.certs import CertificateBundle, Lives, next_step, readable
from aliquot.scheduler.webhook.configuration import NAME

log = Logger("scheduler")
SECRET: Final = "aliquot-webhook-tls"
FIELDS: Final = {"ca.crt": "bundle", "ca.key": "authority_key", "tls.crt": "certificate", "tls.key": "key"}


class WebhookConfiguration(Wire):
    """A Mutating- or ValidatingWebhookConfiguration, its webhooks unchanged."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    webhooks: list[dict[str, Any]] = msgspec.field(default_factory=list)


_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = tuple(
    Resource(WebhookConfiguration, kind, f"{kind.lower()}s", _GROUP, namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)


@dataclass
class Keeper:
    """The certificates of one installation; `names` are the webhook's names for the API server."""

    api: Api
    namespace: str
    names: Sequence[str]
    leads: Callable[[], bool]
    on_new: Callable[[CertificateBundle], None] = lambda kept: None
    lives: Lives = field(default_factory=Lives)
    every_s: float = 10.0
    clock: Clock = field(default_factory=RealClock)
    kept: CertificateBundle | None = None
    _told: CertificateBundle | None = None

    async def run(self) -> None:
        """Renew them until cancelled."""
        while True:
            try:
                ready = await self.look()
            except Conflict:
                ready = False
            except KubeError as error:
                log.warning("the webhook's certificates could not be looked at: %s", error)
                ready = self.kept is not None
            await self.clock.sleep(self.every_s if ready else 0.5)

    async def look(self) -> bool:
        """One check; True if nothing more is to be done now.

        Raises:
            KubeError: the API server is not reachable; Conflict: another replica was faster.
        """
        secret = await self.api.find(SECRETS, SECRET, namespace=self.namespace)
        kept = read_secret(secret)
        if not self.leads():
            self._tell(kept)
            return kept is not None
        published = await self._published()
        wanted = next_step(kept, published, self.names, self.clock.wall(), self.lives)
        if wanted is not kept:
            await self._write(secret, wanted)
            log.info("the webhook has new certificates")
        await self._publish(wanted.bundle)
        self._tell(wanted)
        return True

    def _tell(self, kept: CertificateBundle | None) -> None:
        self.kept = kept or self.kept
        if kept is not None and kept != self._told:
            self._told = kept
            self.on_new(kept)

    async def _write(self, secret: Secret | None, wanted: CertificateBundle) -> None:
        data = {name: base64.b64encode(getattr(wanted, part)).decode() for name, part in FIELDS.items()}
        if secret is None:
            body = {
                "metadata": {"name": SECRET, "namespace": self.namespace},
                "type": "kubernetes.io/tls",
                "data": data,
            }
            try:
                await self.api.create(SECRETS, body, namespace=self.namespace)
            except AlreadyExists as error:
                raise Conflict(str(error), error.status) from None
            return
        version = {"resourceVersion": secret.metadata.resource_version}
        await self.api.patch(SECRETS, SECRET, {"metadata": version, "data": data}, namespace=self.namespace)

    async def _published(self) -> bytes:
        """The bundle that every webhook of ours is trusted by; empty when one has another."""
        found = set()
        for kind in CONFIGURATIONS:
            held = await self.api.find(kind, NAME)
            for hook in held.webhooks if held is not None else ():
                found.add((hook.get("clientConfig") or {}).get("caBundle") or "")
        try:
            return base64.b64decode(found.pop()) if len(found) == 1 else b""
        except ValueError:
            return b""

    async def _publish(self, bundle: bytes) -> None:
        text = base64.b64encode(bundle).decode()
        for kind in CONFIGURATIONS:
            held = await self.api.find(kind, NAME)
            if held is None or all((hook.get("clientConfig") or {}).get("caBundle") == text for hook in held.webhooks):
                continue
            hooks = [
                {**hook, "clientConfig": {**(hook.get("clientConfig") or {}), "caBundle": text}}
                for hook in held.webhooks
            ]
            version = {"resourceVersion": held.metadata.resource_version}
            await self.api.patch(kind, NAME, {"metadata": version, "webhooks": hooks})


def read_secret(secret: Secret | None) -> CertificateBundle | None:
    """The certificates of a Secret; None if a part is missing or unusable, so that the leader creates them again."""
    if secret is None:
        return None
    try:
        parts = {part: base64.b64decode(secret.data[name], validate=True) for name, part in FIELDS.items()}
    except (KeyError, ValueError):
        return None
    kept = CertificateBundle(**parts)
    return kept if readable(kept) else None
