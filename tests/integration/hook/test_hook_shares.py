"""Physical memory that leaves a process by descriptors: charged while one is open, and not a moment longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from test_hook_pools import POOLS

SHARES = (
    POOLS
    + """
def shown(mib=2):
    handle, fd, none = c.c_uint64(), c.c_int(), c.c_uint64(0)
    assert L.cuMemCreate(c.byref(handle), c.c_size_t(mib * MIB), c.byref(Prop(1, 1, Location(1, 0))), none) == 0
    assert L.cuMemExportToShareableHandle(c.byref(fd), handle, 1, none) == 0
    return handle, fd.value
def release(handle): assert L.cuMemRelease(handle) == 0
"""
)


def test_everything_that_is_closed_is_free_at_the_next_refusal(tenant):
    """However many pieces are exported, released and then closed, an allocation of the whole limit fits at once."""
    scene = tenant(memory_mib=700)
    program = scene.run(
        SHARES + "pieces = [shown() for _ in range(300)]; [release(h) for h, _ in pieces]; full = held()\n"
        "[os.close(fd) for _, fd in pieces]; say(full=full, whole=linear(700), held=held())"
    )

    assert program.read() == {"full": 600, "whole": 0, "held": 700}


@pytest.mark.parametrize("order", ["released first", "closed first", "mixed"])
def test_everything_that_is_closed_is_free_at_the_next_question(tenant, order):
    """After release and close, in any order, cuMemGetInfo shows all of the limit; what is open stays charged."""
    scene = tenant(memory_mib=1024)
    program = scene.run(
        SHARES + f"pieces = [shown() for _ in range(200)]; order = {order!r}\n"
        "def end(steps): [step() for step in steps]\n"
        "ends = [[lambda h=h: release(h), lambda fd=fd: os.close(fd)] for h, fd in pieces[:-1]]\n"
        "if order != 'released first': [pair.reverse() for pair in ends[::2 if order == 'mixed' else 1]]\n"
        "[first() for first, _ in ends]; [second() for _, second in ends]\n"
        "h, fd = pieces[-1]; twin = os.dup(fd); release(h); os.close(fd); kept = info(); os.close(twin)\n"
        "say(kept=kept, free=info(), held=held())"
    )

    assert program.read() == {"kept": 1022, "free": 1024, "held": 0}


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_without_proc_what_is_closed_is_free(tenant, tmp_path):
    """Where /proc is not to be seen, exported memory is charged while a descriptor is open, and free after that."""
    (tmp_path / "empty").mkdir()
    scene = tenant(memory_mib=256)
    program = scene.run(
        SHARES + f"pieces = [shown() for _ in range(50)]; os.chroot({str(tmp_path / 'empty')!r})\n"
        "twins = [os.dup(fd) for _, fd in pieces]; [(release(h), os.close(fd)) for h, fd in pieces]; kept = info()\n"
        "[os.close(fd) for fd in twins]; say(kept=kept, free=info(), held=held())"
    )

    assert program.read() == {"kept": 156, "free": 256, "held": 0}


def test_a_program_may_close_our_descriptors_and_use_their_numbers(tenant):
    """A program that closes all descriptors and opens files loses no more of these than it does to the driver alone."""
    code = (
        "from client import *\n" + SHARES + "h, _ = shown(64); os.closerange(3, 256)\n"
        "mine = [os.open('/dev/null', os.O_RDONLY) for _ in range(64)]; release(h)\n"
        "def lost(fd):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: return True\n"
        "say(lost=sum(map(bool, map(lost, mine))))"
    )
    scene = tenant(memory_mib=256)
    bare = {**scene.environment("library-path"), "LD_LIBRARY_PATH": str(scene.machine.directory)}
    alone = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, check=True)

    assert scene.start([sys.executable, "-c", code]).read() == json.loads(alone.stdout)
