"""Builds stages and takes them down."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stage import Stage

from aliquot.driver.native import NativePartMissing


@pytest.fixture
def stage() -> Iterator[Callable[..., Stage]]:
    """Makes stages; the arguments are those of `Stage`."""
    made: list[Stage] = []

    def make(*args: str, **options: Any) -> Stage:
        try:
            made.append(Stage(*args, **options))
        except NativePartMissing as missing:
            pytest.skip(str(missing))
        return made[-1]

    yield make
    for one in made:
        one.close()
