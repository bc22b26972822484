"""`python -m aliquot.arbiter`: the process that hands out GPU time and memory on this machine."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

import click

from aliquot.driver.native import HANDOVER, NativePartMissing, native_part
from aliquot.model.errors import in_words
from aliquot.tokens import MS, Handover, TokenConfig, Turns

from .abi import FailPolicy
from .program import Program
from .settings import Settings


@click.command()
@click.option(
    "--runtime-dir", type=click.Path(file_okay=False, path_type=Path), required=True, help="Sockets, journal."
)
@click.option("--libnvml", type=click.Path(path_type=Path), help="Measure memory by this libnvidia-ml.so.1.")
@click.option("--window-ms", type=click.IntRange(100), default=10_000, show_default=True)
@click.option("--turns", type=click.Choice([t.value for t in Turns]), default="fluid", show_default=True)
@click.option(
    "--quota-ms", type=click.IntRange(1), default=100, show_default=True, help="Longest turn; of kubeshare each."
)
@click.option("--min-quota-ms", type=click.IntRange(1), default=20, show_default=True)
@click.option("--handover", type=click.Choice([h.value for h in Handover]), default="auto", show_default=True)
@click.option("--fail-policy", type=click.Choice(["pace", "open", "closed"]), default="pace", show_default=True)
@click.option("--drain-timeout-ms", type=click.IntRange(10), default=30_000, show_default=True)
@click.option("--metrics-port", type=click.IntRange(0, 65535), default=0, help="Prometheus on 127.0.0.1; 0 is off.")
@click.option(
    "--native-handover/--no-native-handover",
    default=True,
    show_default=True,
    help="Hand over in a native thread where the policy has already chosen the next tenant.",
)
@click.option("--fresh", is_flag=True, help="Forget the tenants and debts of an earlier arbiter.")
def main(
    runtime_dir: Path,
    libnvml: Path | None,
    window_ms: int,
    turns: str,
    quota_ms: int,
    min_quota_ms: int,
    handover: str,
    fail_policy: str,
    drain_timeout_ms: int,
    metrics_port: int,
    native_handover: bool,
    fresh: bool,
) -> None:
    """Arbitrate GPU time and memory between the tenants of this machine."""
    try:
        tokens = TokenConfig(
            window_ns=window_ms * MS,
            turns=Turns(turns),
            quota_ns=quota_ms * MS,
            min_quota_ns=min(min_quota_ms, quota_ms) * MS,
            handover=Handover(handover),
            drain_timeout_ns=drain_timeout_ms * MS,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    settings = Settings(
        runtime_dir,
        tokens=tokens,
        fail_policy=FailPolicy[fail_policy.upper()],
        libnvml=libnvml,
        libhandover=_library() if native_handover else None,
        metrics_port=metrics_port,
    )
    _serve(settings, fresh=fresh)


def _library() -> Path | None:
    """The native loop for hand-overs; the arbiter does without where it was not built."""
    try:
        return native_part(HANDOVER)
    except NativePartMissing:
        return None


def _serve(settings: Settings, *, fresh: bool) -> None:
    """Run until SIGTERM or SIGINT; a fault at the start is one sentence and exit status 1."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setswitchinterval(0.0002)
    _go_before_the_tenants()
    try:
        program = Program(settings, fresh=fresh)
    except OSError as error:
        raise click.ClickException(in_words(error)) from error
    signal.signal(signal.SIGTERM, lambda *_: program.stop())
    signal.signal(signal.SIGINT, lambda *_: program.stop())
    click.echo("ready")
    try:
        program.run()
    finally:
        program.close()


def _go_before_the_tenants() -> None:
    """Let the kernel run the arbiter as soon as it wakes: a GPU waits for it at every hand-over.

    Real-time round-robin where the rights are there, else the best niceness, else as it is. The kernel keeps 5 % of
    each core from real-time programs, and every message costs a bounded time, so tenants cannot use this against it.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    with contextlib.suppress(OSError):
        os.nice(-20)


if __name__ == "__main__":
    main()
