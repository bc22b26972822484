"""An engine in this process, over an arbiter and a machine that are made up: what it decides, not what it starts."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from tenants import FakeArbiter

from aliquot.driver.gpu import Gpu
from aliquot.standalone import engine as standalone
from aliquot.standalone.arbiter_process import ArbiterOptions
from aliquot.standalone.machine import Machine
from aliquot.standalone.parking import Parking
from aliquot.standalone.paths import RuntimeDir
from aliquot.tenancy import lifecycle

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{g}" for g in range(2)]
GPU_MIB = 16_000


class Child:
    """In place of the arbiter's process."""

    pid = 1
    trouble = ""

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing is started."""

    def stop(self) -> None:
        """Nothing is stopped."""


@contextlib.contextmanager
def engines_over(arbiter: FakeArbiter, hook: Path) -> Iterator[None]:
    """Engines that are made meanwhile have this arbiter and hook; their threads end with the context."""
    made: list[Parking] = []
    start = Parking.start

    def started(parking: Parking) -> None:
        made.append(parking)
        start(parking)

    with (
        mock.patch.object(standalone, "ArbiterClient", lambda *_: arbiter.connect()),
        mock.patch.object(standalone, "ArbiterProcess", Child),
        mock.patch.object(lifecycle, "native_part", lambda _: hook),
        mock.patch.object(standalone, "ARBITER_BACK_S", 0.0),
        mock.patch.object(Parking, "start", started),
    ):
        try:
            yield
        finally:
            for parking in made:
                parking.stop()


def start_engine(folder: Path, arbiter: FakeArbiter) -> standalone.Engine:
    """An engine with two GPUs; as `Engine.start` has it, tenants' folders are removed and the arbiter is a new one."""
    shutil.rmtree(folder / "tenants", ignore_errors=True)
    (folder / "tenants").mkdir()
    arbiter.restart(forget=True)
    gpus = tuple(Gpu(g, uuid, "Tesla V100", GPU_MIB) for g, uuid in enumerate(UUIDS))
    machine = Machine(gpus, folder / "libcuda.so.1", folder / "libnvidia-ml.so.1")
    lock = SimpleNamespace(close=lambda: None)
    return standalone.Engine(RuntimeDir(folder), machine, lock, ArbiterOptions(), policy="binpack")
