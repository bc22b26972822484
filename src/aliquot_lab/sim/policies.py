"""Placement policies by name for the simulator: those of the core, and those that installed packages add.

FGD gets the mix of the whole trace beforehand, as its authors do; no other policy of the core sees more than what
has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping

from aliquot.driver.policies import maker, use_kernels
from aliquot.placement.asks import Shape
from aliquot.placement.policy import Policy


def made(name: str, mix: Mapping[Shape, int] | None = None) -> Policy:
    """A new policy; `mix` counts the pods to expect, for the policy that is defined on them.

    Raises:
        UnknownPolicy: no policy has that name; the text has the list.
        BrokenPolicy: an installed package's policy cannot be loaded.
    """
    use_kernels()
    if name == "fgd" and mix:
        from aliquot.placement.policies.fgd import Fgd, target_workload

        return Fgd(target_workload(mix))
    return maker(name)()


def parsed(text: str) -> list[str]:
    """The names of a list such as `fgd,aliquot`, each once.

    Raises:
        UnknownPolicy: an unknown or empty name.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        made(name)
    return names
