"""Requests of an engine's tenants that follow what they used in the last day, when they start or while they run.

Both go up to the limit at most, and up only where there is room within the account's quota; both leave memory as it is,
and a request that is larger than needed by less than a quarter.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Final

from aliquot.lib.log import Logger
from aliquot.model.errors import AliquotError
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import GpuRequest, Recommend
from aliquot.standalone.accounts import Account, own_account
from aliquot.standalone.engine import Engine
from aliquot.standalone.wire import ResizeCall, Resized
from aliquot.status import StatusSource
from aliquot.status.history import RUN
from aliquot.status.rightsize import requests_of_a_day

FOLLOW_S: Final = 600.0
"""A request that follows while its program runs changes at most this often."""
_LOG: Final = Logger("engine")


class Recommending:
    """What says nothing does as the engine's `default`; where nothing is recorded, there are no `facts` to follow."""

    def __init__(self, engine: Engine, default: Recommend = "show") -> None:
        self.facts: StatusSource | None = None
        self._engine = engine
        self._default = default
        self._next_s = 0.0

    def at_start(self, name: str, request: GpuRequest, account: Account, owner: str = RUN) -> GpuRequest:
        """What a run, or a tenant of that owner, is to request when it starts."""
        follows = (request.recommend or self._default) == "initial" and request.request_milli < MILLI
        if not follows or self.facts is None:
            return request
        try:
            wanted = requests_of_a_day(self.facts.past)
            milli = wanted(name, owner, request.request_milli, request.ceiling_milli)
            memory = request.memory or Memory(part=Fraction(request.request_milli, MILLI))
            sized = replace(request, request_milli=milli, memory=memory)
            if milli > request.request_milli:
                self._engine.look(lambda ledger: self._engine.check_new(account, sized, ledger.plan(sized, again=True)))
        except AliquotError:  # there is no room for more
            return request
        except Exception as error:  # a history that cannot be read keeps nothing from starting
            _LOG.defect(f"no recommendation for {name}", error)
            return request
        return request if milli == request.request_milli else sized

    def follow(self, resize: Callable[[ResizeCall, Account], Resized]) -> None:
        """Change the requests that follow while their tenants run, every `FOLLOW_S`."""
        requests = self._engine.look(lambda ledger: {name: ledger.request_of(name) for name in ledger.plans})
        names = {name for name, each in requests.items() if (each.recommend or self._default) == "auto"}
        if self.facts is None or not names or time.monotonic() < self._next_s:
            return
        try:
            wanted = requests_of_a_day(self.facts.past)
            for share in (share for gpu in self.facts.gpus() for share in gpu.shares if share.tenant in names):
                self._next_s = time.monotonic() + FOLLOW_S
                before = share.request_milli
                milli = wanted(share.tenant, share.owner, before, share.limit_milli)
                if milli != before and before < MILLI:
                    with contextlib.suppress(AliquotError):  # where there is no room it stays as it is
                        resize(ResizeCall(share.tenant, share.tenant, milli), own_account())
                        _LOG.info(f"{share.tenant} follows its recommendation: request {before} to {milli} milli-GPU")
        except Exception as error:  # a history that cannot be read does not end the engine
            self._next_s = time.monotonic() + FOLLOW_S
            _LOG.defect("following recommendations failed", error)
