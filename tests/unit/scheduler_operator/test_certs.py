"""Certificates that renew themselves without a moment in which the API server trusts nobody."""

import datetime
import random
import socket
import ssl
import threading
from dataclasses import replace

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from aliquot.scheduler.admission.certificates import CertificateBundle, next_step
from aliquot.scheduler.admission.server import load

NAMES = ("aliquot-webhook.kube-system.svc", "127.0.0.1")
BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def expires(kept: CertificateBundle) -> datetime.datetime:
    return x509.load_pem_x509_certificate(kept.certificate).not_valid_after_utc


def trusted(bundle: bytes, kept: CertificateBundle) -> bool:
    """Whether a bundle has the authority that signed the server's certificate."""
    server = x509.load_pem_x509_certificate(kept.certificate)
    for authority in x509.load_pem_x509_certificates(bundle):
        if authority.subject == server.issuer:
            server.verify_directly_issued_by(authority)
            return True
    return False


def test_the_first_certificates_are_right():
    """An authority and a server certificate for every name, which an ordinary TLS client accepts."""
    kept = next_step(None, b"", NAMES, datetime.datetime.now(datetime.UTC))
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cadata=kept.bundle.decode())
    load(server, kept)
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)

    def serve() -> None:
        with server.wrap_socket(ours, server_side=True) as connection:
            connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with client.wrap_socket(theirs, server_hostname=NAMES[0]) as connection:
        connection.send(b"x")
    thread.join()


def test_nothing_is_done_while_nothing_is_due():
    """The same object comes back until a third of the life is left."""
    kept = next_step(None, b"", NAMES, BEGIN)

    assert kept is next_step(kept, kept.bundle, NAMES, BEGIN + 59 * DAY)
    assert kept.certificate != next_step(kept, kept.bundle, NAMES, BEGIN + 61 * DAY).certificate


def test_another_name_gets_another_certificate():
    """A Service of another name is in the certificate from the next step on, of the same authority."""
    kept = next_step(None, b"", NAMES, BEGIN)
    other = next_step(kept, kept.bundle, (*NAMES, "elsewhere"), BEGIN)

    assert kept.bundle == other.bundle and kept.certificate != other.certificate


def test_whatever_is_broken_is_made_anew():
    """Garbage in the Secret is no reason to stay down."""
    kept = next_step(CertificateBundle(b"no", b"no", b"no", b"no"), b"", NAMES, BEGIN)

    assert trusted(kept.bundle, kept)


def test_what_a_clock_that_was_ahead_made_is_made_anew():
    """A machine that began with a wrong date leaves certificates that nobody accepts yet; they do not stay."""
    ahead = next_step(None, b"", NAMES, BEGIN + 3000 * DAY)
    kept = next_step(ahead, ahead.bundle, NAMES, BEGIN)
    server_ahead = next_step(kept, kept.bundle, NAMES, BEGIN + 61 * DAY)
    mended = next_step(server_ahead, server_ahead.bundle, NAMES, BEGIN)

    for made in (kept, mended):
        found = x509.load_pem_x509_certificates(made.bundle)[0], x509.load_pem_x509_certificate(made.certificate)
        assert all(one.not_valid_before_utc <= BEGIN for one in found)
        assert trusted(made.bundle, made)
    assert kept.bundle == mended.bundle


def test_parts_that_do_not_belong_together_are_made_anew():
    """A key of another certificate could not be served with, and one of another kind not be signed with."""
    kept, other = (next_step(None, b"", NAMES, BEGIN) for _ in range(2))
    foreign = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for mixed in (replace(kept, key=other.key), replace(kept, authority_key=foreign)):
        made = next_step(mixed, mixed.bundle, NAMES, BEGIN)
        load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), made)

        assert trusted(made.bundle, made) and made.certificate != kept.certificate


def test_through_five_years_the_server_is_always_trusted():
    """Published late, published at once, looked at rarely: what is shown is signed by what is trusted, and not over."""
    chance = random.Random(7)
    kept, published, now, authorities = None, b"", BEGIN, set()
    while now < BEGIN + 5 * 365 * DAY:
        kept = next_step(kept, published, NAMES, now)
        assert not published or trusted(published, kept) or now >= expires(kept)
        if not published or chance.random() < 0.7:
            published = kept.bundle
        assert expires(kept) > now and len(kept.bundle) < 5000
        authorities.add(x509.load_pem_x509_certificates(kept.bundle)[0].subject)
        now += chance.choice((1, 3, 10)) * DAY
    assert len(authorities) >= 3
