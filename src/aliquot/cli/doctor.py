"""`aliquot doctor`: check this machine, and how to fix each problem."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from aliquot.arbiter.records import Status
from aliquot.arbiter.records import unhooked as unhooked_tenants
from aliquot.cli.calling import arbiter_status, ask_engine
from aliquot.cli.forms import show
from aliquot.cli.options import output_option
from aliquot.model.errors import AliquotError
from aliquot.model.extras import EXTRAS, adding, installed
from aliquot.model.findings import Finding


@click.command()
@click.option("--node", "of_node", is_flag=True, help="Check this machine as a node of a Kubernetes cluster.")
@click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path("/"),
              help="With --node: where the node's root is mounted, as in a container. [default: /]",
)  # fmt: skip
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path),
              help="With --node: the settings of its agent, as `aliquot node --config` reads them.",
)  # fmt: skip
@output_option
def doctor(of_node: bool, root: Path, config: Path | None, output: str) -> int:
    """Check this machine: driver, protection level, and how to fix each problem; exit status 1 when there is one.

    Example, the problems of this machine, as JSON:
      aliquot doctor -o json
    """
    if not of_node and (config is not None or root != Path("/")):
        raise click.UsageError("--root and --config are about a node; give --node with them")
    if not of_node:
        return report(examine(), output)
    from aliquot.node.doctor.checks import examine as examine_host
    from aliquot.node.doctor.reading import read_host
    from aliquot.node.settings import node_settings

    return report(examine_host(read_host(node_settings(config), root)), output)


def report(findings: Sequence[Finding], form: str) -> int:
    """Print findings, for people or for programs; the exit status."""
    sound = all(finding.state != "fault" for finding in findings)
    width = max(len(finding.what) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<5}  {finding.what:<{width}}  {finding.found}")
        if finding.way_out:
            lines.append(f"{'':<5}  {'':<{width}}  -> {finding.way_out}")
    show(form, {"ok": sound, "findings": [asdict(finding) for finding in findings]}, lambda: lines)
    return 0 if sound else 1


def examine() -> list[Finding]:
    """This machine, in the order in which it matters; last the optional parts of the package, and the engine."""
    protection = Finding(
        "protection",
        "note",
        "cooperative: a library in the program enforces its share; a hostile program is not stopped",
        "for untrusted programs use MIG or separate machines; in a cluster the node's agent can audit",
    )
    extras = [
        Finding(f"extra {extra}", "ok", "installed")
        if installed(extra)
        else Finding(f"extra {extra}", "note", "not installed", adding(extra))
        for extra in EXTRAS
    ]
    return [*_native(), *_driver(), _injection(), protection, *extras, *_engine()]


def _native() -> list[Finding]:
    """The parts in C: the hook, whose copies can name their tenant, and the emulated libraries."""
    from aliquot.driver.injection import InjectionError, patched
    from aliquot.driver.native import (
        EMULATED_CUDA,
        EMULATED_NVML,
        HOOK,
        NativePartMissing,
        native_part,
        wrong_processor,
    )
    from aliquot.standalone.paths import runtime_dir

    findings: list[Finding] = []
    if reason := wrong_processor(HOOK):
        return [Finding("processor", "fault", reason, "share GPUs on an x86-64 machine; aliquot sim works here")]
    for what, part in (("hook", HOOK), ("emulated CUDA", EMULATED_CUDA), ("emulated NVML", EMULATED_NVML)):
        try:
            path = native_part(part)
            if part == HOOK:
                patched(path.read_bytes(), runtime_dir() / "tenants/1/tenant.conf")
            findings.append(Finding(what, "ok", str(path)))
        except NativePartMissing:
            findings.append(
                Finding(what, "fault", f"{part} is not installed", "make setup, or install the wheel again")
            )
        except InjectionError as error:
            findings.append(Finding(what, "fault", str(error), "make setup"))
    return findings


def _driver() -> list[Finding]:
    """The NVIDIA driver and its GPUs."""
    from aliquot.driver.discovery import NoDriver, find_driver, find_gpus
    from aliquot.model.quantities import format_mib

    emulate = "use an emulated GPU: aliquot run --emulate h100 -- ..."
    try:
        driver = find_driver()
    except NoDriver:
        return [
            Finding("driver", "note", "no NVIDIA driver here (libcuda.so.1 or libnvidia-ml.so.1 not found)", emulate)
        ]
    try:
        found = find_gpus(driver.libnvml)
    except NoDriver as error:
        return [Finding("driver", "fault", str(error), f"check with nvidia-smi; or {emulate}")]
    gpus = found.gpus
    findings = [Finding("driver", "ok", f"{driver.libcuda} (version {gpus[0].driver if gpus else 'unknown'})")]
    if not gpus:
        findings.append(Finding("GPUs", "note", "the driver shows none", emulate))
    for gpu in gpus:
        findings.append(Finding(f"GPU {gpu.index}", "ok", f"{gpu.model}, {format_mib(gpu.memory_mib)}, {gpu.uuid}"))
        if gpu.mig:
            way_out = "nvidia-smi -mig 0 ends that mode"
            findings.append(Finding(f"GPU {gpu.index}", "note", "is in MIG mode, and is not shared", way_out))
    for silent in found.silent:
        name, _, why = silent.partition(": ")
        findings.append(Finding(name, "fault", f"does not answer: {why}", "reset it, or boot; the others are shared"))
    return findings


def _injection() -> Finding:
    """How the hook comes before the driver here."""
    from aliquot.driver.injection import probe_substitution
    from aliquot.driver.mounts import SYSTEM_CACHE, LinkerCacheError, ldconfig

    reason = probe_substitution()
    if not SYSTEM_CACHE.exists():
        reason = reason or f"{SYSTEM_CACHE} does not exist"
    try:
        ldconfig()
    except LinkerCacheError as error:
        reason = reason or str(error)
    if not reason:
        how = "as root" if os.geteuid() == 0 else "in a user namespace"
        return Finding("injection", "ok", f"substitution, in a private mount namespace {how}")
    way_out = (
        "programs run by library path instead, which a program can lose by clearing its environment; "
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0) or run as root"
    )
    return Finding("injection", "note", f"library path; substitution is not possible ({reason})", way_out)


def _engine() -> list[Finding]:
    """The engine that is up with its arbiter, or where one would be; and histories that could not be read."""
    from aliquot.standalone.client import NoEngine
    from aliquot.standalone.paths import (
        HISTORY_FILES,
        RuntimeDir,
        RuntimeDirError,
        closed_to_all_but,
        engine_dir,
        state_dir,
    )
    from aliquot.standalone.wire import InfoCall
    from aliquot.web.history.file import damaged_note

    runtime, findings = RuntimeDir(engine_dir()), []
    try:
        facts = ask_engine(InfoCall())
    except NoEngine:
        try:
            existed = runtime.root.exists()
            runtime.create()
            if not existed:
                runtime.root.rmdir()
        except RuntimeDirError as error:
            findings.append(Finding("runtime dir", "fault", str(error), "set ALIQUOT_RUNTIME_DIR"))
        none, other = f"none is up at {runtime.root}", _other_engine()
        if other:
            who, _, way_out = other.partition("; ")
            findings.append(Finding("engine", "note", f"{none}, and a run is refused: {who}", way_out))
        else:
            findings.append(Finding("engine", "ok", f"{none}; a run starts its own"))
        histories = [state_dir() / name for name in HISTORY_FILES]
    except AliquotError as error:
        if closed_to_all_but(runtime.root) is not None:
            who, _, way_out = str(error).partition("; ")
            return [Finding("engine", "note", who, way_out)]
        return [Finding("engine", "fault", str(error), f"look into {runtime.engine_log}; end it and start again")]
    else:
        machine = f"emulating {facts.emulate}" if facts.emulate else "on this machine's GPUs"
        up = f"up at {runtime.root}, {machine}, {facts.tenants} tenants, pid {facts.pid}"
        status = arbiter_status()
        findings += [Finding("engine", "ok", up), *([] if status is None else _arbiter(status))]
        histories = [Path(facts.history)] if facts.history else []
    way_out = "sqlite3 FILE .recover saves what can be read of it; delete it when you do not need it"
    notes = [note for file in histories if (note := damaged_note(file))]
    return findings + [Finding("history", "note", note, way_out) for note in notes]


def _other_engine() -> str:
    """Which other engine shares GPUs of this machine; empty where none does."""
    from aliquot.driver.discovery import NoDriver, find_driver, find_gpus
    from aliquot.driver.gpu_lock import GpuTaken, check_free

    try:
        libnvml = find_driver().libnvml
        check_free(libnvml, find_gpus(libnvml).gpus)
    except GpuTaken as error:
        return str(error)
    except (NoDriver, OSError):  # no GPUs, or no locks: no engine is in the way of another
        pass
    return ""


def _arbiter(status: Status) -> list[Finding]:
    """The arbiter's settings, and programs that NVML sees on GPUs with tenants and that are none of them."""
    turns = f"turns: {status.turns}, window {status.window_ms / 1000:g} s, when it is away: {status.fail_policy}"
    findings = [Finding("arbiter", "ok", turns), *unhooked(status)]
    pids = sorted({process.pid for gpu in status.gpus for process in gpu.unregistered})
    if not status.compared or not pids:
        return findings
    named = ", ".join(map(str, pids[:8])) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
    text = f"processes on shared GPUs that have no share: {named}"
    return [*findings, Finding("unregistered", "note", text, "start them with aliquot run, or end them")]


def unhooked(status: Status) -> list[Finding]:
    """Tenants whose programs got driver functions that the hook could not intercept, or ran unhooked."""
    sentences = unhooked_tenants(status)
    way_out = "their share or memory limit may not hold; report the driver's version with this line"
    return [Finding("hook", "fault", "; ".join(sentences), way_out)] if sentences else []
