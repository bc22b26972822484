"""Listening sockets, and the error when a port is taken."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

from aliquot.model.errors import AliquotError

EVERY_ADDRESS: Final = ("0.0.0.0", "::")
USER_TIMEOUT_MS: Final = 20_000


class PortTaken(AliquotError):
    """Another program already listens on the port."""


def listening(
    host: str, port: int, tries: int = 1, *, called: str = "", instead: str = "choose another port"
) -> socket.socket:
    """A bound socket whose connections the kernel cuts when their reader takes nothing for 20 s; any port for 0.

    A port that is taken is `called` so in the error, which ends in what to do `instead`.

    Raises:
        PortTaken: none of the `tries` ports from `port` up is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for number in range(port, port + max(1, tries)):
        # asyncio sets TCP_NODELAY only where the protocol is named.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        try:
            sock.bind((host, number))
        except OSError as error:
            sock.close()
            reason = (error.strerror or str(error)).lower()
        else:
            return sock
    raise PortTaken(f"{called or f'--port {port}'}: {reason}; {instead}")


def own_address(host: str) -> str:
    """The address by which a browser reaches a server that listens at `host`.

    If `host` means every address, it is the source address of this machine's outgoing connections, or loopback without
    any.
    """
    if host not in EVERY_ADDRESS:
        return f"[{host}]" if ":" in host else host
    for family, elsewhere in ((socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "192.0.2.1")):
        if host == "::" or family == socket.AF_INET:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect((elsewhere, 9))  # sends nothing
                return own_address(sock.getsockname()[0])
    return "[::1]" if host == "::" else "127.0.0.1"
