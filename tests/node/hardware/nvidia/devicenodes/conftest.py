"""Hosts, where nodes may be made."""

import os
import stat
from pathlib import Path

import pytest

from tests.node.hardware.nvidia.devicenodes.world import host


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return host(tmp_path / "host")


@pytest.fixture
def permitted(tmp_path: Path) -> None:
    """Skips a test where this machine lets nobody make device nodes."""
    try:
        os.mknod(tmp_path / "try", stat.S_IFCHR, os.makedev(195, 255))
    except OSError as error:
        pytest.skip(f"needs leave to make device nodes (root, CAP_MKNOD): {error.strerror}")
