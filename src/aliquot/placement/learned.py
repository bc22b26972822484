"""What a policy has learned, as a text to keep and to go on from.

Two lines of JSON: a header with the version, the policy's name and the SHA-256 of the second line, and what the policy
itself wrote. A text that is damaged, of another version or of another policy is refused whole; a policy goes on as it
was, and starting afresh is always safe. The caller decides where it is stored: a file, or an object of the API server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from aliquot.model.errors import AliquotError
from aliquot.placement.policy import Policy

VERSION: Final = 1
MAX_BYTES: Final = 512 * 1024
"""Half of what an object of the API server may have. 4,096 arrivals of 125 shapes take 24 KiB."""
_LEAST_PART: Final = 1 / 1024


class BadMemory(AliquotError):
    """A record of what was learned that cannot be read."""


@runtime_checkable
class Learner(Protocol):
    """A policy that can save what it has learned. Other policies are not saved and start fresh each time."""

    def dump(self, part: float = 1.0) -> Mapping[str, Any]:
        """What was learned, fit for JSON; with a `part` below 1 only about so much of it, the latest."""

    def load(self, record: Mapping[str, Any]) -> None:
        """Go on from such a record.

        Raises:
            BadMemory: it cannot be read; nothing is changed.
        """


def pack(policy: Policy) -> str:
    """The text to keep, in ASCII and at most `MAX_BYTES` long; empty for a policy that has nothing to say.

    What would be longer is cut to its latest half, again and again.
    """
    if not isinstance(policy, Learner):
        return ""
    part = 1.0
    while part >= _LEAST_PART:
        body = json.dumps(policy.dump(part), separators=(",", ":"))
        header = {"version": VERSION, "policy": policy.name, "sha256": hashlib.sha256(body.encode()).hexdigest()}
        text = f"{json.dumps(header)}\n{body}\n"
        if len(text) <= MAX_BYTES:
            return text
        part /= 2
    return ""


def unpack(policy: Policy, text: str) -> None:
    """Let a policy go on from a text that `pack` made of one of its name.

    Raises:
        BadMemory: it is none, is damaged, or is another policy's; the policy is as it was.
    """
    if not isinstance(policy, Learner):
        return
    if len(text) > MAX_BYTES:
        raise BadMemory(f"it has {len(text)} characters, {MAX_BYTES} are the most")
    head, _, body = text.partition("\n")
    body = body.removesuffix("\n")
    try:
        header = json.loads(head)
        version, name, checksum = (header[key] for key in ("version", "policy", "sha256"))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise BadMemory("its first line is not a header of what a policy has learned") from None
    if version != VERSION:
        raise BadMemory(f"it is of version {version}, this program reads version {VERSION}")
    if name != policy.name:
        raise BadMemory(f'it is of the policy "{name}", not of "{policy.name}"')
    if checksum != hashlib.sha256(body.encode()).hexdigest():
        raise BadMemory("it does not have the checksum that it was written with")
    try:
        policy.load(json.loads(body))
    except BadMemory:
        raise
    except Exception as fault:  # a third-party policy; a failure to load must not stop the program
        raise BadMemory(f"the policy cannot read it ({fault!r})") from fault
