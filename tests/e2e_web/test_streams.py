"""Many open pages at once, and readers that do not read, against a real server."""

import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from made_up_facts import MadeUpFacts
from waiting import eventually

from aliquot.web.app import WebServer, everyone
from aliquot.web.feeds import Feeds

STREAMS = 1000


def stream(port: int, path: str = "/live/gpus", *, buffer_bytes: int = 0) -> socket.socket:
    """A connection that has asked for a live page; it does not read by itself."""
    sock = socket.socket()
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    sock.connect(("127.0.0.1", port))
    sock.settimeout(5.0)
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
    return sock


def read_until(sock: socket.socket, wanted: bytes, timeout_s: float = 15.0) -> bytes:
    """What comes up to and with `wanted`."""
    got, until_s = b"", time.monotonic() + timeout_s
    while wanted not in got:
        assert time.monotonic() < until_s, got[-200:]
        piece = sock.recv(1 << 16)
        assert piece, got[-200:]
        got = got[-len(wanted) :] + piece
    return got


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Connections that are closed afterwards."""
    opened: list[socket.socket] = []
    yield opened
    for sock in opened:
        sock.close()


@pytest.fixture
def room() -> Iterator[None]:
    """Room for both ends of a thousand connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * STREAMS + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"at most {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_streams_get_the_news(sockets: list[socket.socket], room: None):
    """A thousand open pages all hear of a change, and the server still answers others meanwhile."""
    facts = MadeUpFacts(nodes=1, gpus=2)
    with WebServer(everyone(facts)) as server:
        sockets += [stream(server.port) for _ in range(STREAMS)]
        for sock in sockets:
            read_until(sock, b"\n\n")
        facts.pass_time()
        with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as other:
            other.sendall(b"GET /api/v1/totals HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in other.recv(1 << 16)
        for sock in sockets:
            assert read_until(sock, b"id: 2\n")


def test_a_reader_that_takes_nothing_is_dropped(sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch):
    """Connections that are never read are cut off, while one that reads goes on."""
    monkeypatch.setattr("aliquot.web.app.Feeds", lambda: feeds)
    feeds = Feeds(tick_s=0.02, stuck_s=0.5)
    facts = MadeUpFacts(nodes=12, gpus=8)
    with WebServer(everyone(facts)) as server:
        well = stream(server.port)
        sockets.append(well)
        sockets += [stream(server.port, buffer_bytes=4096) for _ in range(5)]
        read_until(well, b"\n\n")
        eventually(lambda: feeds.streams == 6, "all are open")
        until_s = time.monotonic() + 20
        while feeds.streams > 1:
            assert time.monotonic() < until_s, f"{feeds.streams} streams are left"
            facts.pass_time()
            read_until(well, b"\n\n")

        assert 1 == feeds.streams


def test_closing_does_not_wait_for_readers(sockets: list[socket.socket]):
    """A server with open pages, read and unread, closes and leaves no thread behind."""
    facts = MadeUpFacts(nodes=12, gpus=8)
    server = WebServer(everyone(facts))
    sockets += [stream(server.port, buffer_bytes=4096) for _ in range(10)]
    read_until(sockets[0], b"\n\n")
    server.close()

    assert [] == [thread for thread in threading.enumerate() if thread.name == "web"]
