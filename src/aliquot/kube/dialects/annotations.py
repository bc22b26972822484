"""Annotations and labels as text: whose each is, what its value means, with every fault named by its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, TypeVar

from aliquot.model.quantities import BadQuantity

T = TypeVar("T")
_LIST: Final = re.compile(r"\s*[,|]\s*")
_PERCENT: Final = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)\s*%?")
_TEXT_MOST: Final = 8192
"""Characters of one annotation: two hundred UUIDs."""


def base_of(key: str) -> str:
    """An annotation's name without the container."""
    prefix, slash, rest = key.partition("/")
    return prefix + slash + rest.partition(".")[0]


def path_of(key: str) -> str:
    """Where an annotation stands in its pod."""
    return f'metadata.annotations["{key}"]'


class Texts:
    """Texts under a prefix, such as a pod's annotations; a container's own, `NAME.CONTAINER`, goes before the pod's.

    Faults are collected in `faults`, each with its path.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        faults: list[str],
        *,
        place: str = "metadata.annotations",
        prefix: str = "",
        container: str = "",
    ) -> None:
        self.faults = faults
        self._values, self._place, self._prefix, self._container = values, place, prefix, container

    def _key(self, name: str) -> str:
        own = f"{self._prefix}{name}.{self._container}"
        return own if self._container and own in self._values else f"{self._prefix}{name}"

    def where(self, name: str) -> str:
        """The path of a text."""
        return f'{self._place}["{self._key(name)}"]'

    def text(self, name: str) -> str:
        """A text as it is; empty where it is absent."""
        return self._values.get(self._key(name), "")

    def read(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The value of a text; None without it or when it is wrong, which is noted."""
        text = self._values.get(self._key(name))
        if text is not None and len(text) > _TEXT_MOST:
            self.faults.append(f"{self.where(name)} has {len(text)} characters; the most is {_TEXT_MOST}")
            return None
        return None if text is None else self.parse(self.where(name), text, parse)

    def parse(self, where: str, text: str, parse: Callable[[str], T]) -> T | None:
        """The value of a text that stands at `where`."""
        try:
            return parse(text)
        except BadQuantity as error:
            fault = f"{where}: {error}"
            if fault not in self.faults:
                self.faults.append(fault)
            return None


def parse_integer(text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`.

    Raises:
        BadQuantity: the text is none.
    """
    if not re.fullmatch(r"-?\d{1,12}", text.strip()) or not least <= int(text) <= most:
        raise BadQuantity(f'"{text}" is not a whole number between {least} and {most}')
    return int(text)


def parse_truth(text: str) -> bool:
    """`true` or `false`.

    Raises:
        BadQuantity: the text is neither.
    """
    if text not in ("true", "false"):
        raise BadQuantity(f'"{text}" is neither true nor false')
    return text == "true"


def parse_words(text: str) -> tuple[str, ...]:
    """Names with commas or strokes between.

    Raises:
        BadQuantity: there is none.
    """
    found = tuple(filter(None, _LIST.split(text.strip())))
    if not found:
        raise BadQuantity("it names nothing; write one name or several with commas between, or leave it out")
    return found


def parse_percent(text: str) -> Fraction:
    """A part of a device, up to 100 %.

    Raises:
        BadQuantity: the text is none.
    """
    found = _PERCENT.fullmatch(text.strip())
    part = Fraction(found[1]) / 100 if found else Fraction(0)
    if not 0 < part <= 1:
        raise BadQuantity(f'"{text}" is not a part of a device\'s memory; write 1% to 100%')
    return part
