"""The JSON API, from the document that describes it to programs."""

from __future__ import annotations

import inspect
import json
from typing import Any

from aliquot.web.rest import document
from reference.markdown import code, page, table


def page_text() -> str:
    """Every path and record."""
    described = document("")
    paths = [(code(path), _words(ask["get"]), _answer(ask["get"]), ask["get"]["summary"])
             for path, ask in described["paths"].items()]  # fmt: skip
    records = [part for name, schema in described["components"]["schemas"].items() for part in _record(name, schema)]
    return page(
        "JSON API",
        "Served beside the pages of `aliquot up` and `aliquot scheduler --web`; `/api/v1/openapi.json` is this page "
        "for programs. Everything is read with GET. Fractions are thousandths of a GPU (`_milli`), memory is MiB, "
        "moments are seconds since 1970. Readers ignore fields that they do not know.",
        "Where tokens are asked for, send one with each request: `Authorization: Bearer TOKEN`. A status from 400 on "
        "comes with a `Problem`.",
        "## Paths",
        table(("path", "query", "answer", "what it tells"), paths),
        "## Records",
        *records,
    )


def _words(ask: dict[str, Any]) -> str:
    return ", ".join(code(each["name"]) for each in ask["parameters"] if each["in"] == "query")


def _answer(ask: dict[str, Any]) -> str:
    return _kind(ask["responses"]["200"]["content"]["application/json"]["schema"])


def _record(name: str, schema: dict[str, Any]) -> list[str]:
    head = f"### {_name(name)}"
    rows = []
    for field, part in schema.get("properties", {}).items():
        needed = field in schema.get("required", ())
        rows.append((code(field), _kind(part), "always" if needed else f"default {code(_text(part.get('default')))}"))
    return [head, inspect.cleandoc(schema.get("description", "")), table(("field", "type", ""), rows)]


def _text(value: object) -> str:
    return json.dumps(value)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = _name(schema["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower().replace(' ', '-')})"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return "one of " + ", ".join(code(value) for value in sorted(schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _name(component: str) -> str:
    """`Listing_Gpu_` -> `Listing of Gpu`."""
    generic, _, inner = component.partition("_")
    return f"{generic} of {inner.strip('_')}" if inner else generic
