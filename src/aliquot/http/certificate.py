"""A server's certificate, read again when its files have been renewed, as cert-manager does.

Connections that are open stay as they are; those that begin afterwards see the new certificate. A certificate and key
that do not match, as while one of the files is being written, change nothing until they do.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import Final

from aliquot.model.errors import UserError

LOOK_S: Final = 2.0
"""Time between two checks of the files."""
_Stamp = tuple[tuple[int, int, int], ...]


class BadCertificate(UserError):
    """Files that are not a certificate with its key."""


class Certificate:
    """`context` is what a server uses; `renew` checks whether the files have changed."""

    def __init__(self, chain: str, key: str, client_ca: str = "") -> None:
        """Read the files; with `client_ca` only clients are served whose certificate it signed.

        Raises:
            BadCertificate: they cannot be read, or do not belong together.
        """
        self._files = (chain, key)
        self._stamp: _Stamp = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.renew()
        if client_ca:
            try:
                self.context.load_verify_locations(client_ca)
            except (OSError, ValueError) as error:
                why = f"{client_ca} has no certificates of authorities: {_why(error)}"
                raise BadCertificate(f"{why}; give PEM") from None
            self.context.verify_mode = ssl.CERT_REQUIRED

    async def follow(self, told: Callable[[BadCertificate | None], None]) -> None:
        """Renew whenever the files change, until cancelled; `told` is called for each change, with its error if any."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if self.renew():
                    told(None)
            except BadCertificate as error:
                told(error)

    def renew(self) -> bool:
        """Reload the files if they have changed since the last try; returns whether they had.

        Raises:
            BadCertificate: they have changed and cannot be used; the old certificate stays.
        """
        chain, key = self._files
        try:
            stamp = tuple((s.st_ino, s.st_mtime_ns, s.st_size) for s in map(os.stat, self._files))
            if stamp == self._stamp:
                return False
            self._stamp = stamp
            # Tried in another context first: one that accepted a certificate but not its key could serve no client.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password="")
            self.context.load_cert_chain(chain, key, password="")
        except (OSError, ValueError) as error:
            text = f"{chain} and {key} are no certificate with its key: {_why(error)}"
            raise BadCertificate(f"{text}; give both as PEM, the key without a password") from None
        return True


def _why(error: Exception) -> str:
    why = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error)
    return str(why).lower().replace("_", " ")
