"""The nodes that these tests look at."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from volume_room import Room


@pytest.fixture
def room() -> Iterator[Room]:
    """A node with one tenant provisioned."""
    with closing(Room()) as made:
        yield made


@pytest.fixture(params=["emulated", "installed"])
def any_room(request: pytest.FixtureRequest) -> Iterator[Room]:
    """Such a node with an emulated driver that stays where it is, and with one that is installed as NVIDIA's is."""
    with closing(Room(installed=request.param == "installed")) as made:
        yield made
