"""What the tests of the sandbox share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.removal import remove


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: a socket's has 107 bytes."""
    root = Path(tempfile.mkdtemp(prefix="gp"))
    yield root
    remove(root)
