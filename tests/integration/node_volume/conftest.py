"""The node that these tests look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from volume_room import Room


@pytest.fixture
def room() -> Iterator[Room]:
    """A node with one tenant seated."""
    made = Room()
    try:
        yield made
    finally:
        made.close()
