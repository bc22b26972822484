"""The input and output of the token policy: plain values, times in nanoseconds, shares in milli-GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000


class Handover(StrEnum):
    """When the next tenant may start after the grant before has ended."""

    DRAIN = "drain"  # when the work before is done: exact shares
    OVERLAP = "overlap"  # at once; overlapped time is divided among the tenants that overlap
    AUTO = "auto"  # drain for a little longer than the tenant's work usually takes to end, then overlap


class Turns(StrEnum):
    """Whose turn it is, and how long a turn is."""

    FLUID = "fluid"  # the tenant farthest behind the fluid, until another is behind by a quantum more
    KUBESHARE = "kubeshare"  # the three steps over a sliding window, turns of one length (HPDC'20)
    GEMINI = "gemini"  # the same order, turns as long as the tenant's bursts (TCC'21)


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """The policy's settings; all times in nanoseconds."""

    window_ns: int = 10 * SECOND
    turns: Turns = Turns.FLUID
    quota_ns: int = 100 * MS
    min_quota_ns: int = 20 * MS
    handover: Handover = Handover.AUTO
    drain_timeout_ns: int = 30 * SECOND
    renew_lead_ns: int = 3 * MS
    gang_patience_ns: int = 200 * MS

    def __post_init__(self) -> None:
        """Reject settings under which no share could be guaranteed.

        Raises:
            ValueError: says which setting, and what is allowed.
        """
        if not 0 < self.min_quota_ns <= self.quota_ns:
            raise ValueError(
                f"min quota {self.min_quota_ns} ns must be above 0 and at most the quota {self.quota_ns} ns"
            )
        if self.window_ns < 4 * self.quota_ns:
            raise ValueError(f"window {self.window_ns} ns is shorter than four quotas of {self.quota_ns} ns")


@dataclass(frozen=True, slots=True)
class Share:
    """What one tenant was promised on one GPU: at least `request_milli`, at most `limit_milli`; and, with `wake_ns`,
    that its first kernel starts in this time when it wakes within its request."""

    request_milli: int
    limit_milli: int
    wake_ns: int = 0

    def __post_init__(self) -> None:
        """Reject shares that cannot be guaranteed.

        Raises:
            ValueError: the limit is below the request, or one is outside 0..1000.
        """
        if not 0 <= self.request_milli <= self.limit_milli <= 1000 or self.limit_milli == 0:
            raise ValueError(
                f"request {self.request_milli} and limit {self.limit_milli} must be 0 <= request <= limit <= 1000"
            )


@dataclass(frozen=True, slots=True)
class Grant:
    """The tenant may launch on all these GPUs until the deadline."""

    tenant: str
    gpus: tuple[str, ...]
    quota_ns: int
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Renew:
    """The deadline moves; no message is needed, because the tenant never stopped."""

    tenant: str
    gpus: tuple[str, ...]
    quota_ns: int
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """The tenant must stop launching and report when its work has finished."""

    tenant: str
    gpus: tuple[str, ...]


Action = Grant | Renew | Revoke


@dataclass(frozen=True, slots=True)
class Upcoming:
    """Who is granted a GPU once its occupant has returned or drained, for as long as nothing else happens.

    It stands until `until_ns`; where the occupant asks for the GPU again before its work has ended, until
    `until_wanting_ns`. The quota is never above what the policy would give at that time.
    """

    occupant: str
    tenant: str
    quota_ns: int
    until_ns: int
    until_wanting_ns: int
