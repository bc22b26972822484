"""The server itself: its certificate, its address, and strangers who open connections."""

import contextlib
import datetime
import http.client
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="the parts for a cluster are not installed: no certificate to show")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from made_up_facts import MadeUpFacts
from waiting import eventually

from aliquot.http import server as connections
from aliquot.http.listening import own_address
from aliquot.http.server import BadCertificate
from aliquot.web.app import WebServer, everyone


class Files:
    """A certificate and its key in two files."""

    def __init__(self, folder: Path) -> None:
        self.chain, self.key = folder / "tls.crt", folder / "tls.key"

    @property
    def names(self) -> tuple[str, str]:
        """As the server is given them."""
        return str(self.chain), str(self.key)

    def write(self, serial: int, *, key: bool = True) -> None:
        """A new certificate of that serial number; without `key` its key is not written yet."""
        made, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
        builder = x509.CertificateBuilder(name, name, made.public_key(), serial, now, now + datetime.timedelta(days=1))
        self.put(self.chain, builder.sign(made, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        if key:
            no_password = serialization.NoEncryption()
            form = serialization.PrivateFormat.PKCS8
            self.put(self.key, made.private_bytes(serialization.Encoding.PEM, form, no_password))

    @staticmethod
    def put(path: Path, content: bytes) -> None:
        """Replace a file in one step, as a Secret's volume does."""
        beside = path.with_suffix(".new")
        beside.write_bytes(content)
        beside.replace(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """The first certificate."""
    made = Files(tmp_path)
    made.write(1)
    return made


def shown(port: int) -> int:
    """The serial number of the certificate that a new connection sees."""
    pem = ssl.get_server_certificate(("127.0.0.1", port), timeout=10)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def test_a_renewed_certificate_is_shown_without_a_restart(
    facts: MadeUpFacts, files: Files, monkeypatch: pytest.MonkeyPatch
):
    """New connections see it; one that was open goes on, and half a renewal changes nothing."""
    monkeypatch.setattr("aliquot.http.server.LOOK_S", 0.05)
    trusting = ssl._create_unverified_context()
    with WebServer(everyone(facts), tls=files.names) as server:
        assert server.url.startswith("https://") and 1 == shown(server.port)
        opened = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusting, timeout=10)
        opened.request("GET", "/api/v1/totals", headers={"Host": "localhost"})
        assert 200 == (answer := opened.getresponse()).status and answer.read()
        files.write(2, key=False)
        time.sleep(0.3)
        assert 1 == shown(server.port)
        files.write(3)
        eventually(lambda: shown(server.port) == 3)
        opened.request("GET", "/api/v1/totals", headers={"Host": "localhost"})
        assert 200 == opened.getresponse().status
        opened.close()


@pytest.mark.parametrize("fault", ["missing", "no certificate", "other key"])
def test_a_certificate_that_is_none_is_told_at_once(facts: MadeUpFacts, files: Files, fault: str):
    """The program ends with a sentence that names the files, instead of pages that nobody can open."""
    if fault == "missing":
        files.key.unlink()
    elif fault == "no certificate":
        files.chain.write_text("hello")
    else:
        files.write(2, key=False)

    with pytest.raises(BadCertificate, match=r"tls\.crt and .*tls\.key are no certificate with its key"):
        WebServer(everyone(facts), tls=files.names)


@pytest.mark.parametrize(
    ("host", "own", "address"),
    [
        ("127.0.0.1", {}, "127.0.0.1"),
        ("localhost", {}, "localhost"),
        ("10.0.0.5", {}, "10.0.0.5"),
        ("fd00::5", {}, "[fd00::5]"),
        ("0.0.0.0", {socket.AF_INET: "10.1.2.3"}, "10.1.2.3"),
        ("0.0.0.0", {}, "127.0.0.1"),
        ("::", {socket.AF_INET6: "fd00::5", socket.AF_INET: "10.1.2.3"}, "[fd00::5]"),
        ("::", {socket.AF_INET: "10.1.2.3"}, "10.1.2.3"),
        ("::", {}, "[::1]"),
    ],
)
def test_a_server_is_addressed_where_it_listens(
    host: str, own: dict[int, str], address: str, monkeypatch: pytest.MonkeyPatch
):
    """An address is what it is, IPv6 in brackets; of all its addresses a machine tells the one that it asks others
    from, the loopback's where there is none."""

    class Socket(contextlib.nullcontext["Socket"]):
        def __init__(self, family: int, kind: int) -> None:
            super().__init__(self)
            self.family = family

        def connect(self, address: tuple[str, int]) -> None:
            if self.family not in own:
                raise OSError("network is unreachable")

        def getsockname(self) -> tuple[str, int]:
            return own[self.family], 1

    monkeypatch.setattr(socket, "socket", Socket)

    assert address == own_address(host)


def test_an_address_for_all_is_told_as_one_that_can_be_opened(facts: MadeUpFacts):
    """Who listens everywhere says an address of this machine, and is answered there."""
    with WebServer(everyone(facts), host="0.0.0.0") as server:
        host, _, port = server.url.removeprefix("http://").rstrip("/").rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/api/v1/totals")

        assert own_address("0.0.0.0") == host
        assert 200 == connection.getresponse().status
        connection.close()


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Connections that are closed afterwards."""
    opened: list[socket.socket] = []
    yield opened
    for sock in opened:
        sock.close()


def connected(server: WebServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def closed(sock: socket.socket) -> bool:
    """Whether the server has closed a connection; waits for it."""
    with contextlib.suppress(ConnectionError):
        return sock.recv(1) == b""
    return True


class Looks:
    """The server's looks at its connections: they do nothing until `begin`, and are counted by client from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self._begun = threading.Event()
        self._look = connections.BoundedConnection._still_there
        monkeypatch.setattr(connections, "PATIENCE_S", 0.05)
        monkeypatch.setattr(connections.BoundedConnection, "_still_there", lambda one: self.look(one))

    def look(self, connection: Any) -> None:
        if self._begun.is_set():
            self.counts[connection.client] += 1
            self._look(connection)
        else:
            connection._look = connection.loop.call_later(connection.patience_s(), connection._still_there)

    def begin(self) -> None:
        """From now on a connection that asks for nothing is cut off."""
        self._begun.set()


def test_who_asks_for_nothing_is_cut_off(
    facts: MadeUpFacts, sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
):
    """A silent connection, half a request and a second half of one all end; a live page does not."""
    looks = Looks(monkeypatch)
    whole = b"GET /api/v1/totals HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with WebServer(everyone(facts)) as server:
        sockets += [connected(server) for _ in range(4)]
        silent, half, second, live = sockets
        half.sendall(whole[:-4])
        second.sendall(whole)
        assert b"200 OK" in second.recv(1 << 16)
        second.sendall(whole[:-4])
        live.sendall(b"GET /live/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in live.recv(1 << 16)

        looks.begin()
        assert [True] * 3 == [closed(sock) for sock in (silent, half, second)]
        # One that is cut off is looked at no more.
        eventually(lambda: looks.counts[live.getsockname()] > 3)


def test_a_request_without_an_end_is_refused(facts: MadeUpFacts, sockets: list[socket.socket]):
    """A head that goes on for ever is cut off after 64 KiB, whoever sends it."""
    with WebServer(everyone(facts)) as server:
        sockets.append(connected(server))
        (sock,) = sockets
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 4 << 20:
                sent += sock.send(b"x-more: " + b"x" * 4000 + b"\r\n")
                time.sleep(0.001)

        assert sent < 1 << 20
