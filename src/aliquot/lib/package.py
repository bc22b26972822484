"""Facts about the installed package."""

from __future__ import annotations

from functools import cache

import msgspec

from aliquot.lib.decoding import decode_json


class Written(msgspec.Struct, frozen=True):
    """What any answer says about the program that gave it; nothing, for one from before answers said so.

    `wire` is the number of the protocol, which changes when the one side would misunderstand the other.
    """

    wire: int = 0
    version: str = ""


def of_another_version(who: str, line: bytes, wire: int, pid: int) -> str:
    """Why an answer of another program is not understood, with the remedy; empty if it is of this protocol."""
    try:
        theirs = decode_json(line, Written)
    except msgspec.MsgspecError:
        theirs = Written()
    if theirs.wire == wire:
        return ""
    age = "older" if theirs.wire < wire else "newer"
    versions = f"{theirs.version or 'no version'}, protocol {theirs.wire}; this is {version()}, protocol {wire}"
    return f"{who} is {age} than this program ({versions}); restart it: kill {pid}, then start it from this version"


@cache
def version() -> str:
    """Its version; `unknown` for a source tree that runs uninstalled."""
    from importlib import metadata  # loads the parsers of e-mail, which no start of a program should pay for

    try:
        return metadata.version("aliquot-gpu")
    except metadata.PackageNotFoundError:
        return "unknown"
