"""`aliquot doctor`: check this machine, and how to fix each problem."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from aliquot.arbiter import records
from aliquot.arbiter.records import Status
from aliquot.cli.calling import arbiter_status, ask_engine
from aliquot.cli.forms import show
from aliquot.cli.options import output_option
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
    """Check this machine: driver, protection level, and how to fix each problem; exit status 1 when there is one."""
    if not of_node and (config is not None or root != Path("/")):
        raise click.UsageError("--root and --config are about a node; give --node with them")
    return report(examine_node(root, config) if of_node else examine(), output)


def report(findings: Sequence[Finding], form: str) -> int:
    """Print findings, for people or for programs; the exit status."""
    sound = all(finding.state != "fault" for finding in findings)
    show(form, {"ok": sound, "findings": [asdict(finding) for finding in findings]}, lambda: _lines(findings))
    return 0 if sound else 1


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        yield f"{finding.state:<5}  {finding.what:<{width}}  {finding.found}"
        if finding.way_out:
            yield f"{'':<5}  {'':<{width}}  -> {finding.way_out}"


def examine_node(root: Path, config: Path | None) -> list[Finding]:
    """A node of a cluster, whose root is mounted at `root`.

    Raises:
        BadSettings: the agent's settings cannot be read.
    """
    from aliquot.node.doctor.checks import examine as examine_host
    from aliquot.node.doctor.reading import read_host
    from aliquot.node.settings import node_settings

    return examine_host(read_host(node_settings(config), root))


def examine() -> list[Finding]:
    """Everything, in the order in which it matters."""
    return [
        *_native(),
        *_driver(),
        *_injection(),
        *_protection(),
        *_extras(),
        *_engine(),
    ]


def _extras() -> list[Finding]:
    """The optional parts of the package, those that are missing with how they are installed."""
    from aliquot.model.extras import EXTRAS, adding, installed

    return [
        Finding(f"extra {extra}", "ok", "installed")
        if installed(extra)
        else Finding(f"extra {extra}", "note", "not installed", adding(extra))
        for extra in EXTRAS
    ]


def _native() -> list[Finding]:
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


def _injection() -> list[Finding]:
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
        return [Finding("injection", "ok", f"substitution, in a private mount namespace {how}")]
    way_out = (
        "programs run by library path instead, which a program can lose by clearing its environment; "
        "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0) or run as root"
    )
    return [Finding("injection", "note", f"library path; substitution is not possible ({reason})", way_out)]


def _protection() -> list[Finding]:
    return [
        Finding(
            "protection",
            "note",
            "cooperative: a library in the program enforces its share; a hostile program is not stopped",
            "for untrusted programs use MIG or separate machines; in a cluster the node's agent can audit",
        )
    ]


def _engine() -> list[Finding]:
    from aliquot.model.errors import AliquotError
    from aliquot.standalone.client import NoEngine
    from aliquot.standalone.paths import HISTORY_FILES, RuntimeDir, RuntimeDirError, runtime_dir, state_dir
    from aliquot.standalone.wire import InfoCall

    runtime = RuntimeDir(runtime_dir())
    try:
        facts = ask_engine(InfoCall())
    except NoEngine:
        runtime_finding = []
        try:
            existed = runtime.root.exists()
            runtime.create()
            if not existed:
                runtime.root.rmdir()
        except RuntimeDirError as error:
            runtime_finding = [Finding("runtime dir", "fault", str(error), "set ALIQUOT_RUNTIME_DIR")]
        found = [Finding("engine", "ok", f"none is up at {runtime.root}; a run starts its own")]
        return [*runtime_finding, *found, *_history([state_dir() / name for name in HISTORY_FILES])]
    except AliquotError as error:
        return [Finding("engine", "fault", str(error), f"look into {runtime.engine_log}; end it and start again")]
    machine = f"emulating {facts.emulate}" if facts.emulate else "on this machine's GPUs"
    up = f"up at {runtime.root}, {machine}, {facts.tenants} tenants, pid {facts.pid}"
    kept = [Path(facts.history)] if facts.history else []
    return [Finding("engine", "ok", up), *_arbiter(), *_history(kept)]


def _history(files: Iterable[Path]) -> list[Finding]:
    """What was put aside because it could not be read."""
    from aliquot.web.history.file import damaged_note

    way_out = "sqlite3 FILE .recover saves what can be read of it; delete it when you do not need it"
    notes = [note for file in files if (note := damaged_note(file))]
    return [Finding("history", "note", note, way_out) for note in notes]


def _arbiter() -> list[Finding]:
    """The arbiter's settings, and programs that NVML sees on GPUs with tenants and that are none of them."""
    status = arbiter_status()
    if status is None:
        return []
    kept = f"turns: {status.turns}, window {status.window_ms / 1000:g} s, when it is away: {status.fail_policy}"
    findings = [Finding("arbiter", "ok", kept), *unhooked(status)]
    pids = sorted({seen.pid for gpu in status.gpus for seen in gpu.unregistered})
    if not status.compared or not pids:
        return findings
    named = ", ".join(map(str, pids[:8])) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
    found = f"processes on shared GPUs that have no share: {named}"
    return [*findings, Finding("unregistered", "note", found, "start them with aliquot run, or end them")]


def unhooked(status: Status) -> list[Finding]:
    """Tenants whose programs got driver functions that the hook could not intercept, or ran unhooked."""
    told = records.unhooked(status)
    way_out = "their share or memory limit may not hold; report the driver's version with this line"
    return [Finding("hook", "fault", "; ".join(told), way_out)] if told else []
