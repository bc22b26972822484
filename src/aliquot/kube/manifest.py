"""Reads YAML and JSON that people write: manifests, configuration files, kubeconfigs.

libyaml's loader is ten times as fast as PyYAML's own, but it builds nested values by recursion in C and crashes the
process where they are nested too deeply. Its event parser does not recurse, so it measures the depth first, and what
aliases expand to.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import yaml

from aliquot.model.errors import UserError
from aliquot.model.sharepod import SharePodManifest, parse_sharepod

MAX_DEPTH: Final = 100
MAX_ALIASED: Final = 1_000_000
"""Values, and characters of them, that the aliases (`*name`) of a text may stand for."""

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadYaml(UserError):
    """A text that is not YAML, or nested too deeply or expanded too far by its aliases to be a manifest."""


def read_yaml(text: str, name: str = "") -> list[Any]:
    """Every document of a text that is not empty, as plain values.

    Args:
        text: One or several YAML or JSON documents.
        name: The file, for the message.

    Raises:
        BadYaml: One sentence with the file and the line.
    """
    try:
        _check_events(text)
        return [document for document in yaml.load_all(text, _LOADER) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {min(mark.line + 1, max(1, len(text.splitlines())))}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        fault = f"{where}{problem}"
    except ValueError as error:  # a date or a number that only looks like one
        fault = str(error)[:100]
    except (AttributeError, TypeError):  # PyYAML's constructors trust what an explicit tag says
        fault = "a value does not fit its tag"
    raise BadYaml(f"{f'{name} is ' if name else ''}not readable as YAML: {fault}")


def read_yaml_file(path: Path) -> Any:
    """The only document of a file; None where it is empty.

    Raises:
        BadYaml: One sentence with the file: it cannot be opened, or is not a single YAML document.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise BadYaml(f"{path} is not readable as YAML: it is not UTF-8 text") from None
    except OSError as error:
        raise BadYaml(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    documents = read_yaml(text, str(path))
    if len(documents) > 1:
        raise BadYaml(f"{path} holds {len(documents)} YAML documents; it takes one")
    return documents[0] if documents else None


def read_sharepods(text: str, name: str = "") -> list[SharePodManifest]:
    """The SharePods of a YAML text; `name` is its file, for messages.

    Raises:
        BadYaml: no YAML, with the line.
        BadSharePod: one of them is invalid; then none is taken.
    """
    documents = read_yaml(text, name)
    if not documents:
        raise BadYaml(f"there is no SharePod in {name or 'this text'}")
    return [parse_sharepod(document) for document in documents]


def _check_events(text: str) -> None:
    """Refuse what the loader would crash on, keys that it would silently overwrite, and aliases that multiply.

    A key written twice is refused where it is a plain text: of `request: 0.3` and, below, `request: 0.5` the loader
    keeps the last. An alias costs the loader nothing, as the value is shared, but a program that writes the document
    out again writes it each time: twelve lines of nine aliases each become 9^12 values.
    """
    open_collections: list[_Collection] = []
    sizes: dict[str, float] = {}
    size = aliased = 0.0
    for event in yaml.parse(text, _LOADER):
        mark: Any = event.start_mark
        if isinstance(event, yaml.CollectionEndEvent):
            ended = open_collections.pop()
            if ended.anchor:
                sizes[ended.anchor] = size - ended.start
        elif isinstance(event, yaml.NodeEvent):
            if open_collections and isinstance(event, yaml.ScalarEvent):
                if first := open_collections[-1].key_before(event.value, mark.line + 1):
                    problem = f'the key "{event.value:.60}" stands in line {first} already; write it once'
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
            elif open_collections:
                open_collections[-1].step()
            if isinstance(event, yaml.AliasEvent):
                expanded = sizes.get(event.anchor or "", 0)  # the loader refuses an unknown one
                size += expanded
                aliased += expanded
                if aliased > MAX_ALIASED:
                    problem = f"its aliases stand for more than {MAX_ALIASED:,} values; write less, or write it out"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
                continue
            start = size
            size += 1 + len(event.value) if isinstance(event, yaml.ScalarEvent) else 1
            if isinstance(event, yaml.CollectionStartEvent):
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                open_collections.append(_Collection(is_mapping, event.anchor, start))
            if event.anchor:  # a collection that is still open would contain itself
                sizes[event.anchor] = size - start if isinstance(event, yaml.ScalarEvent) else math.inf
        if len(open_collections) > MAX_DEPTH:
            problem = f"it is nested more than {MAX_DEPTH} levels deep"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Collection:
    """A mapping or a list that is being read: its nodes are by turns keys and values if it is a mapping."""

    def __init__(self, is_mapping: bool, anchor: str | None, start: float) -> None:
        self.anchor = anchor
        self.start = start
        self._is_mapping = is_mapping
        self._at_key = is_mapping
        self._lines: dict[str, int] = {}

    def step(self) -> None:
        """A node that is no plain text."""
        self._at_key = self._is_mapping and not self._at_key

    def key_before(self, text: str, line: int) -> int:
        """A plain text; the line of the same key before it, 0 if there is none or this is a value."""
        was_key = self._at_key
        self.step()
        if not was_key or text == "<<":
            return 0
        first = self._lines.get(text, 0)
        self._lines[text] = line
        return first
