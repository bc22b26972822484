"""What the pure core of placement cannot find itself: policies of installed packages, and its native inner loops.

A package adds a policy with the entry point group `aliquot.policies`: the name is the entry point's, the object makes
the policy when called without arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from aliquot.driver.native import KERNELS, NativePartMissing, native_part
from aliquot.model.errors import AliquotError
from aliquot.placement import kernels
from aliquot.placement.policy import POLICIES, Policy, UnknownPolicy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP: Final = "aliquot.policies"


class BrokenPolicy(AliquotError):
    """A policy of an installed package cannot be loaded."""


def policy_names() -> list[str]:
    """All policies, those of the core and those that packages add."""
    return sorted({*POLICIES, *(entry.name for entry in _entries())})


def maker(name: str) -> Callable[[], Policy]:
    """What makes a policy of that name; a name of the core cannot be taken by a package.

    Raises:
        UnknownPolicy: there is none; the text lists those there are.
        BrokenPolicy: its package cannot be loaded.
        NativePartMissing: as `use_kernels`.
    """
    use_kernels()
    if name in POLICIES:
        return POLICIES[name]
    for entry in _entries().select(name=name):
        try:
            made: Callable[[], Policy] = entry.load()
        except Exception as error:
            raise BrokenPolicy(f'policy "{entry.name}" ({entry.value}) cannot be loaded: {error}') from None
        return made
    raise UnknownPolicy(f'there is no policy "{name}"; there are {", ".join(policy_names())}')


def _entries() -> EntryPoints:
    from importlib.metadata import entry_points  # takes 20 ms, and most engines use a policy of the core

    return entry_points(group=GROUP)


@cache
def use_kernels() -> None:
    """Have placement use its native loops from now on, which policies need.

    Raises:
        NativePartMissing: the installation has none that load here.
    """
    try:
        kernels.use(str(native_part(KERNELS)))
    except NativePartMissing:
        raise
    except OSError as error:
        raise NativePartMissing(f"the inner loops of placement cannot be loaded: {error}") from None
