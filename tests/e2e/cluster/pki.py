"""One certificate authority for one cluster, and whatever it signs: servers, users, service account keys."""

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

EARLIER = datetime.timedelta(minutes=5)
VALID = datetime.timedelta(days=2)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """Signs for one cluster; every key is written for its owner only."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("aliquot-test-ca")
        now = datetime.datetime.now(datetime.UTC)
        usage = dict.fromkeys(
            ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
        ) | dict.fromkeys(("digital_signature", "key_encipherment", "key_cert_sign", "crl_sign"), True)
        certificate = (
            self._builder(self._name, self._key.public_key(), now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(**usage),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._write("ca.crt", _pem(certificate))

    def server(self, file: str, common_name: str, names: Sequence[str], *, organization: str = "") -> Pair:
        """A server certificate for these DNS names and IP addresses."""
        return self._issue(file, common_name, organization, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, file: str, user: str, group: str = "") -> Pair:
        """A client certificate: the API server reads user and group from its subject."""
        return self._issue(file, user, group, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def service_account_keys(self) -> Pair:
        """The key pair that service account tokens are signed with; `certificate` is the bare public key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return Pair(self._write("service-accounts.pub", public), self._write("service-accounts.key", _private(key)))

    def kubeconfig(self, path: Path, url: str, pair: Pair) -> Path:
        """A kubeconfig with everything inside, so that it can be copied."""
        cluster = {"server": url, "certificate-authority-data": _base64(self.certificate)}
        user = {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        return self._write(path, json.dumps(config, indent=1).encode())

    def _issue(self, file: str, name: str, group: str, use: x509.ObjectIdentifier, names: Sequence[str]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(_name(name, group), key.public_key(), datetime.datetime.now(datetime.UTC))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_alternative(text) for text in names]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return Pair(self._write(f"{file}.crt", _pem(certificate)), self._write(f"{file}.key", _private(key)))

    def _builder(self, subject: x509.Name, public_key: Any, now: datetime.datetime) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EARLIER)
            .not_valid_after(now + VALID)
        )

    def _write(self, file: str | Path, content: bytes) -> Path:
        path = self._folder / file
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        return path


def _name(common: str, organization: str = "") -> x509.Name:
    first = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*first, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: Any) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
