"""What a scene reads of the arbiter and of its clients belongs to one moment."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from aliquot_lab.bench import scene
from aliquot_lab.bench.fig6 import Tenant
from aliquot_lab.bench.progress import ProgressTotals
from aliquot_lab.bench.scene import SAMPLE_TRIES, Scene

MS = 1_000_000
A = Tenant("a")


class Machine:
    """A client that always runs, its arbiter, and a clock; this process stands still after the arbiter's answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *stops_ms: int) -> None:
        self.now_ns = 0
        self.asked = 0
        self._stops_ms = stops_ms
        monkeypatch.setattr(scene.time, "monotonic_ns", lambda: self.now_ns)
        engine = SimpleNamespace(arbiter=self, gpus=[SimpleNamespace(model="V100")], emulated=True)
        self.scene = Scene(engine, Path())
        self.scene.clients[A] = self

    def status(self) -> SimpleNamespace:
        """The arbiter's ledger at this moment; then time passes."""
        self.now_ns += MS
        tenant = SimpleNamespace(name="a", charged_ns=self.now_ns)
        found = SimpleNamespace(now_ns=self.now_ns, gpus=[SimpleNamespace(tenants=[tenant])])
        self.now_ns += self._stops_ms[min(self.asked, len(self._stops_ms) - 1)] * MS
        self.asked += 1
        return found

    @property
    def totals(self) -> ProgressTotals:
        """The client's own count."""
        return ProgressTotals(self.now_ns, 1, 1, 1, self.now_ns, 0)


@pytest.mark.parametrize(
    ("stops_ms", "apart_ms", "tries"),
    [
        ((300, 40, 1), 1, 3),
        ((300, 40, 90), 40, 1 + SAMPLE_TRIES),  # where the machine is never quiet the best counts
    ],
)
def test_a_sample_that_a_busy_machine_interrupted_is_taken_again(
    monkeypatch: pytest.MonkeyPatch, stops_ms: tuple[int, ...], apart_ms: int, tries: int
):
    """The arbiter's ledger and the clients' counts are of one moment, though this process stood still between them."""
    machine = Machine(monkeypatch, *stops_ms)

    sample = machine.scene.sample()

    assert apart_ms * MS == sample.completed_ns[A] - sample.charged_ns[A]
    assert tries == machine.asked
