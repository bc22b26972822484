"""The nodes that these tests look at."""

from collections.abc import Iterator

import pytest
from volume_room import Room


@pytest.fixture
def room() -> Iterator[Room]:
    """A node with one tenant provisioned."""
    made = Room()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["emulated", "installed"])
def any_room(request: pytest.FixtureRequest) -> Iterator[Room]:
    """Such a node with an emulated driver that stays where it is, and with one that is installed as NVIDIA's is."""
    made = Room(installed=request.param == "installed")
    try:
        yield made
    finally:
        made.close()
