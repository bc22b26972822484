"""The settings of one arbiter: those of its policy, and limits on the resources that tenants may cost it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aliquot.tokens import TokenConfig

from .abi import FailPolicy


@dataclass(frozen=True, slots=True)
class Settings:
    """Every resource has a limit: nothing that a tenant sends grows without bound."""

    runtime_dir: Path
    tokens: TokenConfig = field(default_factory=TokenConfig)
    fail_policy: FailPolicy = FailPolicy.PACE
    libnvml: Path | None = None
    libhandover: Path | None = None  # None: every hand-over waits for the arbiter's own loop
    metrics_port: int = 0
    max_processes_per_tenant: int = 256  # that launch on a GPU, and as many apart that only query it
    messages_per_second: int = 5000
    message_burst: int = 5000
    messages_per_turn: int = 32
    burst_gap_us: int = 2000
    max_in_flight_us: int = 2000
    events_kept: int = 1000
    journal_bytes: int = 1 << 20
    leases_bytes: int = 1 << 20  # 64 for each process on each GPU
    housekeeping_ns: int = 250_000_000

    @property
    def admin_socket(self) -> Path:
        """The socket for programs that create tenants; accessible to the owner only."""
        return self.runtime_dir / "admin.sock"

    @property
    def status_socket(self) -> Path:
        """The socket for programs that read; nothing can be changed through it."""
        return self.runtime_dir / "status.sock"
