"""Tenants that were promised to wake in time, beside others on the emulated GPU."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spawning import engine_of, spawn
from waiting import eventually

from aliquot.placement.machine import NoRoom
from aliquot.standalone.accounts import own_account
from aliquot.standalone.engine import Engine
from aliquot.standalone.explaining import explanations
from aliquot.standalone.pods import Pods
from aliquot.standalone.wire import ExplainCall
from aliquot.status.tenants import TenantStatus
from aliquot_lab.bench.progress import read_totals
from aliquot_lab.bench.scene import native_client

pytestmark = pytest.mark.real_time

MS_NS = 1_000_000
WAKE_US = 5000
WAKES = 120


class Scene:
    """An engine with one GPU; tenants are the benchmarks' clients."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.engine = engine
        self.directory = directory

    def training(self, name: str, kernel_ms: float, request_milli: int = 700, *, waits: bool = True) -> None:
        """A tenant that launches kernels of one length without a rest; `waits` for the first to end."""
        argv = native_client("steady", str(int(kernel_ms * MS_NS)))(self.directory / name)
        if waits:
            self._start(name, argv, request_milli)
        else:
            spawn(self.engine, name, argv, request_milli=request_milli, memory_mib=1024)

    def inference(self, name: str, wake_us: int) -> None:
        """A tenant that works 2 ms in kernels of 0.5 ms and rests for 25."""
        argv = [sys.executable, "-m", "aliquot_lab.bench.client", "burst", "--progress", str(self.directory / name)]
        self._start(name, [*argv, "--kernel-ms=0.5", "--batch=4", "--idle-ms=25"], 300, wake_us)

    def seen(self, name: str) -> TenantStatus:
        """What the arbiter says of a tenant."""
        return next(t for gpu in self.engine.arbiter.status().gpus for t in gpu.tenants if t.name == name)

    def _start(self, name: str, argv: list[str], request_milli: int, wake_us: int = 0) -> None:
        spawn(self.engine, name, argv, request_milli=request_milli, memory_mib=1024, wake_us=wake_us)
        eventually(lambda: read_totals(self.directory / name), f"{name} launches")


def lateness_ms(done: Callable[[], bool], timeout_s: float = 40.0) -> float:
    """By how much a program that sleeps on this machine wakes too late at worst, measured until `done`."""
    late, end_s, look_s = [], time.monotonic() + timeout_s, 0.0
    while time.monotonic() < end_s:
        due_s = time.monotonic() + 0.002
        time.sleep(0.002)
        late.append(time.monotonic() - due_s)
        if time.monotonic() >= look_s:
            if done():
                return max(late) * 1000
            look_s = time.monotonic() + 0.2
    raise AssertionError(f"not in {timeout_s} s: it wakes often enough")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """An engine of its own."""
    with engine_of("v100") as engine:
        yield Scene(engine, tmp_path)


def test_a_tenant_wakes_as_soon_as_promised_beside_one_that_never_rests(scene: Scene):
    """Beside kernels of 1 ms without a rest, 99 of 100 wakes are within the 5 ms promised, half within 3 ms."""
    scene.training("training", 1.0)
    eventually(lambda: scene.seen("training").kernel_ms, "its kernels are measured")
    scene.inference("server", WAKE_US)
    late_ms = lateness_ms(lambda: scene.seen("server").wake.count >= WAKES)

    wake = scene.seen("server").wake
    assert 5.0 == wake.promised_ms
    assert wake.p50_ms <= 3.0, wake
    # Three programs take part in a hand-over; on a machine without a free core each is late as this one was.
    assert wake.p99_ms <= 5.0 + 3 * late_ms, (wake, late_ms)


def test_a_promise_beside_kernels_that_are_too_long_is_refused(scene: Scene):
    """Beside kernels of 20 ms a wake in 5 ms is refused with the neighbour's name and what is allowed."""
    scene.training("training", 20.0)
    eventually(lambda: scene.seen("training").kernel_ms > 15, "its kernels are measured")

    with pytest.raises(NoRoom, match=r'GPU 0 has "training" with kernels of (1[5-9]|20) ms, wake allows 3.2 ms'):
        scene.inference("server", WAKE_US)


def test_a_promise_that_a_neighbour_breaks_later_is_shown_with_its_name(scene: Scene):
    """A neighbour that comes later with kernels that are too long is named where the promise is shown as not kept."""
    scene.inference("server", WAKE_US)
    assert scene.seen("server").wake.kept
    scene.training("training", 20.0)
    eventually(lambda: not scene.seen("server").wake.kept, "its kernels are measured")

    assert "not kept: training runs kernels of" in scene.seen("server").wake.text
    (explained,) = explanations(scene.engine, Pods(scene.engine), ExplainCall("server"), own_account()).explanations
    assert "not kept: training runs kernels of" in explained.lines[-1]
    assert explained.lines[-1].startswith("  server wakes: 5 ms promised")


def test_the_neighbour_whose_kernel_is_in_flight_is_named(scene: Scene):
    """Of two neighbours the one with the longer kernels is named while its very first kernel runs."""
    scene.inference("server", WAKE_US)
    scene.training("medium", 20.0, 300)
    eventually(lambda: not scene.seen("server").wake.kept, "its kernels are measured")
    scene.training("long", 8000.0, 300, waits=False)
    eventually(lambda: scene.seen("server").wake.longest_by == "long", "its kernel has run longer")

    assert read_totals(scene.directory / "long") is None
    assert "not kept: long runs kernels of" in scene.seen("server").wake.text


def test_kernels_of_tenants_that_overlap_are_shown_no_longer_than_they_are(scene: Scene):
    """Beside kernels of 1 s, which no turn ends, the time of both tenants is divided: neither's kernels grow."""
    scene.training("medium", 5.0, 400)
    scene.training("long", 1000.0, 400)

    def both_ran() -> bool:
        done = [read_totals(scene.directory / name) for name in ("medium", "long")]
        return all(done) and done[0].completed > 300 and done[1].completed > 3

    late_ms = lateness_ms(both_ran)
    eventually(lambda: scene.seen("long").kernel_ms > 600, "its kernels are measured")
    # An emulated GPU changes hands by threads of its users: where those are late, it stands still meanwhile.
    assert scene.seen("medium").kernel_ms <= 5.1 + 3 * late_ms, late_ms
    assert scene.seen("long").kernel_ms <= 1010 + 3 * late_ms, late_ms
