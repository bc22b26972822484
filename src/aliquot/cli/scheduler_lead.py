"""The options of `aliquot scheduler` for leader election."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final

import click

from aliquot.model.errors import UserError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class BadLead(UserError):
    """Options that exclude each other, or an invalid address."""


@dataclass(frozen=True)
class Lead:
    """Whether and where candidates stand for election, and the Service that points to the leader."""

    elect: bool
    namespace: str
    identity: str
    service: str
    address: str

    def check(self, port: int) -> None:
        """Refuse contradictory options.

        Raises:
            BadLead: an option that needs another, or an address that is none.
        """
        if bool(self.service) != bool(self.address):
            raise BadLead("--leader-service and --leader-address come together; give both or none")
        if self.service and port == 0:
            raise BadLead("--leader-service needs a port that is known; write it in --bind, as 0.0.0.0:8770")
        try:
            ip_address(self.address or "::1")
        except ValueError:
            text = f'--leader-address "{self.address}" is not an IP address; give that of this pod'
            raise BadLead(text) from None


def lead_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options, handed to the command as `lead`."""

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        leader_elect: bool,
        lease_namespace: str,
        identity: str,
        leader_service: str,
        leader_address: str,
        **given: Any,
    ) -> Any:
        name = identity or f"{socket.gethostname()}-{os.getpid()}"
        lead = Lead(leader_elect, lease_namespace, name, leader_service, leader_address)
        return command(*args, lead=lead, **given)

    made: Any = wrapped
    for option in reversed(_OPTIONS):
        made = option(made)
    return made  # type: ignore[no-any-return]


_OPTIONS: Final[tuple[Decorator, ...]] = (
    click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Lead by a Lease."),
    click.option("--lease-namespace", default="kube-system", show_default=True, help="Where the Lease is."),
    click.option("--identity", default="", help="Name of this candidate; the host's name and process without it."),
    click.option(
        "--leader-service", default="", help="Service without a selector that leads to the leader, by its name."
    ),
    click.option("--leader-address", default="", help="With --leader-service: the IP address of this candidate's pod."),
)
