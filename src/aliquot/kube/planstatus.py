"""The annotation `aliquot.dev/plan-status`: the outcome of each container's part of a plan, as its node reports it.

`main: provisioned; side: waits (the arbiter is away)`, or `missing` for a container that runs without its share.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Outcome = Literal["provisioned", "waits", "refused", "missing"]
"""`waits` may resolve itself, `refused` never does, and of `missing` the container runs all the same."""
_MISSING: Final = re.compile(r"(?:^|; )([^:;]+): missing \(([^)]*)")


def written_outcome(container: str, outcome: Outcome, why: str) -> str:
    """What the annotation says of one container."""
    return f"{container}: {outcome}" + (f" ({why})" if why else "")


def read_missing(text: str) -> dict[str, str]:
    """Why each container that runs without its share does so, by name."""
    return dict(_MISSING.findall(text))
