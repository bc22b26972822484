"""Where `aliquot top` looks: the engine that is up, over its sockets."""

from __future__ import annotations

import contextlib
import socket

from aliquot.arbiter.records import Status
from aliquot.cli.top_views import Look, in_words
from aliquot.driver.discovery import NoDriver, find_driver
from aliquot.driver.mounts import NVML
from aliquot.driver.sensors import SensorReader
from aliquot.standalone.client import EngineRefused, ask
from aliquot.standalone.measured import measured_gpus, workloads_of
from aliquot.standalone.paths import RuntimeDir
from aliquot.standalone.wire import EndCall, InfoCall, PodsCall, PromisedCall, RunningCall, StatusCall
from aliquot.status import Workload
from aliquot.status.history import PromiseHistory


class EnginePoller:
    """One look at a time, from one thread."""

    def __init__(self, runtime: RuntimeDir) -> None:
        self._runtime = runtime
        self._promises = PromiseHistory(10.0)
        self._sensors: SensorReader | None = None

    def __enter__(self) -> EnginePoller:
        return self

    def __exit__(self, *_: object) -> None:
        if self._sensors is not None:
            self._sensors.close()

    def end(self, name: str) -> str:
        """End a workload; what was ended, in words.

        Raises:
            AliquotError: it does not exist, or the engine is gone.
        """
        return "; ".join(ask(self._runtime, EndCall(name)).lines)

    def __call__(self) -> Look:
        """Everything now.

        Raises:
            NoEngine: the engine is gone.
        """
        facts = ask(self._runtime, InfoCall())
        promised = ask(self._runtime, PromisedCall()).gpus
        pods = ask(self._runtime, PodsCall()).pods
        running = ask(self._runtime, RunningCall())
        if self._sensors is None:
            emulated = self._runtime.emulated / NVML
            try:
                self._sensors = SensorReader(emulated if facts.emulate else find_driver().libnvml)
                self._sensors.start()
            except NoDriver:
                self._sensors = SensorReader(emulated)  # it has nothing to say
        status: Status | None = None
        with contextlib.suppress(EngineRefused):  # between two arbiters
            status = ask(self._runtime, StatusCall()).status
        if status is not None:
            if status.window_ms != round(self._promises.window_s * 1000):
                self._promises = PromiseHistory(status.window_ms / 1000)
            for gpu in status.gpus:
                for tenant in gpu.tenants:
                    self._promises.add(gpu.uuid, tenant, status.now_ns)
        node = socket.gethostname()
        gpus = measured_gpus(promised, status, self._promises.kept_percent)
        title = f"{node} (emulates {facts.emulate})" if facts.emulate else node
        queued = [
            Workload(run.name, "Run", "Pending", run.request_milli, run.limit_milli, [], run.age_s, message=run.reason)
            for run in running.queue
        ]
        return Look(
            title, self._promises.window_s, gpus, [*queued, *workloads_of(gpus, pods, {})],
            processes=running.processes, sensors=in_words(self._sensors.now),
        )  # fmt: skip
