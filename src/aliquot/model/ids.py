"""Names of things that are plain text on the wire but never interchangeable."""

from __future__ import annotations

import re
from typing import Final, NewType

from aliquot.model.errors import UserError

GpuUuid = NewType("GpuUuid", str)
"""As NVML prints it: `GPU-` and 32 hexadecimal digits in five groups."""

TenantName = NewType("TenantName", str)
"""Unique on a machine: `run-4711`, `default/notebook`."""


def split_key(key: str) -> tuple[str, str]:
    """Namespace and name of `namespace/name`; the namespace is empty where the key has none."""
    namespace, stroke, name = key.partition("/")
    return (namespace, name) if stroke else ("", key)


CLAIM: Final = "claim:"
"""Before a ResourceClaim's name in those of its tenant, `lab/claim:train/gpu`, and its workload; pods have no colon."""


def claim_key(name: str) -> str:
    """`lab/train` of the tenant or the workload of that claim; empty for those of pods."""
    namespace, rest = split_key(name)
    first = rest.partition("/")[0]
    return f"{namespace}/{first.removeprefix(CLAIM)}" if first.startswith(CLAIM) else ""


_TENANT: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,98}[A-Za-z0-9])?")


class BadName(UserError):
    """A name that cannot be a tenant's."""


def tenant_name(text: str) -> TenantName:
    """The name itself, if it is one line of plain characters.

    Raises:
        BadName: it is empty, longer than 100 characters, has others than letters, digits and `._/-`, or reads as a path
            that leads elsewhere.
    """
    if _TENANT.fullmatch(text) is None:
        raise BadName(
            f"{text!r} is not a name for a tenant; use up to 100 letters, digits and ._/- as in team/notebook"
        )
    if dots := {".", ".."}.intersection(text.split("/")):
        raise BadName(f"{text!r} is not a name for a tenant; leave out its part {min(dots)!r}, as in team/notebook")
    return TenantName(text)
