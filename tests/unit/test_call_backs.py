"""What a program does that is asked for memory it was lent, with stand-ins that have the real libraries' names."""

import ctypes
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from aliquot import memory

MIB = 1 << 20


class Asking:
    """In place of the hook's function: asks once for each number of bytes in `sizes`."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = iter(sizes)
        self.asked = 0
        self.done = threading.Event()

    def __call__(self, calls, _wait_ms: int, by_ns) -> int:
        time.sleep(0.001)
        if (size := next(self.sizes, 0)) == 0:
            self.done.set()
            return 0
        self.asked += 1
        ctypes.cast(calls, ctypes.POINTER(ctypes.c_uint32))[0] = self.asked
        ctypes.cast(by_ns, ctypes.POINTER(ctypes.c_uint64))[0] = time.monotonic_ns() + 10**9
        return size


@pytest.fixture
def asking(monkeypatch):
    """A process with a share, whose hook asks for these sizes once something listens."""

    def start(*sizes: int) -> Asking:
        asks = Asking(*sizes)
        monkeypatch.setattr(memory, "_callbacks", [])
        monkeypatch.setattr(memory, "_wanted", lambda: asks)
        return asks

    return start


def test_each_callback_is_called_with_bytes_and_seconds_and_a_failing_one_stops_no_other(asking, caplog):
    """Once for each time that something else is asked for."""
    asks, got = asking(5 * MIB, 3 * MIB), []
    memory.on_call_back(Mock(side_effect=RuntimeError("no")))
    assert memory.on_call_back(lambda size, seconds: got.append((size, 0.5 < seconds <= 1)))
    assert asks.done.wait(10)

    assert [(3 * MIB, True)] == got[-1:]
    assert "gave no GPU memory back" in caplog.text


def test_adapters_call_what_the_libraries_have(asking, monkeypatch):
    """vLLM sleeps, SGLang releases, kvcached gets a smaller limit and a newer revision, PyTorch empties its cache."""
    llm, engine, control = Mock(spec=["sleep"]), Mock(spec=["release_memory_occupation"]), Mock()
    torch = SimpleNamespace(cuda=Mock(spec=["is_initialized", "empty_cache"]))
    monkeypatch.setitem(sys.modules, "torch", torch)
    for adapter in (
        lambda: memory.vllm(llm), lambda: memory.sglang(engine), memory.torch,
        lambda: memory.kvcached(control, limit_bytes=10 * MIB),
    ):  # fmt: skip
        asks = asking(4 * MIB, 8 * MIB)
        assert adapter()
        assert asks.done.wait(10)

    llm.sleep.assert_called_with(level=1)
    engine.release_memory_occupation.assert_called_with()
    torch.cuda.empty_cache.assert_called_with()
    assert [(6 * MIB,), (0,)] == [call.args for call in control.set_instance_memory_limit.call_args_list]
    assert [1, 2] == [call.kwargs["revision"] for call in control.set_instance_memory_limit.call_args_list]


def test_without_a_share_nothing_listens():
    """The process of this test has none."""
    assert memory.torch() is False
