"""A wait for an event is a wait for the record that was its last when it was asked for."""

import pytest

PLAY = """
import random
L = ctypes.CDLL("libcuda.so.1")
for function in (L.cuStreamWaitValue32_v2, L.cuStreamWriteValue32_v2):
    function.argtypes = [ctypes.c_void_p, ctypes.c_uint64] + [ctypes.c_uint] * 2
open_gpu(); room = int(ck(d.cuMemAllocHost(4096))); word = (ctypes.c_uint32 * 1024).from_address(room)
GATES, STEPS, STREAMS, EVENTS = 6, 24, 4, 3


class Game:
    '''Streams with gates, records and waits; each step ends in a word of its own, at 1 when the stream is past it.'''

    def __init__(self, seed, shared):
        self.random = random.Random(seed)
        ctypes.memset(room, 0, 4096)
        self.streams = [ck(d.cuStreamCreate(1)) for _ in range(STREAMS)]
        self.events = [ck(d.cuEventCreate(6)) for _ in range(EVENTS)]
        if shared:
            for event in self.events:
                ck(d.cuIpcGetEventHandle(event))
        self.last = [None] * EVENTS  # the step that recorded each event last
        self.steps = []  # (stream, gate it waits at or None, step it waits for or None)
        for _ in range(STEPS):
            self.step()

    def step(self):
        stream, event = self.random.randrange(STREAMS), self.random.randrange(EVENTS)
        kind, gate, awaited = self.random.choice(("gate", "record", "wait")), None, None
        handle = self.streams[stream]
        if kind == "gate":
            gate = self.random.randrange(GATES)
            assert 0 == L.cuStreamWaitValue32_v2(int(handle), room + 4 * gate, 1, 0)
        elif kind == "record":
            ck(d.cuEventRecord(self.events[event], handle)); self.last[event] = len(self.steps)
        else:
            ck(d.cuStreamWaitEvent(handle, self.events[event], 0)); awaited = self.last[event]
        assert 0 == L.cuStreamWriteValue32_v2(int(handle), room + 4 * (GATES + len(self.steps)), 1, 0)
        self.steps.append((stream, gate, awaited))

    def due(self, opened):
        '''Which steps are done when these gates are open: an earlier step of the stream, the gate, what is awaited.'''
        done, stuck = [], set()
        for stream, gate, awaited in self.steps:
            held = stream in stuck or not {gate} <= {None, *opened} or (awaited is not None and not done[awaited])
            done.append(not held)
            if held:
                stuck.add(stream)
        return done, [last is None or done[last] for last in self.last]

    def seen(self):
        '''The same by the words and by cuEventQuery.'''
        return [bool(word[GATES + n]) for n in range(STEPS)], [code(d.cuEventQuery(e)) == 0 for e in self.events]

    def play(self):
        '''Opens the gates in any order; what differed from what is due.'''
        opened, order = set(), self.random.sample(range(GATES), GATES)
        for gate in [None, *order]:
            if gate is not None:
                opened.add(gate); word[gate] = 1
            until = time.monotonic() + 5
            while self.seen() != self.due(opened) and time.monotonic() < until:
                time.sleep(0.0002)
            time.sleep(0.001)
            if self.seen() != self.due(opened):
                return [self.steps, sorted(opened), self.seen(), self.due(opened)]
        for stream in self.streams:
            ck(d.cuStreamSynchronize(stream)); ck(d.cuStreamDestroy(stream))
        return None
"""


@pytest.mark.parametrize("shared", [False, True], ids=["in one process", "that processes may share"])
def test_waits_follow_the_records_they_were_asked_after(clients, shared):
    """Random streams that record events and wait for them go on exactly as a plain model of the records says."""
    code = f"{PLAY}\nanswer([found for found in (Game(seed, {shared}).play() for seed in range(60)) if found][:1])"

    assert [] == clients("a100").run(code)


def test_a_newer_record_elsewhere_does_not_release_a_wait(clients):
    """A stream that waits for a record behind a long kernel stays, when the event is recorded in an idle stream."""
    released, synchronized = clients("a100").run("""
import threading
open_gpu(); k = Spinner(); idle, waits = (ck(d.cuStreamCreate(1)) for _ in range(2)); e = ck(d.cuEventCreate(2))
k.launch(200_000_000); ck(d.cuEventRecord(e, k.stream)); ck(d.cuStreamWaitEvent(waits, e, 0))
began = time.monotonic(); took = []
def wait(): open_gpu(); ck(d.cuEventSynchronize(e)); took.append(time.monotonic() - began)
t = threading.Thread(target=wait); t.start(); time.sleep(0.05)
ck(d.cuEventRecord(e, idle)); time.sleep(0.02); early = code(d.cuStreamQuery(waits)); t.join()
answer([early == 0, took[0]])
""")

    assert not released
    assert synchronized > 0.15


def test_a_newer_record_does_not_postpone_a_wait(clients):
    """A stream that waits for a record goes on at its end, while a newer one is behind a long kernel."""
    newer = clients("a100").run("""
open_gpu(); k = Spinner(); first, waits = (ck(d.cuStreamCreate(1)) for _ in range(2)); e = ck(d.cuEventCreate(2))
short = Spinner(stream=first); short.launch(20_000_000)
ck(d.cuEventRecord(e, first)); ck(d.cuStreamWaitEvent(waits, e, 0))
k.launch(4_000_000_000); ck(d.cuEventRecord(e, k.stream)); ck(d.cuStreamSynchronize(waits))
answer(code(d.cuEventQuery(e)))
""")

    assert 600 == newer
