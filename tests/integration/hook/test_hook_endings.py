"""Contexts that end while other threads allocate in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_hook_programs import compile_c


@pytest.fixture(scope="module")
def endings(tmp_path_factory) -> Path:
    """endings.c, built."""
    return compile_c("endings.c", tmp_path_factory.mktemp("endings") / "endings")


@pytest.mark.parametrize("how", ["destroy", "reset"])
def test_nothing_stays_charged_of_contexts_that_end_while_threads_allocate_in_them(tenant, endings, how):
    """What threads allocate and free in contexts that another ends is charged as long as the device lends it."""
    scene = tenant(memory_mib=4096, auto_grant=True, extra=("strict=0", "context_mib=0"))
    program = scene.start([str(endings), how, "3", "4"])
    stopped = program.read()
    held = scene.device_bytes()
    program.go()
    last = program.read()

    assert held <= stopped["reserved"]
    assert (0, 0, 0) == (last["reserved"], last["unbalanced"], scene.device_bytes())
    assert stopped["done"] > 1000
    assert stopped["ended"] > 20
