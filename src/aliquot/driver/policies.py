"""Placement policies of installed packages, which the pure core cannot import itself.

A package adds a policy with the entry point group `aliquot.policies`: the name is the entry point's, the object makes
the policy when called without arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from aliquot.model.errors import AliquotError
from aliquot.placement.policy import POLICIES, Policy, UnknownPolicy

GROUP: Final = "aliquot.policies"


class BrokenPolicy(AliquotError):
    """A policy of an installed package cannot be loaded."""


def policy_names() -> list[str]:
    """All policies, those of the core and those that packages add."""
    return sorted({*POLICIES, *(entry.name for entry in entry_points(group=GROUP))})


def maker(name: str) -> Callable[[], Policy]:
    """What makes a policy of that name; a name of the core cannot be taken by a package.

    Raises:
        UnknownPolicy: there is none; the text lists those there are.
        BrokenPolicy: its package cannot be loaded.
    """
    if name in POLICIES:
        return POLICIES[name]
    for entry in entry_points(group=GROUP, name=name):
        return _loaded(entry)
    raise UnknownPolicy(f'there is no policy "{name}"; there are {", ".join(policy_names())}')


def _loaded(entry: EntryPoint) -> Callable[[], Policy]:
    try:
        made: Callable[[], Policy] = entry.load()
    except Exception as error:
        raise BrokenPolicy(f'policy "{entry.name}" ({entry.value}) cannot be loaded: {error}') from None
    return made
