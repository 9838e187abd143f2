"""What every test of MPS may use."""

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.node.host.mps.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A root directory without a supervisor yet. Its path is short, for sockets lie in it."""
    with TemporaryDirectory(prefix="mps-") as folder:
        async with World(Path(folder)) as world:
            yield world
