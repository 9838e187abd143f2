"""The hook, and containers for it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.node.host.hook.build import PROGRAM, build, missing
from tests.node.host.hook.world import Container
from tests.once import once


@pytest.fixture(scope="session")
def hook(shared: Path) -> Path:
    """The program."""
    if what := missing():
        pytest.skip(f"needs {what} to build the hook")
    return once(shared / "hook", build) / PROGRAM


@pytest.fixture(scope="session")
def root() -> None:
    """What runtimes have when they call a hook."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a hook makes namespaces")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("needs to make mount namespaces, which this machine forbids")


@pytest.fixture
def container(root: None, hook: Path, tmp_path: Path) -> Container:
    """A container about to start, its image a glibc one, and beside it what is not its own."""
    return Container(tmp_path, hook)
