"""An agent without the rights that it needs says so at once, and once; one that needs none more says nothing."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from gpuplane.node.agent.options import Options
from gpuplane.node.agent.rights import lacks, useless
from gpuplane.node.host.rights import is_inaccessible, unwritable_directory
from gpuplane.sandbox.agent import Agent
from tests import nobody
from tests.golden import Golden
from tests.node.hardware.nvidia.driver.test_installed import as_nobody

DEADLINE = 60.0
ROOT = os.geteuid() == 0
UID = f" {nobody.NOBODY if ROOT else os.geteuid()} "


@pytest.fixture
def own() -> Iterator[Path]:
    """A directory of nobody's, which is reached by everybody; where tests do not run as root it is our own."""
    with tempfile.TemporaryDirectory(prefix="gp") as folder:
        if ROOT:
            os.chown(folder, nobody.NOBODY, nobody.NOBODY)
        yield Path(folder)


@pytest.fixture
def foreign() -> Iterator[Path]:
    """A directory that somebody else may look into, and no more."""
    folder = Path(tempfile.mkdtemp(prefix="gp"))
    folder.chmod(0o555)
    if ROOT:
        folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    rmtree(folder)


def program(user: int = nobody.NOBODY) -> tuple[str, ...]:
    """The agent's program, by a user without rights."""
    return (nobody.__file__, f"{user}", "-m", "gpuplane")


def refused(*arguments: object, user: int = nobody.NOBODY) -> str:
    """What an agent says that ends at once: one sentence, and the status is 1."""
    command = [sys.executable, *program(user), "agent", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    [line] = done.stderr.splitlines()
    return line


def test_an_agent_that_may_use_neither_directory_says_so_and_ends(foreign: Path, golden: Golden) -> None:
    """What it may not do, where, and what to do."""
    kubelet, state = foreign / "kubelet", foreign / "state"
    said = refused("--machine", "t4", "--kubelet-root", kubelet, "--state-dir", state)
    assert UID in said
    golden(said.replace(UID, " UID ").replace(str(foreign), "FOREIGN"))


def test_only_what_is_lacking_is_named(own: Path, foreign: Path, golden: Golden) -> None:
    """A directory that is there and closed is the one that stands in the way."""
    said = refused("--machine", "t4", "--kubelet-root", own, "--state-dir", foreign)
    golden(said.replace(UID, " UID ").replace(str(foreign), "FOREIGN"))


def test_root_without_capabilities_is_refused_as_others_are(own: Path, golden: Golden) -> None:
    """It is not the user's number that counts."""
    if not ROOT:
        pytest.skip("needs to be root")
    own.chmod(0o755)
    said = refused("--machine", "t4", "--kubelet-root", own, "--state-dir", own / "s", user=0)
    golden(said.replace(str(own), "OWN"))


async def test_an_agent_with_directories_of_its_own_says_nothing(own: Path) -> None:
    """Whoever it runs as: a described machine is served, and what it promises is kept."""
    agent = Agent(
        "--machine", "t4", "--kubelet-root", own / "k", "--state-dir", own / "s", "--mps-root", own / "mps",
        program=program(),
    )  # fmt: skip
    async with agent:
        await agent.until_says(f"state: ok: {own}/s")
        await agent.until_says("nvidia.com/gpu: 1 ")
    assert not [
        line for line in agent.log if os.strerror(errno.EACCES) in line or (" WARNING " in line and " (--" in line)
    ]


async def test_what_it_does_without_is_said_once(own: Path, foreign: Path, golden: Golden) -> None:
    """With what that costs. It serves all the same."""
    agent = Agent(
        "--machine", "t4", "--kubelet-root", own / "k", "--state-dir", own / "s", "--cdi-dir", foreign / "cdi",
        program=program(),
    )  # fmt: skip
    async with agent:
        await agent.until_says("nvidia.com/gpu: 1 ")
    [said] = [line for line in agent.log if "--cdi-dir" in line]
    assert " WARNING " in said
    golden(said.partition(" WARNING ")[2].replace(str(foreign), "FOREIGN").replace(UID, " UID "))


def test_an_agent_that_registers_nowhere_needs_no_directory_of_kubelets(own: Path, foreign: Path) -> None:
    """An empty --kubelet-socket says so."""
    if not ROOT:
        pytest.skip("needs to be root")
    with as_nobody():
        options = Options(kubelet_root=foreign, state_dir=own / "s")
        assert useless(options)
        assert not useless(options.but(registers=False))
        assert not lacks(options)


def test_a_socket_that_it_may_not_use_is_told(own: Path) -> None:
    """Of kubelet's list of what containers hold: without it nothing is offered. And a kernel log."""
    if not ROOT:
        pytest.skip("needs to be root")
    socket = own / "pod-resources/kubelet.sock"
    socket.parent.mkdir()
    socket.touch(0o600)
    with as_nobody():
        said = lacks(Options(kubelet_root=own, state_dir=own / "s", kernel_log=socket))
    assert said.count(f" {socket}") == 2
    assert "(--kernel-log)" in said


def test_what_is_no_matter_of_rights_is_left_to_others(tmp_path: Path) -> None:
    """A file in the place of a directory, a folder that can be made, and one that is there."""
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "a/b/c", tmp_path / "file", tmp_path / "file/a"):
        assert unwritable_directory(folder) is None
    assert not is_inaccessible(tmp_path / "nothing", os.R_OK)
    assert not is_inaccessible(tmp_path / "file", os.R_OK | os.W_OK)


def test_a_directory_that_cannot_be_looked_into_stands_in_the_way() -> None:
    """Where nobody can tell what is in it."""
    if not ROOT:
        pytest.skip("needs to be root")
    with tempfile.TemporaryDirectory(prefix="gp") as folder:
        inside = Path(folder) / "in"
        inside.mkdir(0o777)
        with as_nobody():
            assert unwritable_directory(inside) == Path(folder)
            assert is_inaccessible(inside / "x", os.R_OK)
