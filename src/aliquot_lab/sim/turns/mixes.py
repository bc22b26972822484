"""Programs that share a GPU: what `aliquot sim turns` and `aliquot bench turns` run, by name (mixes.toml).

The misbehaviours each stand beside an honest neighbour that always wants the GPU and one that works and rests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from . import programs
from .programs import Program


@dataclass(frozen=True)
class Member:
    """One tenant: its shares in thousandths, its program, and how its processes behave towards the arbiter."""

    name: str
    request_milli: int
    limit_milli: int
    program: Program
    gpus: tuple[str, ...] = ("g0",)
    processes: int = 1
    late_ns: int = 0
    """How much later than others it asks after a turn."""
    clings: bool = False
    """It never gives a turn back that it does not use."""


@dataclass(frozen=True)
class Mix:
    """Tenants on one GPU or two; `wakes` is the one whose waits after a rest are reported."""

    name: str
    about: str
    members: tuple[Member, ...]
    wakes: str = ""
    clocked: bool = True
    """Whether the phases of all go by the clock, so that they can be held against the fluid."""
    suspect: str = ""
    """The tenant that misbehaves: what matters is what it gains and what the others get."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """All GPUs."""
        return tuple(sorted({gpu for member in self.members for gpu in member.gpus}))


_TABLE: Final = tomllib.loads(files(__package__).joinpath("mixes.toml").read_text("utf-8"))


def _member(
    name: str, *, share: tuple[int, int], program: Mapping[str, Any], gpus: Iterable[str] = ("g0",), **more: Any
) -> Member:
    ((kind, given),) = program.items()
    return Member(name, *share, getattr(programs, kind)(**given), tuple(gpus), **more)


def _mix(
    name: str, *, about: str, members: Mapping[str, Any] | None = None, requests: Iterable[int] = (), **more: Any
) -> Mix:
    named = [_member(member, **facts) for member, facts in (members or {}).items()]
    alike = [Member(f"t{number}", request, 1000, programs.irregular()) for number, request in enumerate(requests)]
    return Mix(name, about, (*named, *alike), **more)


def _misbehaviour(name: str, *, about: str, others: Mapping[str, Any] | None = None, **facts: Any) -> Mix:
    members = {"x": {"share": (300, 1000), **facts}, **_TABLE["neighbours"], **(others or {})}
    return _mix(name, about=about, members=members, suspect="x")


MIXES: Final = tuple(_mix(name, **facts) for name, facts in _TABLE["mixes"].items())
MISBEHAVIOURS: Final = tuple(_misbehaviour(name, **facts) for name, facts in _TABLE["misbehaviours"].items())
BY_NAME: Final[Mapping[str, Mix]] = {mix.name: mix for mix in (*MIXES, *MISBEHAVIOURS)}
