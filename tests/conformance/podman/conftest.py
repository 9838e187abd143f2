"""podman, where the machine has one, and a node whose driver is a tree of real files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.podman.box import SPECS, Failed, Podman, Seen, missing
from tests.conformance.podman.node import Node, install
from tests.node.host.hook import build
from tests.once import once


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """A CDI runtime."""
    if what := missing():
        pytest.skip(f"needs {what}, to make containers by podman")
    made = not SPECS.exists()
    SPECS.mkdir(parents=True, exist_ok=True)  # where the test's own is mounted, in other namespaces
    try:
        podman = Podman(tmp_path_factory.mktemp("podman"))
        podman.run(podman.root, script="true")
    except Failed as failed:  # nothing of ours has come into it
        pytest.skip(f"podman makes no containers here: {failed}")
    yield podman
    if made:
        SPECS.rmdir()


@pytest.fixture(scope="session")
def hook(shared: Path) -> Path:
    """Our hook."""
    if what := build.missing():
        pytest.skip(f"needs {what} to build the hook")
    return once(shared / "hook", build.build) / build.PROGRAM


@pytest.fixture(scope="session")
def bare(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What a container sees that has no device."""
    return podman.look(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver root."""
    return install(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def node(podman: Podman, driver: Path, tmp_path: Path) -> Node:
    """Two GPUs, and one in MIG mode."""
    return Node(tmp_path, driver)
