"""Hand-overs that do not wait for the interpreter: prepared beforehand, carried out by a native thread.

After each turn of the loop the policy names the next tenant of a GPU, the length of its grant and how long that stands
(`TokenPolicy.upcoming`). `prepared` puts it into the form of native/handover: which connection's answer completes the
hand-over, which pages are stored. `NativeLoop` holds them in force. The arbiter takes all of them back when it wakes,
before it acts on anything, and accounts for what was carried out as of the time at which it was.

Source: native/handover/handover.h, whose structures are repeated here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from aliquot.tokens.actions import Upcoming

from .abi import MessageType
from .engine import Dispatcher
from .grants import GrantState, Process

MAX_PREPARED: Final = 64
LEAST_NS: Final = 50_000
"""A hand-over that is valid for less than this is not prepared."""


class _Prepared(ctypes.Structure):
    _fields_ = (
        ("holder_page", c_void_p),
        ("next_page", c_void_p),
        ("quota_ns", c_uint64),
        ("until_ns", c_uint64),
        ("until_wanting_ns", c_uint64),
        ("socket", c_int32),
        ("slot", c_uint32),
        ("answer", c_uint32),
        ("first_epoch", c_uint32),
        ("last_epoch", c_uint32),
        ("next_epoch", c_uint32),
    )


class _Done(ctypes.Structure):
    _fields_ = (("at_ns", c_uint64), ("number", c_uint32), ("messages", c_uint32))


@dataclass(frozen=True, slots=True)
class PreparedHandover:
    """When this process has answered, its tenant's grant ends and the next tenant's begins."""

    process: Process
    holder: GrantState
    next: GrantState
    next_epoch: int
    upcoming: Upcoming
    open: bool  # the holder's gate, which is then closed first

    @property
    def look_again_ns(self) -> int:
        """When the arbiter must read the connection: the hand-over may be void by then."""
        return self.upcoming.until_ns if self.holder.valid else self.upcoming.until_wanting_ns


class Done(NamedTuple):
    """A prepared hand-over that was carried out at this time; `messages` led to it and are yet to be read."""

    handover: PreparedHandover
    at_ns: int
    messages: int


class NativeLoop:
    """The thread of native/handover beside an arbiter that sleeps on the epoll with this descriptor."""

    def __init__(self, library: Path, epoll: int) -> None:
        """Start the thread.

        Raises:
            OSError: the library cannot be loaded, or the thread cannot be started.
        """
        # The interpreter lock is kept: each call takes microseconds, and letting another thread in would take longer.
        self._library = ctypes.PyDLL(str(library), use_errno=True)
        self._library.handover_start.restype = c_void_p
        self._library.handover_start.argtypes = [c_int]
        self._library.handover_arm.argtypes = [c_void_p, ctypes.POINTER(_Prepared)]
        self._library.handover_take.argtypes = [c_void_p, ctypes.POINTER(_Done)]
        self._library.handover_stop.argtypes = [c_void_p]
        self._done = (_Done * MAX_PREPARED)()
        self._armed: list[PreparedHandover] = []
        self._loop = self._library.handover_start(epoll)
        if not self._loop:
            raise OSError(ctypes.get_errno(), "the loop for hand-overs cannot be started")

    def arm(self, ready: PreparedHandover) -> bool:
        """Put one in force; False where it cannot be, and the arbiter hands over itself."""
        upcoming, holder = ready.upcoming, ready.holder
        native = _Prepared(
            holder_page=holder.page.address if ready.open else None,
            next_page=ready.next.page.address,
            quota_ns=upcoming.quota_ns,
            until_ns=upcoming.until_ns,
            until_wanting_ns=upcoming.until_wanting_ns,
            socket=ready.process.sock.fileno(),
            slot=holder.slot,
            answer=MessageType.RETURN if holder.valid else MessageType.DRAINED,
            first_epoch=holder.may_return(ready.process).start if holder.valid else holder.epoch,
            last_epoch=holder.epoch,
            next_epoch=ready.next_epoch,
        )
        if self._library.handover_arm(self._loop, ctypes.byref(native)) != len(self._armed):
            return False
        self._armed.append(ready)
        return True

    def take(self) -> Sequence[Done]:
        """Take all prepared hand-overs back; those that were carried out, in order of time."""
        if not self._armed:
            return ()
        armed, self._armed = self._armed, []
        count = self._library.handover_take(self._loop, self._done)
        return [Done(armed[done.number], done.at_ns, done.messages) for done in self._done[:count]]

    def close(self) -> None:
        """End the thread; prepared hand-overs in force are void."""
        if self._loop:
            self._library.handover_stop(self._loop)
            self._loop = None
        self._armed = []


def prepared(engine: Dispatcher, now_ns: int) -> Iterator[PreparedHandover]:
    """The hand-overs that one more message of one process completes, as of the tick at this time."""
    for gpu in engine.policy.gpus():
        upcoming = engine.policy.upcoming(gpu, now_ns)
        if upcoming is None:
            continue
        occupant = engine.tenants[upcoming.occupant]
        holder, following = occupant.gated[0], engine.tenants[upcoming.tenant].gated[0]
        if following.valid or following.draining or following.behind:
            continue
        if holder.behind or holder.stopped or occupant.stopping:  # its answer means something else
            continue
        if holder.valid:
            missing = holder.launching - holder.returned
            if not holder.users <= missing:
                continue
        else:
            missing = holder.pending if holder.draining else set()
        if len(missing) != 1:
            continue
        (process,) = missing
        if process.closed or process.paused:
            continue
        is_open = holder.valid or holder in engine.closing
        ready = PreparedHandover(process, holder, following, (following.epoch + 1) & 0x3FFFFFFF, upcoming, is_open)
        if ready.look_again_ns - now_ns >= LEAST_NS:
            yield ready
