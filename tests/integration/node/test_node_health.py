"""The agent's watch over an emulated machine's GPUs, with the process that asks NVML."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aliquot.node.health import Health, HealthWatch
from aliquot.node.machine import emulated_machine

SOON_S = 10


async def until(states: AsyncIterator[Health], unhealthy: dict[str, str]) -> None:
    """Wait for a state with just these unhealthy GPUs."""
    async with asyncio.timeout(SOON_S):
        async for state in states:
            if state.unhealthy == unhealthy:
                return


async def test_faults_come_and_go_while_programs_run(tmp_path: Path):
    """A lost GPU and a critical XID are withdrawn, each by itself, and come back when the fault ends."""
    machine = emulated_machine("v100x3", tmp_path)
    uuids = [gpu.uuid for gpu in machine.gpus]
    faults = tmp_path / "faults"

    states = HealthWatch(machine).run()
    await until(states, {})
    faults.write_text("xid 0 13\nlost 1\n")
    await until(states, {uuids[1]: "does not answer (GPU is lost)"})
    faults.write_text("xid 2 79\n")
    await until(states, {uuids[2]: "XID 79"})
    faults.unlink()
    await until(states, {})
    await states.aclose()


@pytest.mark.parametrize("died", [False, True])
async def test_an_xid_is_remembered_until_the_administrator_speaks(tmp_path: Path, monkeypatch, died: bool):
    """Where the driver shows no reset a GPU stays unhealthy, also over the death of the process that saw it."""
    monkeypatch.setenv("ALIQUOT_EMULATOR_FAULTS", "nvml-no-recovery-action")
    monkeypatch.setattr("aliquot.node.health.AGAIN_S", 0.1)
    machine = emulated_machine("v100x2", tmp_path)
    unhealthy = {machine.gpus[0].uuid: "XID 79"}
    watch = HealthWatch(machine)

    states = watch.run()
    await until(states, {})
    (tmp_path / "faults").write_text("xid 0 79\n")
    await until(states, unhealthy)
    (tmp_path / "faults").unlink()
    if died:
        assert watch._child is not None
        watch._child.kill()
        await until(states, unhealthy)
    await watch.forget_xids([machine.gpus[0].uuid])
    await until(states, {})
    await states.aclose()
