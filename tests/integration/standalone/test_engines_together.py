"""Inference engines that start together size their caches as if each were alone on the GPU."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from spawning import engine_of, spawn
from waiting import eventually

from aliquot.standalone.engine import Engine

PROGRAMS = Path(__file__).with_name("programs")
WAYS = ("vllm", "sglang", "llama")
MEMORY_MIB = 13 * 1024


@pytest.fixture(scope="module")
def llama(built: Callable[..., Path]) -> Path:
    """The client in C."""
    return built("standalone/programs/engine.c")


@contextlib.contextmanager
def running(engine: Engine, folder: Path, llama: Path, ways: Sequence[str], memory_mib: int) -> Iterator[list[str]]:
    """Clients with a share each, started at once; what they have written once all of them have."""
    outs = [folder / f"{number}-{way}" for number, way in enumerate(ways)]
    tenants = []
    for way, out in zip(ways, outs, strict=True):
        argv = [llama, out] if way == "llama" else [sys.executable, PROGRAMS / "engine.py", way, out]
        tenants.append(spawn(engine, out.name, [str(word) for word in argv], request_milli=200, memory_mib=memory_mib))
    try:
        eventually(lambda: all(out.exists() and out.read_text() for out in outs), "all have started", 100)
        yield [out.read_text() for out in outs]
    finally:
        for tenant, out in zip(tenants, outs, strict=True):
            tenant.kill()
            tenant.wait()
            out.unlink(missing_ok=True)


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
def test_engines_that_start_together_size_their_caches_as_if_alone(tmp_path, llama, loading, monkeypatch):
    """Two and four at once, beside a tenant that takes and frees 20 GiB, are told at each step what each is alone."""
    monkeypatch.setenv("CUDA_MODULE_LOADING", loading)
    with engine_of("h100") as engine:
        alone = {}
        for way in WAYS:
            with running(engine, tmp_path, llama, [way], MEMORY_MIB) as told:
                alone[way] = json.loads(told[0])
        with running(engine, tmp_path, llama, ["neighbour"], 22 * 1024):
            for count in (2, 4, 4):
                ways = [WAYS[number % len(WAYS)] for number in range(count)]
                with running(engine, tmp_path, llama, ways, MEMORY_MIB) as told:
                    assert [alone[way] for way in ways] == [json.loads(text) for text in told]

    assert all(cache > 7 << 30 for cache, *_ in alone.values())
