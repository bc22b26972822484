"""What the commands for SharePods share: how files are read and how the engine that is up is called."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from aliquot.model.errors import AliquotError, UserError
from aliquot.model.selectors import parse_selector, selects

if TYPE_CHECKING:
    from aliquot.arbiter.records import Status
    from aliquot.standalone.wire import Call


A = TypeVar("A")
MAX_TEXT: Final = 16 << 20
"""Of a file or standard input, in characters; devices have no end."""


class UnreadableFile(UserError):
    """The file that was named cannot be read."""


def read_text(file: str) -> str:
    """The text of a file; `-` is stdin.

    Raises:
        UnreadableFile: it does not exist, may not be read, or is not text.
    """
    if file == "-" and sys.stdin is None:
        raise UnreadableFile("- cannot be read: standard input is closed")
    try:
        with contextlib.nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="utf-8") as source:
            text = source.read(MAX_TEXT + 1)
    except UnicodeDecodeError:
        raise UnreadableFile(f"{file} cannot be read: it is not UTF-8 text") from None
    except OSError as error:
        raise UnreadableFile(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(text) > MAX_TEXT:
        raise UnreadableFile(f"{file} cannot be read: it is longer than {MAX_TEXT >> 20} MiB")
    return text


def ask_engine(call: Call[A]) -> A:
    """One call to the engine that is up, and its answer.

    Raises:
        NoEngine: none is up.
        EngineRefused: it said no.
    """
    from aliquot.standalone.client import ask
    from aliquot.standalone.paths import RuntimeDir, engine_dir

    return ask(RuntimeDir(engine_dir()), call)


def arbiter_status() -> Status | None:
    """What the arbiter of this machine measures; None where none answers."""
    from aliquot.standalone.wire import StatusCall

    try:
        return ask_engine(StatusCall()).status
    except AliquotError:
        return None


def selected(selector: str, namespace: str) -> list[str]:
    """The SharePods with these labels in a namespace, or in all where it is empty, by full name."""
    from aliquot.standalone.wire import InfoCall, PodsCall

    if namespace == "default":  # that of the account, where an engine serves several
        namespace = ask_engine(InfoCall()).namespace
    terms, inside = parse_selector(selector), f"{namespace}/" if namespace else ""
    pods = ask_engine(PodsCall()).pods
    return [pod.name for pod in pods if selects(terms, pod.labels) and pod.name.startswith(inside)]


def full_name(name: str, namespace: str = "") -> str:
    """`namespace/name` of what a person wrote: `notebook`, `research/notebook`, `sharepod/notebook`."""
    for kind in ("sharepod/", "sharepods/", "sp/", "pod/", "pods/", "po/"):
        name = name.removeprefix(kind)
    return name if "/" in name else f"{namespace or 'default'}/{name}"


def short_name(name: str) -> str:
    """Without the namespace where it is `default`."""
    return name.removeprefix("default/")
