"""A tree that nothing stands against."""

from pathlib import Path

import pytest
from release_scene import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Fit to be released."""
    return Tree(tmp_path / "tree")
