"""The annotation `aliquot.dev/plan-status`: the outcome of each container's part of a plan, as its node reports it.

`main: seated; side: waits (the arbiter is away)`. The annotation says `seated` of a container that has its share, and
keeps that word for programs that read it; everywhere else the word is `provisioned`, which is read here as well.
"""

from __future__ import annotations

import re
from typing import Final

_WRITTEN: Final = {"provisioned": "seated"}
_HAS_ITS_SHARE: Final = re.compile(r"((?:^|; )[^:;]+: )(?:seated|provisioned)(?=;|$)")


def written_outcome(container: str, outcome: str, why: str) -> str:
    """What the annotation says of one container."""
    return f"{container}: {_WRITTEN.get(outcome, outcome)}" + (f" ({why})" if why else "")


def read_plan_status(text: str) -> str:
    """The annotation for people."""
    return _HAS_ITS_SHARE.sub(r"\1provisioned", text)
