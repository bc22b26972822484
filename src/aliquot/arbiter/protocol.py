"""One message of one process, checked and carried out.

Whatever is wrong with a message is the fault of that connection and ends that connection only.
"""

from __future__ import annotations

import socket
from typing import Final

from .abi import (
    ABI_VERSION,
    MESSAGE_SIZE_BYTES,
    MESSAGE_STRUCT,
    AttachFlag,
    LeaseAnswer,
    MessageType,
    Refusal,
    ReportFlag,
    ReserveFlag,
    ShareFlag,
    WelcomeFeature,
)
from .engine import Dispatcher
from .grants import GrantState, MemoryLease, Process, why_not_lent

_NO_UUID: Final = bytes(16)
_HELLO, _ATTACH, _WANT, _RETURN = map(
    int, (MessageType.HELLO, MessageType.ATTACH, MessageType.WANT, MessageType.RETURN)
)
_DRAINED, _RESERVE, _RELEASE, _BYE = map(
    int, (MessageType.DRAINED, MessageType.RESERVE, MessageType.RELEASE, MessageType.BYE)
)
_REPORT, _DENIED, _SHARE, _UNSHARE = map(
    int, (MessageType.REPORT, MessageType.DENIED, MessageType.SHARE, MessageType.UNSHARE)
)
_PARKED, _WAKE = int(MessageType.PARKED), int(MessageType.WAKE)
_EXPORT: Final = int(ShareFlag.EXPORT)
_VIEW: Final = int(AttachFlag.VIEW)
_CONTEXT, _RESTORE = int(ReserveFlag.CONTEXT), int(ReserveFlag.RESTORE)

TURN_TAKING: Final = frozenset((_WANT, _RETURN, _DRAINED))
"""First bytes of the messages after which the policy may have something to give."""


MAX_CLAIM_BYTES: Final = 1 << 50
"""What a tenant may claim to have held on one GPU: far more than any has, and few enough to be added up."""


class Misbehaved(Exception):
    """The connection broke the protocol; `refusal` says how."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.name)
        self.refusal = refusal


def answer(process: Process, kind: int, seq: int, *, gpu: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
    """Send one answer without ever waiting.

    Raises:
        OSError: the process does not read, or is gone.
    """
    process.sock.send(MESSAGE_STRUCT.pack(kind, 0, gpu, seq, a, b, c, 0, _NO_UUID), socket.MSG_DONTWAIT)


class Protocol:
    """The tenant verbs on an engine. `boot_id` goes into every WELCOME.

    On each GPU `max_processes` of a tenant may launch, and as many may only query, so that neither keep the others out.
    """

    def __init__(self, engine: Dispatcher, boot_id: int, max_processes: int) -> None:
        self._engine = engine
        self._boot_id = boot_id
        self._max_processes = max_processes

    def handle(self, process: Process, data: bytes, now_ns: int) -> bool:
        """Carry out one message; False if it was BYE.

        Raises:
            Misbehaved: it is no message, or not one that this process may send now.
            OSError: the answer could not be sent.
        """
        if len(data) != MESSAGE_SIZE_BYTES:
            raise Misbehaved(Refusal.MALFORMED)
        kind, flags, gpu, seq, a, b, c, _, uuid = MESSAGE_STRUCT.unpack(data)
        if not process.greeted and kind != _HELLO:
            raise Misbehaved(Refusal.MALFORMED)
        if kind == _WANT:
            self._engine.want(process, self._grant(process, gpu), a, now_ns)
        elif kind == _RETURN:
            self._engine.give_back(process, self._grant(process, gpu), a, c, now_ns)
        elif kind == _DRAINED:
            self._engine.drained(process, self._grant(process, gpu), a, c, now_ns)
        elif kind == _RESERVE:
            self._reserve(process, self._grant(process, gpu, restores=flags & _RESTORE), seq, a, b, flags, now_ns)
        elif kind == _RELEASE:
            self._release(process, self._grant(process, gpu), a, b, flags)
        elif kind == _SHARE:
            self._share(process, self._grant(process, gpu), seq, a, b, c, flags, now_ns)
        elif kind == _UNSHARE:
            self._grant(process, gpu).unshare(process, a)
        elif kind == _ATTACH:
            self._attach(process, seq, uuid, flags)
        elif kind == _DENIED:
            self._grant(process, gpu).memory_refusals += 1
        elif kind == _PARKED:
            if a == process.tenant.record.parked:
                self._grant(process, gpu).parked.add(process)
        elif kind == _WAKE:
            self._engine.wake(process.tenant, now_ns)
        elif kind == _REPORT:
            process.stays |= flags
            if flags & ReportFlag.GIVES_BACK:
                process.tenant.note_listeners()
            self._engine.report(process, a, b, now_ns)
            if c and gpu in process.leases:
                self._engine.note_kernel(process, process.tenant.grants[gpu], c)
        elif kind == _HELLO:
            if a != ABI_VERSION:
                raise Misbehaved(Refusal.VERSION)
            process.greeted = True
            count = len(process.tenant.grants)
            answer(process, MessageType.WELCOME, seq, a=self._boot_id, b=WelcomeFeature.SHARE, c=count)
        else:
            if kind != _BYE:
                raise Misbehaved(Refusal.MALFORMED)
            return False
        return True

    def _grant(self, process: Process, slot: int, *, restores: int = 0) -> GrantState:
        """A grant state of the process, which has restored what it held before if this message does not."""
        if slot not in process.leases:
            raise Misbehaved(Refusal.MALFORMED)
        grant = process.tenant.grants[slot]
        if grant.absent and not restores:
            grant.release(process.pid)
        return grant

    def _attach(self, process: Process, seq: int, uuid: bytes, flags: int) -> None:
        """Give the process the page; from its first ATTACH without VIEW on it takes part in turns."""
        grant = process.tenant.grant_of(uuid)
        if grant is None:
            answer(process, MessageType.REFUSED, seq, a=Refusal.NOT_YOURS)
            return
        alike = grant.attached - grant.launching if flags & _VIEW else grant.launching
        if process not in alike and len(alike) >= self._max_processes:
            raise Misbehaved(Refusal.TOO_MANY)
        if grant.slot not in process.leases:
            record = self._engine.leases.take(process.tenant.name, grant.gpu.uuid_bytes(), process.pid)
            process.leases[grant.slot] = MemoryLease(unsettled=1, record=record)  # what it held before comes next
            grant.attached.add(process)
            grant.show_processes()
        if not flags & _VIEW:
            process.tenant.lost = (0, "")
            self._engine.attach(process, grant)
        reply = MESSAGE_STRUCT.pack(MessageType.PAGE, 0, grant.slot, seq, 0, 0, 0, 0, uuid)
        socket.send_fds(process.sock, [reply], [grant.page.fd], socket.MSG_DONTWAIT)

    def _reserve(
        self, process: Process, grant: GrantState, seq: int, needed: int, liked: int, flags: int, now_ns: int
    ) -> None:
        lease = process.leases[grant.slot]
        borrows = grant.limit_bytes > grant.guarantee_bytes and not why_not_lent(process.tenant)
        if flags & _CONTEXT:
            given = self._reserve_context(process, grant, bool(flags & _RESTORE), borrows=borrows, now_ns=now_ns)
        elif flags & _RESTORE:
            if grant.leased_bytes + needed > MAX_CLAIM_BYTES:
                raise Misbehaved(Refusal.MALFORMED)
            grant.add(lease, needed)
            grant.release(process.pid)  # it is the last message of a process that restores
            lease.spare, given = True, needed
        else:
            given = grant.reserve(lease, needed, liked, borrows=borrows, now_ns=now_ns)
        open_yet = 0
        if not given and (needed or flags & _CONTEXT):  # a process that only wants an answer requests nothing
            waits = grant in grant.memory.needs
            open_yet = LeaseAnswer.CALLED_BACK if waits else LeaseAnswer.CONTENDED * grant.demand_memory(process)
        # Of memory only the process knows which refusal was its last try: it sends DENIED.
        grant.memory_refusals += bool(flags & _CONTEXT) and not given and not open_yet
        answer(process, MessageType.LEASE, seq, gpu=grant.slot, a=given, b=open_yet)

    def _reserve_context(
        self, process: Process, grant: GrantState, restore: bool, *, borrows: bool, now_ns: int
    ) -> int:
        """Charge one context's allowance; an allowance of 0 is answered with one byte that is not charged.

        The allowance is the smallest context measured on this GPU, and until there is one the record's value. The
        measured process may be one that hides memory, so above the record's value the allowance is at most twice that
        value and at most half of the tenant's memory, until this context itself is measured. What a process is charged
        already, for a context that was made past the hook, is part of the first one's.
        """
        lease = process.leases[grant.slot]
        guess = grant.gpu.context_mib << 20
        seen = self._engine.context_bytes.get(grant.gpu.uuid, 0)
        allowance = min(seen, max(guess, min(2 * guess, grant.guarantee_bytes // 2))) or guess
        more = max(0, allowance - (0 if lease.contexts else lease.context_bytes))
        room = grant.memory.room(grant, more, borrows=borrows, now_ns=now_ns) if not restore else more
        if more > room or not (restore or grant.guarantee_bytes):
            return 0
        if grant.context_bytes + more > MAX_CLAIM_BYTES:
            raise Misbehaved(Refusal.MALFORMED)
        lease.contexts += 1
        grant.add(lease, context=more)
        grant.take_over(process.pid, more)
        return max(1, allowance)

    def _share(
        self, process: Process, grant: GrantState, seq: int, size_bytes: int, descriptor: int, number: int, flags: int,
        now_ns: int,
    ) -> None:  # fmt: skip
        if not 0 < size_bytes < 1 << 50 or descriptor >= 1 << 31:
            raise Misbehaved(Refusal.MALFORMED)
        over = False
        if flags & _EXPORT:
            if not number and size_bytes > process.leases[grant.slot].leased_bytes:
                raise Misbehaved(Refusal.MALFORMED)
            number = grant.export(process, size_bytes, descriptor, number)
        else:
            number, over = grant.join(process, size_bytes, descriptor, now_ns)
        answer(process, MessageType.SHARED, seq, gpu=grant.slot, a=number, b=over)

    def _release(self, process: Process, grant: GrantState, given_back: int, demand: int, flags: int) -> None:
        lease = process.leases[grant.slot]
        if flags & _CONTEXT:
            if not lease.contexts:
                raise Misbehaved(Refusal.MALFORMED)
            grant.add(lease, context=-(lease.context_bytes // lease.contexts))
            lease.contexts -= 1
            lease.unsettled = 2
            return
        if given_back > lease.leased_bytes:
            raise Misbehaved(Refusal.MALFORMED)
        grant.add(lease, -given_back)
        lease.spare = lease.spare and not (lease.asked and demand >= lease.asked)
