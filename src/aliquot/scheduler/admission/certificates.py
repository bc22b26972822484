"""The certificates that the webhook makes for itself: an authority, and a server certificate that it signs.

They are in a Secret that all replicas share, and in the API server's trust bundle. The leader writes, all replicas
read; the Secret is replaced by compare and swap, and what the API server trusts is patched in, so that the
configurations still belong to their installer (a chart).

A renewal never breaks a connection: a new authority is published beside the old one first, and signs only once the API
server trusts it. The next step is decided from what is stored and what was published, so any process can continue where
another stopped.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aliquot.kube.api import Api
from aliquot.kube.clock import Clock
from aliquot.kube.errors import AlreadyExists, Conflict, KubeError
from aliquot.kube.objects import SECRETS, ApiObject, Resource, Secret
from aliquot.lib.log import Logger

EARLIER: Final = datetime.timedelta(minutes=10)
"""Certificates are valid a little before they are made, for servers whose clocks are behind."""

AUTHORITY_DAYS: Final = 730.0
SERVER_DAYS: Final = 90.0
"""How long certificates last; they are renewed when a third of that is left."""

_CA_USAGE: Final = ("digital_signature", "key_cert_sign", "crl_sign")
_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class CertificateBundle:
    """PEM texts: `bundle` of authorities, the newest first, with the newest's key; the server's certificate and key."""

    bundle: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


def next_step(
    kept: CertificateBundle | None, published: bytes, names: Sequence[str], now: datetime.datetime
) -> CertificateBundle:
    """The certificates to store now; the very same object if nothing changes.

    `published` is the bundle that the API server trusts at present, `names` what the server is reached by.
    """
    if kept is None or not readable(kept):
        return _anew(names, now)
    authorities = x509.load_pem_x509_certificates(kept.bundle)
    newest = authorities[0]
    server = x509.load_pem_x509_certificate(kept.certificate)
    if now >= newest.not_valid_after_utc or _of_later(newest, now):
        return _anew(names, now)
    if _due(newest, now) and server.issuer == newest.subject:
        certificate, key = _authority(now)
        return replace(kept, bundle=certificate + kept.bundle, authority_key=key)
    try:
        trusted = {ca.subject for ca in x509.load_pem_x509_certificates(published)} if published else set()
    except ValueError:
        trusted = set()
    stale = (
        _due(server, now)
        or _of_later(server, now)
        or set(_names_of(server)) != set(names)
        or server.issuer != newest.subject
    )
    expired = now >= server.not_valid_after_utc
    if stale and (newest.subject in trusted or expired or server.issuer == newest.subject):
        certificate, key = _server(newest, kept.authority_key, names, now)
        return replace(kept, certificate=certificate, key=key)
    # An old authority stays until it expires: other replicas may still show what it signed.
    used = [ca for ca in authorities if ca.not_valid_after_utc > now]
    bundle = b"".join(ca.public_bytes(serialization.Encoding.PEM) for ca in used)
    return kept if bundle == kept.bundle else replace(kept, bundle=bundle)


def readable(kept: CertificateBundle) -> bool:
    """Whether it can be served with, and signed with: its parts are of our kind and belong together."""
    try:
        authorities = x509.load_pem_x509_certificates(kept.bundle)
        certificate = x509.load_pem_x509_certificate(kept.certificate)
        _names_of(certificate)
        signer = serialization.load_pem_private_key(kept.authority_key, None)
        key = serialization.load_pem_private_key(kept.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    pairs = ((signer, authorities[0]), (key, certificate))
    return isinstance(signer, ec.EllipticCurvePrivateKey) and all(k.public_key() == c.public_key() for k, c in pairs)


def _anew(names: Sequence[str], now: datetime.datetime) -> CertificateBundle:
    authority, authority_key = _authority(now)
    certificate, key = _server(x509.load_pem_x509_certificate(authority), authority_key, names, now)
    return CertificateBundle(authority, authority_key, certificate, key)


def _due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now >= ends - (ends - begins) / 3


def _of_later(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Whether it was made by a clock that was ahead: clients with a correct clock would not accept it yet."""
    return certificate.not_valid_before_utc > now


def _names_of(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def _authority(now: datetime.datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial is in the name, so that an authority and the one before it are told apart by it.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"aliquot-webhook-ca-{serial:x}"[:64])])
    made = (
        _builder(name, name, key.public_key(), now, AUTHORITY_DAYS, serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(_CA_USAGE), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), _pem(key)


def _server(
    authority: x509.Certificate, authority_key: bytes, names: Sequence[str], now: datetime.datetime
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key(authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "aliquot-webhook")])
    alternatives: list[x509.GeneralName] = []
    for text in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(text)))
        except ValueError:
            alternatives.append(x509.DNSName(text))
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = (
        _builder(name, authority.subject, key.public_key(), now, SERVER_DAYS, x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(("digital_signature",)), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), _pem(key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: float,
    serial: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(chosen: Sequence[str]) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in chosen for name in _USAGES})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


log = Logger("scheduler")
SECRET: Final = "aliquot-webhook-tls"
WEBHOOK_NAME: Final = "aliquot"
"""Of both configurations of the webhook."""
CHECK_S: Final = 10.0
FIELDS: Final = {"ca.crt": "bundle", "ca.key": "authority_key", "tls.crt": "certificate", "tls.key": "key"}


class WebhookConfiguration(ApiObject):
    """A Mutating- or ValidatingWebhookConfiguration, its webhooks unchanged."""

    webhooks: list[dict[str, Any]] = msgspec.field(default_factory=list)


_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = tuple(
    Resource(WebhookConfiguration, kind, f"{kind.lower()}s", _GROUP, namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)


@dataclass
class CertificateManager:
    """The certificates of one installation; `names` are the webhook's names for the API server."""

    api: Api
    namespace: str
    names: Sequence[str]
    leads: Callable[[], bool]
    on_new: Callable[[CertificateBundle], None] = lambda kept: None
    clock: Clock = field(default_factory=Clock)
    kept: CertificateBundle | None = None

    async def run(self) -> None:
        """Renew them until cancelled."""
        while True:
            try:
                ready = await self.reconcile()
            except Conflict:
                ready = False
            except KubeError as error:
                log.warning("the webhook's certificates could not be looked at: %s", error)
                ready = self.kept is not None
            await self.clock.sleep(CHECK_S if ready else 0.5)

    async def reconcile(self) -> bool:
        """One check; True if nothing more is to be done now.

        Raises:
            KubeError: the API server is not reachable; Conflict: another replica was faster.
        """
        secret = await self.api.find(SECRETS, SECRET, namespace=self.namespace)
        kept = read_secret(secret)
        if not self.leads():
            self._tell(kept)
            return kept is not None
        bundles = set()  # by which our webhooks are trusted; they count where all have the same
        for kind in CONFIGURATIONS:
            held = await self.api.find(kind, WEBHOOK_NAME)
            for hook in held.webhooks if held is not None else ():
                bundles.add((hook.get("clientConfig") or {}).get("caBundle") or "")
        published = b""
        if len(bundles) == 1:
            with contextlib.suppress(ValueError):
                published = base64.b64decode(bundles.pop())
        wanted = next_step(kept, published, self.names, self.clock.wall())
        if wanted is not kept:
            data = {name: base64.b64encode(getattr(wanted, part)).decode() for name, part in FIELDS.items()}
            if secret is None:
                metadata = {"name": SECRET, "namespace": self.namespace}
                body = {"metadata": metadata, "type": "kubernetes.io/tls", "data": data}
                try:
                    await self.api.create(SECRETS, body, namespace=self.namespace)
                except AlreadyExists as error:
                    raise Conflict(str(error), error.status) from None
            else:
                version = {"resourceVersion": secret.metadata.resource_version}
                await self.api.patch(SECRETS, SECRET, {"metadata": version, "data": data}, namespace=self.namespace)
            log.info("the webhook has new certificates")
        await self._publish(wanted.bundle)
        self._tell(wanted)
        return True

    def _tell(self, kept: CertificateBundle | None) -> None:
        if kept is not None and kept != self.kept:
            self.kept = kept
            self.on_new(kept)

    async def _publish(self, bundle: bytes) -> None:
        text = base64.b64encode(bundle).decode()
        for kind in CONFIGURATIONS:
            held = await self.api.find(kind, WEBHOOK_NAME)
            if held is None or all((hook.get("clientConfig") or {}).get("caBundle") == text for hook in held.webhooks):
                continue
            hooks = [
                {**hook, "clientConfig": {**(hook.get("clientConfig") or {}), "caBundle": text}}
                for hook in held.webhooks
            ]
            version = {"resourceVersion": held.metadata.resource_version}
            await self.api.patch(kind, WEBHOOK_NAME, {"metadata": version, "webhooks": hooks})


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
