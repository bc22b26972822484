"""What msgspec finds wrong with a document, as a sentence that names the field, the value and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, get_origin

import msgspec
from msgspec import inspect

_FOUND: Final = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<where>.*?)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`$")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`$")
_TYPE: Final = re.compile(r"Expected `(.*?)`(?:, got `(.*)`)?$")
_PATTERN: Final = re.compile(r"Expected `str` matching regex '(.*)'$")
_LENGTH: Final = re.compile(r"Expected `.*?` of length (<=|>=) (\d+)$")
_RANGE: Final = re.compile(r"Expected `.*?` (<=|>=) (\S+)$")
_KINDS: Final = {
    "str": "text", "int": "a number", "float": "a number", "bool": "a truth value", "object": "a mapping",
    "array": "a list",
}  # fmt: skip
_WANTED: Final = _KINDS | {"int": "a whole number", "bool": "true or false"}
_SHOWN: Final = 80


def sentence(
    error: msgspec.ValidationError,
    document: object,
    root: type[msgspec.Struct],
    *,
    patterns: Mapping[str, str] = {},
    others: tuple[type[msgspec.Struct], ...] = (),
    called: str = "",
) -> str:
    """What is wrong with `document`, which is no `root` and is `called` so.

    `patterns` says of a pattern what text it is not and what to write, `others` are base classes whose fields are too
    many to list.
    """
    found = _FOUND.match(str(error))
    assert found is not None
    what, where = found["what"], found["where"] or ""
    if found["key"]:
        return f"{where or 'the document'}: the name of a field is not text; put it in quotes"
    steps = [name or number for name, number in _STEP.findall(where)]
    if unknown := _UNKNOWN.match(what):
        known = _known(_type_at(root, steps), others)
        return f'{where or called or f"a {root.__name__}"} has no field "{unknown[1]}"; {known}'
    if missing := _MISSING.match(what):
        return f"{f'{where}.' if where else ''}{missing[1]} is missing"
    value, where = _value_at(document, steps, where, what)
    return _wrong(what, where, value, _type_at(root, steps), patterns)


def _wrong(what: str, where: str, value: object, kind: inspect.Type | None, patterns: Mapping[str, str]) -> str:
    """What is wrong with one value."""
    prefix = f"{where}: {shown(value)} is" if where else f"{shown(value)} is"
    if pattern := _PATTERN.match(what):
        return f"{prefix} {patterns.get(pattern[1], f'not of the form {pattern[1]}')}"
    if length := _LENGTH.match(what):
        return f"{prefix} {'longer' if length[1] == '<=' else 'shorter'} than {length[2]} characters"
    if bound := _RANGE.match(what):
        return f"{prefix} out of range; write at {'most' if bound[1] == '<=' else 'least'} {bound[2]}"
    if what.startswith("Invalid enum value"):
        return f"{prefix} not known; write {_choice(_literals(kind))}"
    if (wrong := _TYPE.match(what)) and wrong[2]:
        wanted = _wanted(wrong[1].split(" | "))
        write = f"write {wanted}{', in quotes' if wanted == 'text' and wrong[2] != 'null' else ''}"
        if wrong[2] == "null":
            return f"{where or 'the document'} is empty; {write}"
        if wrong[2] in ("object", "array"):
            return f"{where or 'the document'} is {_KINDS[wrong[2]]}; write {wanted}"
        return f"{prefix} {_KINDS.get(wrong[2], wrong[2])}; {write}"
    return f"{f'{where}: ' if where else ''}{what[:1].lower()}{what[1:]}"


def _wanted(words: list[str]) -> str:
    """What msgspec's words for types mean."""
    names = _WANTED | ({"int": "a number"} if "float" in words else {})
    return _choice(list(dict.fromkeys(names.get(word, word) for word in words if word != "null")))


def shown(value: object) -> str:
    """A value as it is written in JSON, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 4 :]}"


def _choice(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _value_at(document: object, steps: list[str], where: str, what: str) -> tuple[object, str]:
    """What stands at a place, and the place with the name of an entry where msgspec leaves it open."""
    value: Any = document
    for step in steps:
        if step == "..." and isinstance(value, dict):
            is_text = what.startswith("Expected `str`, got")  # then an entry that is text is not the wrong one
            name = next((name for name, inner in value.items() if not (is_text and isinstance(inner, str))), None)
            value, where = value.get(name), where.replace("[...]", f"[{json.dumps(str(name), ensure_ascii=False)}]", 1)
        elif isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None, where
    return value, where


def _type_at(root: type[msgspec.Struct], steps: list[str]) -> inspect.Type | None:
    """The type that is wanted at a place."""
    kind: inspect.Type | None = inspect.type_info(root)
    for step in steps:
        kind = _inner(kind, step)
    return kind


def _inner(kind: inspect.Type | None, step: str) -> inspect.Type | None:
    """The type of a field or an entry."""
    match kind:
        case inspect.Metadata(type=inner):
            return _inner(inner, step)
        case inspect.UnionType(types=types):
            return next((found for one in types if (found := _inner(one, step)) is not None), None)
        case inspect.StructType(fields=fields):
            return next((field.type for field in fields if field.encode_name == step), None)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return item
        case inspect.DictType(value_type=value):
            return value
    return None


def _literals(kind: inspect.Type | None) -> list[str]:
    """The words that are allowed."""
    match kind:
        case inspect.Metadata(type=inner):
            return _literals(inner)
        case inspect.UnionType(types=types):
            return [word for one in types for word in _literals(one)]
        case inspect.LiteralType(values=values):
            return [str(value) for value in values]
        case inspect.EnumType(cls=cls):
            return [str(each.value) for each in cls]
    return []


def _known(kind: inspect.Type | None, others: tuple[type[msgspec.Struct], ...]) -> str:
    """The fields of a type, but for those of `others`."""
    if isinstance(kind, inspect.UnionType):
        kind = next((one for one in kind.types if isinstance(one, inspect.StructType)), None)
    if not isinstance(kind, inspect.StructType):
        return "see the example in the documentation"
    made = get_origin(kind.cls) or kind.cls
    theirs = {field.name for base in others if issubclass(made, base) for field in msgspec.structs.fields(base)}
    own = [field.encode_name for field in kind.fields if field.name not in theirs]
    return f"it knows {', '.join(own)}{' and the fields of a pod in a cluster' if theirs else ''}"
