"""Label selectors in Kubernetes' grammar: `app=web,tier!=cache,stage in (a,b),owner,!debug`.

All terms have to hold. `!=` and `notin` also hold for what does not have the label, as in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aliquot.model.errors import UserError

_KEY: Final = r"(?:[A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_COMMA_OUTSIDE: Final = re.compile(r",(?![^()]*\))")
_EXISTS: Final = re.compile(rf"(!?)\s*({_KEY})")
_EQUALS: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_AMONG: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")


class BadSelector(UserError):
    """A text that is no label selector."""


@dataclass(frozen=True)
class Term:
    """One condition on one label; without values it is about the label's existence."""

    key: str
    values: frozenset[str]
    wanted: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it holds."""
        found = labels.get(self.key) in self.values if self.values else self.key in labels
        return found == self.wanted


def parse_selector(text: str) -> tuple[Term, ...]:
    """The terms of a selector; an empty text has none and selects everything.

    Raises:
        BadSelector: a term is not of the grammar.
    """
    return tuple(_term(part.strip(), text) for part in _COMMA_OUTSIDE.split(text)) if text.strip() else ()


def selects(selector: tuple[Term, ...], labels: Mapping[str, str]) -> bool:
    """Whether all terms hold."""
    return all(term.matches(labels) for term in selector)


def _term(part: str, text: str) -> Term:
    if found := _EXISTS.fullmatch(part):
        return Term(found[2], frozenset(), not found[1])
    if found := _EQUALS.fullmatch(part):
        return Term(found[1], frozenset([found[3]]), found[2] != "!=")
    if found := _AMONG.fullmatch(part):
        values = [value.strip() for value in found[3].split(",")]
        if all(re.fullmatch(_VALUE, value) for value in values):
            return Term(found[1], frozenset(values), found[2] == "in")
    raise BadSelector(
        f'selector "{text:.80}": "{part:.80}" is no condition on a label; write key=value, key!=value, key in (a,b), '
        "key notin (a,b), key or !key, with commas between them"
    )
