"""Which GPUs are sick: told by a child that watches NVML, or by the file of faults of an emulated machine.

The file `faults` in the emulated machine's folder has a line for each fault: `lost 1` (GPU 1 is gone) or `xid 0 79`.
A GPU is well again when its line goes. On real hardware a sick GPU stays withdrawn until the agent is started anew,
since what caused an XID is seldom gone by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from aliquot.driver.health import xid_reason
from aliquot.model.ids import GpuUuid
from aliquot.node.machine import FAULTS, Machine

_LOG: Final = structlog.get_logger("aliquot.node")
LOOK_S: Final = 0.2
AGAIN_S: Final = 5.0


class _Line(msgspec.Struct):
    uuid: str = ""
    why: str = ""
    note: str = ""


def emulated_faults(text: str, machine: Machine) -> dict[GpuUuid, str]:
    """The sick GPUs of a file of faults; lines that are no fault are passed over."""
    sick: dict[GpuUuid, str] = {}
    for line in text.splitlines():
        match line.split():
            case ["lost", index] if index.isdigit() and int(index) < len(machine.gpus):
                sick[GpuUuid(machine.gpus[int(index)].uuid)] = "is lost"
            case ["xid", index, number] if index.isdigit() and number.isdigit() and int(index) < len(machine.gpus):
                if reason := xid_reason(int(number)):
                    sick[GpuUuid(machine.gpus[int(index)].uuid)] = reason
    return sick


async def watch(machine: Machine) -> AsyncIterator[Mapping[GpuUuid, str]]:
    """All sick GPUs with the reason, at once and again at each change; goes on for ever."""
    source = _emulated(machine, machine.folder / FAULTS) if machine.folder is not None else _real(machine)
    async for sick in source:
        yield sick


async def _emulated(machine: Machine, file: Path) -> AsyncIterator[Mapping[GpuUuid, str]]:
    told: dict[GpuUuid, str] | None = None
    while True:
        text = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = file.read_text()
        sick = emulated_faults(text, machine)
        if sick != told:
            told = sick
            yield sick
        await asyncio.sleep(LOOK_S)


async def _real(machine: Machine) -> AsyncIterator[Mapping[GpuUuid, str]]:
    sick: dict[GpuUuid, str] = {}
    yield dict(sick)
    while True:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aliquot.driver.health", str(machine.libnvml),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            assert child.stdout is not None
            async for raw in child.stdout:
                line = msgspec.json.decode(raw, type=_Line)
                if line.note:
                    _LOG.info("health", note=line.note)
                elif machine.by_uuid(line.uuid) is not None:
                    sick[GpuUuid(line.uuid)] = line.why
                    yield dict(sick)
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.kill()
                await child.wait()
        _LOG.warning("health-watch-ended", status=child.returncode)
        await asyncio.sleep(AGAIN_S)
