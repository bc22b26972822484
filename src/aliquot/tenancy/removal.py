"""What may be removed: one table and one rule for every sweep.

Each kind of thing has an *owner*: the one source that can say that it is gone. Other sources in its row can only keep
it, by saying that it is used. An owner that gives no answer (unreachable, not listed yet, no such file) is silent, and
silence keeps. So a source that lost its memory removes nothing, unless it is the owner and says so in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

Answer = Literal["used", "gone", "silent"]


class Source(Enum):
    """Who can be asked about a thing."""

    API = "the API server"
    KUBELET = "kubelet's device checkpoint"
    PROCESSES = "the node's processes"
    TENANTS = "the tenants of this program"
    LEDGER = "the scheduler's ledger"


class Removable(Enum):
    """Kinds of things that sweeps remove; the value is the name in messages."""

    SHARE = "the share of a pod"
    NAME = "a device name that no container was started with"
    LEFTOVER = "a left-over"
    HOLDER = "a holder pod"
    POD = "a pod"


@dataclass(frozen=True)
class Row:
    """Who says that a thing is gone, and who else can keep it."""

    owner: Source
    keepers: tuple[Source, ...] = ()


TABLE: Final[Mapping[Removable, Row]] = {
    # Ledger entry, tenant's folder and socket, arbiter record, CDI file, checkpoint entry. Kubelet's records are not
    # here: a kubelet that lost them goes on running its containers.
    Removable.SHARE: Row(Source.API, (Source.PROCESSES,)),
    # Kubelet writes a name only after our answer, so one check is not enough; the caller makes two.
    Removable.NAME: Row(Source.KUBELET),
    # Folders, CDI files and arbiter records of no tenant and in no checkpoint. The tenants are silent until they are
    # recovered in full.
    Removable.LEFTOVER: Row(Source.TENANTS),
    # A pod that runs without its share or cannot start again, replaced by its controller. No share is given without our
    # record of it, which a tenant's folder restores; until they are recovered in full, the tenants are silent. A share
    # whose container does not run is not used.
    Removable.POD: Row(Source.TENANTS, (Source.KUBELET,)),
    # By the plans of bound pods; the ledger has also the binds under way, and is silent about GPUs it does not know.
    Removable.HOLDER: Row(Source.API, (Source.LEDGER,)),
}


def kept_by(what: Removable, said: Mapping[Source, Answer]) -> str:
    """Why a thing has to stay, as a clause; empty if it may be removed. Sources that are not in `said` are silent."""
    row = TABLE[what]
    for source in (row.owner, *row.keepers):
        if said.get(source) == "used":
            return f"{what.value} is used, by {source.value}"
    if said.get(row.owner) != "gone":
        return f"{row.owner.value} does not say yet whether {what.value} is gone"
    return ""
