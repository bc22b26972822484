"""The driver itself, and frameworks under the hook: right, seen by the arbiter, by every function they look up."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from base import (
    EMULATE,
    LIMIT_MIB,
    Missing,
    bare,
    check,
    engine,
    has,
    need,
    need_compiler,
    need_mounts,
    program,
    read_json,
    run_tenant,
)

FRAMEWORKS = ("bindings", "torch", "cupy", "triton", "numba", "jax")


@check(90)
def facts() -> dict[str, Any]:
    """What the driver answers where the emulated one only assumes; a difference is shown and is not a failure."""
    from facts import as_text, ask, compiled, table

    if not shutil.which("cc"):
        raise Missing("no C compiler")
    with tempfile.TemporaryDirectory(prefix="aliquot-facts-") as folder, bare() as environment:
        seen = table(ask(compiled(Path(folder)), environment))
    rows = [{**fact._asdict(), "differs": fact.differs} for fact in seen]
    return {"questions": len(seen), "differ": sum(fact.differs for fact in seen), "text": as_text(seen), "facts": rows}


def compute(framework: str, injection: str) -> dict[str, Any]:
    """A framework's arithmetic under the hook: right, seen by the arbiter, and inside its own memory view."""
    need({"bindings": "cuda.bindings"}.get(framework, framework))
    need_compiler(framework)
    need_mounts(injection)
    with engine() as (running, folder):
        out, held = folder / "out.json", folder / "held"
        seen = run_tenant(running, program("compute", framework, out, held), injection=injection, held=held)
        told = read_json(out)
    assert told["right"] or EMULATE, f"{framework} computed something else under {injection}"
    if told["total_bytes"] is not None:
        assert told["total_bytes"] == LIMIT_MIB << 20, f"{framework} sees {told['total_bytes']} bytes, not its limit"
    assert seen["charged_ms"] > 0, f"{framework} launched without the arbiter knowing"
    assert seen["context_mib"] > 0, f"the context of {framework} is not charged: {seen}"
    hook = told["hook"]
    assert hook, f"{framework} ran without the hook under {injection}"
    assert hook["disagreed"] == 0, f"{hook['disagreed']} intercepted names were handed out without their hook"
    assert hook["launches"] > 0, f"no launch of {framework} went through the hook: {hook}"
    return {**told, **seen}


for _framework in FRAMEWORKS:
    for _injection in ("substitute", "preload"):

        def _compute(framework: str = _framework, injection: str = _injection) -> dict[str, Any]:
            return compute(framework, injection)

        check(70, f"compute-{_framework}-{_injection}")(_compute)


@check(40)
def load_order() -> dict[str, Any]:
    """A program that opens `libcuda.so` first and `libcuda.so.1` later stays with the hook and its limit."""
    limit_mib, told = 2048, {}
    names = {name: name for name in ("libcuda.so", "libcuda.so.1")}
    for label, first in names.items():
        with engine() as (running, folder):
            out = folder / "out.json"
            words = ["torch"] if has("torch") and not EMULATE else []
            run_tenant(running, program("order", first, out, *words), memory_mib=limit_mib)
            told[label] = read_json(out)
    assert all(each["hook"] for each in told.values()), f"the second open is the bare driver: {told}"
    over = {label: each for label, each in told.items() if each.get("refused_at_mib", 0) > limit_mib}
    assert not over, f"refused beyond the limit of {limit_mib} MiB: {over}"
    return told


@check(30)
def nvidia_smi() -> dict[str, Any]:
    """nvidia-smi of a tenant shows the tenant's memory as the GPU's."""
    smi = shutil.which("nvidia-smi")
    if not smi or EMULATE:
        raise Missing("no nvidia-smi")
    with engine() as (running, folder):
        out = folder / "out"
        query = f"{smi} --query-gpu=memory.total --format=csv,noheader,nounits > {out}"
        seen = run_tenant(running, ["/bin/sh", "-c", query], seconds=25)
        shown_mib = [int(line) for line in out.read_text().split()]
    assert shown_mib == [LIMIT_MIB], f"nvidia-smi shows {shown_mib} MiB, not [{LIMIT_MIB}]"
    return {"shown_mib": shown_mib, **seen}
