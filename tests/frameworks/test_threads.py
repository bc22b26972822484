"""Threads that have no context yet."""

import pytest
from conftest import HERE, PROGRAMS, SHARE
from environments import python
from gpuruns import WAYS, Room


@pytest.mark.parametrize("way", WAYS)
def test_cufft_needs_a_context_in_its_thread(room: Room, way: str):
    """In a thread without a context cuFFT fails with CUFFT_EXEC_FAILED, as its launch does; with one it runs.

    It launches by the driver interface, which reads the calling thread's context, and makes none current.
    """
    argv = ["env", f"PYTHONPATH={PROGRAMS}", str(python("cuda13")), str(HERE / "clients" / "fft_threads.py")]
    facts = room.start(way, argv, share=SHARE).facts()

    assert {"cold": [0, 6], "warm": [0, 0]} == {name: facts[name] for name in ("cold", "warm")}
    assert (1, None if way == "alone" else 1) == (facts["emulator"], facts["gate"])
