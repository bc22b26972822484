"""What the arbiter and the hook agree on, byte for byte: the grant page and the messages.

This file is the one source. `tools/gen_abi.py` writes `native/include/aliquot_abi.h` from it, and a test compares the
two, so the C side cannot drift. All numbers are little endian; times are CLOCK_MONOTONIC nanoseconds; memory is bytes.

A *grant page* is one memfd per (tenant, GPU), sealed against writes by the tenant, written by the arbiter alone. The
hook reads `word` once per launch and sleeps on it with futex. `word` is `epoch << 2 | state`: a grant raises the epoch
and sets VALID, a revocation clears VALID and keeps the epoch, so an answer always names the grant it belongs to.

A *message* is 64 bytes on an AF_UNIX SOCK_SEQPACKET connection, one connection per process. HELLO, ATTACH, RESERVE and
SHARE are answered on the socket; every other request is answered, if at all, by the page. See docs/ARCHITECTURE.md.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

ABI_VERSION: Final = 1
PAGE_MAGIC: Final = 0x47514C41  # "ALQG"
PAGE_SIZE_BYTES: Final = 4096
MESSAGE_SIZE_BYTES: Final = 64


class Field(NamedTuple):
    """One field of a layout: name, offset in bytes, struct code (`I` = u32, `Q` = u64, `H` = u16, `16s`, `256I`)."""

    name: str
    offset: int
    code: str


# The first cache line says what the page is and never changes; the second is what the gate reads; the third is memory.
GRANT_PAGE: Final[tuple[Field, ...]] = (
    Field("magic", 0, "I"),
    Field("version", 4, "H"),
    Field("header_size", 6, "H"),
    Field("boot_id", 8, "Q"),
    Field("features", 16, "Q"),
    Field("gpu_uuid", 24, "16s"),
    Field("request_milli", 40, "I"),
    Field("limit_milli", 44, "I"),
    Field("fail_policy", 48, "I"),
    Field("window_ms", 52, "I"),
    Field("burst_gap_us", 56, "I"),
    Field("max_in_flight_us", 60, "I"),  # GPU time that may be queued where in_flight_us is 0; 0 = no bound
    Field("word", 64, "I"),
    Field("waiters", 68, "I"),
    Field("deadline_ns", 72, "Q"),
    Field("granted_at_ns", 80, "Q"),
    Field("in_flight_us", 88, "I"),  # GPU time that may be queued now: less while other tenants are attached
    Field("overlapping", 92, "I"),  # other tenants that may have work on the GPU now
    Field("memory_limit_bytes", 128, "Q"),
    Field("memory_leased_bytes", 136, "Q"),
    Field("memory_context_bytes", 144, "Q"),
    Field("process_count", 152, "I"),
    Field("memory_demand", 156, "I"),  # raised when a process was refused what another may have leased and not used
    Field("beat_ns", 160, "Q"),  # the arbiter's last sign of life; 0: it gives none
    Field("parked", 168, "I"),  # the number of the park that is on: calls of the driver wait for WAKE; 0: none
    Field("memory_calls", 172, "I"),  # raised with each change of what the programs are asked to give back
    Field("memory_max_bytes", 176, "Q"),  # what the tenant may hold at most, the part of it that is lent included
    Field("memory_back_bytes", 184, "Q"),  # lent to the tenant and called back; 0: nothing is
    Field("memory_back_by_ns", 192, "Q"),  # until then the programs are asked for it; 0: they are not asked yet
    Field("memory_lent_bytes", 200, "Q"),  # lent to others: called back where the guarantee of this tenant needs it
    Field("processes", 2048, "256I"),  # pids of the tenant's attached processes, for its own view of NVML
)

MESSAGE: Final[tuple[Field, ...]] = (
    Field("type", 0, "H"),
    Field("flags", 2, "H"),
    Field("gpu", 4, "I"),
    Field("seq", 8, "Q"),
    Field("a", 16, "Q"),
    Field("b", 24, "Q"),
    Field("c", 32, "Q"),
    Field("d", 40, "Q"),
    Field("uuid", 48, "16s"),
)
MESSAGE_STRUCT: Final = struct.Struct("<HHIQQQQQ16s")


class WordState(IntEnum):
    """The low two bits of the grant word."""

    CLOSED = 0
    VALID = 1


class Feature(IntEnum):
    """Bits of `features` in the grant page."""

    UNGATED = 1  # the tenant owns the GPU: `word` is VALID for good, no message about turns is expected


class FailPolicy(IntEnum):
    """What a tenant does while the arbiter is away and its last grant has run out."""

    PACE = 0  # run request x window, sleep the rest
    OPEN = 1  # run freely
    CLOSED = 2  # wait


class MessageType(IntEnum):
    """Requests of a tenant are below 64, answers of the arbiter above.

    REPORT may name a gpu, and in c the longest launch that the process lately saw of its own there (ns); its flags say
    what keeps the process's memory on the GPU.
    """

    HELLO = 1  # a = ABI version, b = features, c = pid as the tenant sees it        -> WELCOME | REFUSED
    ATTACH = 2  # uuid, flags; a second one may drop VIEW                            -> PAGE (+ fd) | REFUSED
    WANT = 3  # gpu, a = longest recent burst (ns); asks for the token                (no answer: the page)
    RETURN = 4  # gpu, a = epoch, c = burst ns: idle                                  (no answer)
    DRAINED = 5  # gpu, a = epoch, c = burst ns: the work of that grant has ended     (no answer)
    RESERVE = 6  # gpu, a = bytes needed, b = bytes liked (>= a), flags               -> LEASE | REFUSED
    RELEASE = 7  # gpu, a = bytes given back, b = the memory_demand this answers      (no answer)
    BYE = 8  # the process ends in order                                              (no answer)
    REPORT = (
        9  # a = functions handed out unhooked, b = ns launched before any arbiter was reached: sums; and c (no answer)
    )
    DENIED = 10  # gpu; an allocation was refused for the limit, after every try to make room     (no answer)
    SHARE = 11  # gpu, flags, a = bytes, b = descriptor, c = number or 0 for new memory  -> SHARED | REFUSED
    UNSHARE = 12  # gpu, a = number: the process holds that memory no more            (no answer)
    PARKED = 13  # gpu, a = parked of the page: from now on no call of the driver begins here (no answer)
    WAKE = 14  # gpu: a call of the driver waits for the tenant's memory to be back   (no answer: the page)
    WELCOME = 65  # a = boot id, b = WelcomeFeature bits, c = number of GPUs of the tenant
    REFUSED = 66  # a = Refusal, b = with TOO_MANY how many there may be
    PAGE = 67  # gpu = the slot to use from now on, uuid; the page's fd in SCM_RIGHTS
    LEASE = 68  # gpu, a = bytes granted (0 = over the limit), b = LeaseAnswer
    SHARED = 69  # gpu, a = the memory's number (0 = not known, or not taken), b = 1: known, and more than fits


class AttachFlag(IntEnum):
    """Bits of `flags` in ATTACH."""

    VIEW = 1  # the process only asks, for memory or for processes; it launches nothing and answers no revocation


class ReserveFlag(IntEnum):
    """Bits of `flags` in RESERVE."""

    CONTEXT = 1  # for a new context: a is ignored, the arbiter charges its allowance, later corrected by measurement
    RESTORE = 2  # after a reconnect: these bytes are held already, so they are charged even over the limit


class ShareFlag(IntEnum):
    """Bits of `flags` in SHARE."""

    EXPORT = 1  # the memory is of this process's lease, which pays no more for it; else it asks for what it imports


class ReportFlag(IntEnum):
    """Bits of `flags` in REPORT: what the process has used that a driver does not take off a GPU; and its answers."""

    UNIFIED = 1  # memory that moves as it is touched
    SHARED = 2  # memory or events that processes share
    PEERS = 4  # another GPU's memory, or memory of several
    GIVES_BACK = 8  # it listens to memory_calls: none of the above


class LeaseAnswer(IntEnum):
    """`b` of a LEASE of nothing; 0: it does not fit."""

    CONTENDED = 1  # not for certain, others of the tenant may give back; ask again
    CALLED_BACK = 2  # it is within the guarantee, and memory lent to other tenants is called back for it; ask again


class WelcomeFeature(IntEnum):
    """Bits of `b` in WELCOME."""

    SHARE = 1  # SHARE and UNSHARE are understood


class Refusal(IntEnum):
    """Why the arbiter refused; the hook turns each into one documented behaviour."""

    VERSION = 1
    NOT_YOURS = 2
    MALFORMED = 3
    TOO_MANY = 4
    GONE = 5


def word(epoch: int, state: WordState) -> int:
    """The grant word of an epoch (30 bits, wrapping) in a state."""
    return ((epoch & 0x3FFFFFFF) << 2) | int(state)
