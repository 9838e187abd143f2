"""What every test of the judge is given."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def here() -> Iterator[Path]:
    """A folder with a short path, since sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="e2e-")).resolve()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
