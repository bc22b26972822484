"""Reads YAML and JSON that people write: manifests, configuration files, kubeconfigs.

libyaml's loader is ten times as fast as PyYAML's own, but it builds nested values by recursion in C and crashes the
process where they are nested too deeply. Its event parser does not recurse, so it measures the depth first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from aliquot.model.errors import UserError

MAX_DEPTH: Final = 100
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class BadYaml(UserError):
    """A text that is not YAML, or nested too deeply to be a manifest."""


def read_yaml(text: str, name: str = "") -> list[Any]:
    """Every document of a text that is not empty, as plain values.

    Args:
        text: One or several YAML or JSON documents.
        name: The file, for the message.

    Raises:
        BadYaml: One sentence with the file and the line.
    """
    try:
        _check_depth(text)
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
        BadYaml: One sentence with the file: it cannot be opened, or is not one document of YAML.
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


def _check_depth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, _LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            problem = f"it is nested more than {MAX_DEPTH} levels deep"
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
