"""Who calls the engine: the account that the kernel reports for a connection, and what is that account's own.

A name says whose it is: tenants and SharePods of an account are `ACCOUNT/NAME`. Those of the engine's own account, and
of root, are named as they are in an engine that only one account reaches.
"""

from __future__ import annotations

import array
import contextlib
import os
import pwd
import socket
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from aliquot.model.errors import UserError
from aliquot.model.ids import split_key, tenant_name

DEFAULT_NAMESPACE: Final = "default"
_PEER: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59
_GROUPS_BYTES: Final = 1024  # the most that the interpreter asks the kernel for


class NotYours(UserError):
    """What is named belongs to another account."""


@dataclass(frozen=True)
class Account:
    """An account with its groups, by number, and the process that calls for it; 0 where none is to be seen."""

    uid: int
    gid: int = 0
    groups: tuple[int, ...] = ()
    pid: int = 0

    @classmethod
    def of_peer(cls, connection: socket.socket) -> Account:
        """The one on the other side of a unix socket, as it was when it connected."""
        pid, uid, gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        groups = array.array("I")
        with contextlib.suppress(OSError):  # more groups than that: none counts
            groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES))
        return cls(uid, gid, tuple(groups), pid)

    @property
    def is_master(self) -> bool:
        """Whether everything here is its own: it is root, or the account of the engine."""
        return self.uid in (0, os.geteuid())

    @cached_property
    def name(self) -> str:
        """As it logs in, or its number where it has no name that can stand in that of a tenant."""
        try:
            name = pwd.getpwuid(self.uid).pw_name
            usable = tenant_name(name) == name and "/" not in name and name != DEFAULT_NAMESPACE
        except (KeyError, UserError):
            usable = False
        return name if usable else str(self.uid)

    @property
    def home(self) -> Path:
        """Its home; the root of the file system for one without an entry."""
        try:
            return Path(pwd.getpwuid(self.uid).pw_dir)
        except KeyError:
            return Path("/")

    @property
    def environment(self) -> dict[str, str]:
        """What its programs start with: for the engine's own account that of this process, for others a login's."""
        if self.is_master:
            return dict(os.environ)
        return {
            "HOME": str(self.home), "USER": self.name, "LOGNAME": self.name, "SHELL": "/bin/sh",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }  # fmt: skip

    @property
    def namespace(self) -> str:
        """Where its SharePods are if it names no namespace."""
        return DEFAULT_NAMESPACE if self.is_master else self.name

    def own_run(self, name: str) -> str:
        """The name that a run of this account has."""
        return name if self.is_master or split_key(name)[0] == self.name else f"{self.name}/{name}"

    def own_pod(self, name: str) -> str:
        """The full name of a SharePod that this account calls by this name: the default namespace is its own."""
        namespace, short = split_key(name)
        inside = self.is_master or namespace not in ("", DEFAULT_NAMESPACE)
        return name if inside else f"{self.name}/{short}"

    def may_use(self, owner: Account) -> bool:
        """Whether it may read, use, change and end what belongs to that account."""
        return self.is_master or self.uid == owner.uid

    def require(self, owner: Account, what: str) -> None:
        """Let the owner and root pass.

        Raises:
            NotYours: it is another account.
        """
        if not self.may_use(owner):
            raise NotYours(f"{what} belongs to {owner.name}; {owner.name} and root can do that")


def own_account() -> Account:
    """The account of this process."""
    return Account(os.geteuid(), os.getegid(), tuple(os.getgroups()))
