"""Which GPUs are unhealthy, reported by a child that watches NVML (`driver.health`), real or emulated.

The file `faults` in an emulated machine's folder has a line for each fault: `lost 1` (GPU 1 is lost) or `xid 0 79`. A
GPU is healthy again when its line is removed, as a real one is after a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from aliquot.lib.decoding import decode_json
from aliquot.lib.log import Logger
from aliquot.model.ids import GpuUuid
from aliquot.node.machine import Machine

_LOG: Final = Logger("node")
AGAIN_S: Final = 5.0


class _Line(msgspec.Struct):
    unhealthy: dict[str, str] | None = None
    gpus: list[str] = []
    note: str = ""


@dataclass(frozen=True)
class Health:
    """All unhealthy GPUs of the machine with the reason; `others` are GPUs that answer but are not shared."""

    unhealthy: Mapping[GpuUuid, str]
    others: frozenset[str] = frozenset()


class HealthWatch:
    """Watches a machine's GPUs; `run` never returns."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._child: asyncio.subprocess.Process | None = None

    async def run(self) -> AsyncIterator[Health]:
        """The health of the GPUs, soon and again at each change."""
        known: dict[str, str] = {}
        while True:
            child = self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "aliquot.driver.health", str(self._machine.libnvml),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                await self._say({"known": known})
                assert child.stdout is not None
                async for raw in child.stdout:
                    line = decode_json(raw, _Line)
                    if line.note:
                        _LOG.info("health", note=line.note)
                    if line.unhealthy is not None:
                        known = line.unhealthy
                        ours = {gpu.uuid for gpu in self._machine.gpus}
                        shared = {GpuUuid(uuid): why for uuid, why in known.items() if uuid in ours}
                        yield Health(shared, frozenset(line.gpus) - ours)
            finally:
                if child.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        child.kill()
                    await child.wait()
            _LOG.warning("health-watch-ended", status=child.returncode)
            await asyncio.sleep(AGAIN_S)

    async def forget_xids(self, uuids: Collection[str]) -> None:
        """Forget the errors of these GPUs, which the administrator has declared healthy."""
        await self._say({"well": list(uuids)})

    async def _say(self, order: object) -> None:
        with contextlib.suppress(ConnectionError):  # it has ended; the next one starts without that memory
            if self._child is not None and self._child.stdin is not None:
                self._child.stdin.write(msgspec.json.encode(order) + b"\n")
                await self._child.stdin.drain()
