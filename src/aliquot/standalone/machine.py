"""The machine under an engine: the real driver's GPUs, or an emulated one made for it; and machines to think about."""

from __future__ import annotations

import shutil
import socket
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from aliquot.driver import emulation
from aliquot.driver.choice import check_named, choose
from aliquot.driver.discovery import find_driver
from aliquot.driver.gpu import Gpu
from aliquot.driver.gpu_lock import check_no_share
from aliquot.driver.policies import maker
from aliquot.lib.decoding import decode_json
from aliquot.model.errors import UserError
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Device
from aliquot.placement.cluster import LedgerError
from aliquot.placement.decide import Decider
from aliquot.placement.machine import DEFAULT_POLICY, MachineLedger
from aliquot.placement.saved import BadLedger, load
from aliquot.standalone.program import install_tools
from aliquot.tenancy.machine import SharedMachine, answering_gpus

WAY_OUT: Final = "Try an emulated one: aliquot run --emulate h100 -- ..."


@dataclass(frozen=True)
class Machine(SharedMachine):
    """The machine of one engine; `spec` is the emulation's, empty for a real driver."""

    spec: str = field(default="", kw_only=True)

    @property
    def emulated(self) -> bool:
        """Whether no real GPU is involved."""
        return bool(self.spec)

    def ledger(self, policy: str) -> MachineLedger:
        """An empty ledger of these GPUs, for placement by a policy of that name.

        Raises:
            UnknownPolicy: there is none; the text lists those there are.
        """
        return MachineLedger(self.gpus, topology=self.topology, by=maker(policy), node=socket.gethostname())


def imagined_ledger(spec: str, policy: str = "") -> MachineLedger:
    """An empty ledger of an emulated machine that is not created; its GPUs are named `GPU-0` and so on.

    Raises:
        UnknownProfile: no such profile.
        UnknownPolicy: no such policy.
    """
    profile, count = emulation.parse_spec(spec)
    devices = [Device(g, GpuUuid(f"GPU-{g}"), profile.model, profile.memory_mib) for g in range(count)]
    wired = emulation.profile_topology(profile, count)
    return MachineLedger(devices, topology=wired, by=maker(policy or DEFAULT_POLICY), node=spec)


def saved_cluster(text: str, name: str, by: str = "") -> Decider:
    """A decider for a ledger that was saved as JSON; `name` is its name in errors.

    Raises:
        UserError: they cannot be read.
        UnknownPolicy: no such policy.
    """
    made = maker(by or DEFAULT_POLICY)()
    try:
        return Decider(load(decode_json(text, dict[str, Any])), made)
    except (msgspec.DecodeError, BadLedger, LedgerError) as error:
        raise UserError(f"{name}: not the ledger of a cluster: {error}") from None


def find_machine(
    spec: str | None, directory: Path, *, only: str = "", excluded: str = "", fresh: bool = True
) -> Machine:
    """The emulated machine of a spec, made in `directory`, or this machine's own GPUs.

    They are those that `only` names, all where it is empty, but for those `excluded` (see `driver.choice`). One that is
    not `fresh` is as it was, for programs that run on it.

    Raises:
        UnknownProfile: no such profile.
        NoDriver: no spec, and no driver that answers or no GPU behind it.
        NoGpuLeft: no GPU is left.
        GpuTaken: this is a program of an engine.
    """
    if spec:
        if fresh:
            shutil.rmtree(directory, ignore_errors=True)
        emulated = emulation.prepare(directory, spec)
        install_tools(directory)
        profile = emulated.profile
        wired = emulation.profile_topology(profile, len(emulated.uuids))
        gpus = tuple(
            Gpu(index, GpuUuid(uuid), profile.model, profile.memory_mib, profile.driver, list(near), list(links), numa)
            for index, (uuid, near, links, numa) in enumerate(
                zip(emulated.uuids, wired.cores, wired.links, wired.numa, strict=True)
            )
        )
        folder = emulated.directory
        machine = Machine(gpus, emulated.libcuda, emulated.libnvml, folder, devices=None, seen=gpus, spec=spec)
    else:
        driver = find_driver()
        check_no_share(driver.libnvml)
        answering = answering_gpus(driver.libnvml, WAY_OUT)
        machine = Machine(tuple(answering.gpus), driver.libcuda, driver.libnvml, seen=answering.all_seen)
    check_named(machine.gpus, only, "--only-gpus")
    check_named(machine.gpus, excluded, "--not-gpus")
    return replace(machine, gpus=choose(machine.gpus, only=only, excluded=excluded).gpus)
