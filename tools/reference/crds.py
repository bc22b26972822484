"""The kinds of `aliquot.dev`, from the schemas that the API server gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gen_crds import files

from reference.markdown import code, page, table

SCOPES = {"Namespaced": "It is in a namespace", "Cluster": "It is in no namespace"}
Field = tuple[str, str, str, str]


def page_text() -> str:
    """Every kind."""
    return page(
        "Kinds of objects",
        "Group `aliquot.dev`, version `v1alpha1`. A field that is not marked *required* may be left out. `[]` behind a "
        "name is each entry of a list. `status` is written by Aliquot.",
        *(part for crd in files().values() for part in _kind(crd["spec"])),
    )


def _kind(spec: dict[str, Any]) -> Iterator[str]:
    version = spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    names = spec["names"]
    shown = ", ".join(column["name"] for column in version["additionalPrinterColumns"])
    short = ", ".join(code(name) for name in names["shortNames"])
    yield f"## {names['kind']}"
    yield (f"{schema['description']} {SCOPES[spec['scope']]}. `kubectl get {names['plural']}` ({short}) shows {shown}.")
    yield table(("field", "type", "rules", "what it is"), list(_fields(schema, "")))
    checks = list(_checks(schema, ""))
    if checks:
        yield "The API server refuses what breaks one of these:"
        yield table(("of", "rule"), checks)


def _fields(schema: dict[str, Any], path: str) -> Iterator[Field]:
    required = schema.get("required", ())
    for name, part in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        if not path and name in ("apiVersion", "kind", "metadata"):
            continue
        yield code(where), _type(part), _rules(part, name in required), part.get("description", "")
        yield from _fields(part, where)
        if "items" in part:
            yield from _fields(part["items"], f"{where}[]")


def _type(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if part.get("x-kubernetes-int-or-string"):
        return "text or number"
    if kind == "array":
        inner = part["items"].get("type", "anything")
        return f"list of {inner}"
    if kind == "object" and not part.get("properties"):
        return "object, any"
    return str(kind or "text or number")


def _rules(part: dict[str, Any], required: bool) -> str:
    found = ["required"] if required else []
    if "enum" in part:
        found.append("one of " + ", ".join(code(value) for value in part["enum"]))
    words = {
        "default": "default {}",
        "minimum": "at least {}",
        "maximum": "at most {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "minItems": "at least {} entries",
        "maxItems": "at most {} entries",
        "pattern": "pattern {}",
    }
    typed = "type" in part
    found += [text.format(code(part[key])) for key, text in words.items() if typed and part.get(key) not in (None, "")]
    if keys := part.get("x-kubernetes-list-map-keys"):
        found.append(f"one entry for each {code(keys[0])}")
    if needed := part.get("items", {}).get("anyOf"):
        found.append("each with " + " or ".join(code(each["required"][0]) for each in needed))
    return "; ".join(found)


def _checks(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield code(path), rule["message"]
    for name, part in schema.get("properties", {}).items():
        yield from _checks(part, f"{path}.{name}" if path else name)
    if "items" in schema:
        yield from _checks(schema["items"], f"{path}[]")
