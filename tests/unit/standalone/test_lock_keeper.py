"""The process that keeps the GPUs of the machine's engine, as the engine starts it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aliquot.standalone import tenants
from aliquot.standalone.tenants import KEEPER_RETRY_S, LockKeeper


def test_a_keeper_that_cannot_be_written_down_is_ended_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A full disk does not cost a process at each look; the next engine could not end one that it does not know."""
    killed, now_s = list[int](), [1000.0]

    def start(*_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(pid=1, poll=lambda: 0, kill=lambda: killed.append(1))

    monkeypatch.setattr(tenants.subprocess, "Popen", start)
    monkeypatch.setattr(tenants.time, "monotonic", lambda: now_s[0])
    (tmp_path / "full").touch()
    runtime = SimpleNamespace(shared=True, runs=tmp_path / "runs", keeper=tmp_path / "full" / "keeper")
    keeper = LockKeeper(cast(Any, runtime), cast(Any, SimpleNamespace(descriptor=0)))
    counts = []
    for waited_s in (0.0, 1.0, KEEPER_RETRY_S):
        now_s[0] += waited_s
        keeper.keep()
        counts.append(len(killed))

    assert [1, 1, 2] == counts
