"""Documents of any form are refused in sentences that name the field, the value and what is allowed."""

from typing import Annotated, Literal

import msgspec
import pytest

from aliquot.model.validation import sentence, shown


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """A part of the document."""

    size: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    kind: Literal["big", "small"] = "big"
    ratio: float | None = None
    names: dict[str, str] = {}


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    """A document."""

    items: list[Inner] = []
    code: Annotated[str, msgspec.Meta(pattern="^x+$", max_length=4)] = "x"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"items": [{}, {"size": 9}]}, "items[1].size: 9 is out of range; write at most 8"),
        ({"items": [{"size": 0}]}, "items[0].size: 0 is out of range; write at least 1"),
        ({"items": [{"size": "9"}]}, 'items[0].size: "9" is text; write a whole number'),
        ({"items": [{"kind": "huge"}]}, 'items[0].kind: "huge" is not known; write big or small'),
        ({"items": [{"ratio": False}]}, "items[0].ratio: false is a truth value; write a number"),
        ({"items": [{"names": {"a": "b", "c": 1.5}}]}, 'items[0].names["c"]: 1.5 is a number; write text, in quotes'),
        ({"items": [{"names": {"c": None}}]}, 'items[0].names["c"] is empty; write text'),
        ({"items": {}}, "items is a mapping; write a list"),
        ({"items": [{"sizes": 1}]}, 'items[0] has no field "sizes"; it knows size, kind, ratio, names'),
        ({"itms": []}, 'a document has no field "itms"; it knows items, code'),
        ({"code": "y"}, 'code: "y" is not of the form ^x+$'),
        ({"code": "xxxxx"}, 'code: "xxxxx" is longer than 4 characters'),
        ({1: 2}, "the document: the name of a field is not text; put it in quotes"),
        (7, "7 is a number; write a mapping"),
    ],
)
def test_the_field_the_value_and_what_is_allowed_are_named(document: object, expected: str):
    """Whatever is wrong, the sentence says where, what stands there, and what to write."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(document, Outer)

    assert expected == sentence(caught.value, document, Outer, called="a document")


def test_a_pattern_has_words():
    """A pattern that has words is explained by them."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"code": "y"}, Outer)

    assert 'code: "y" is no code; write x' == sentence(
        caught.value, {"code": "y"}, Outer, patterns={"^x+$": "no code; write x"}
    )


def test_a_long_value_is_cut():
    """A value of any length leaves the sentence readable."""
    assert len(shown("a" * 10_000)) < 100
