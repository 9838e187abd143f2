"""Links of a daemon's sockets are of that very process, and where the kernel does not tell, of our own user."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuplane.node.host.mps import processes, sockets
from gpuplane.node.host.mps.processes import Process
from gpuplane.node.host.mps.sockets import DaemonSockets, SocketReplaced
from tests.node.host.mps.attack import NOBODY, needs_root

LISTEN = """
import os, socket, sys
os.chdir(sys.argv[1])
for name in sys.argv[2:]:
    s = socket.socket(socket.AF_UNIX)
    s.bind(name)
    s.listen()
    os.dup(s.detach())
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a pipe directory in it. Its path is short, for sockets lie in it."""
    with TemporaryDirectory(prefix="mps-") as name:
        Path(name, "pipe").mkdir(mode=0o755)
        yield Path(name)


@pytest.fixture
def listening() -> Iterator["Listening"]:
    """Starts processes that listen, and ends them."""
    with ExitStack() as stack:
        yield Listening(stack)


class Listening:
    """Processes that listen."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def __call__(self, folder: Path, *names: str) -> Process:
        """One, once it does."""
        process = self.stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", LISTEN, folder, *names], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        self.stack.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        found = processes.find_process(process.pid)
        assert found is not None
        return found


def held(folder: Path) -> set[str]:
    """The names of the links that there are."""
    return {path.name for path in (folder / "closed").iterdir()} - {processes.PID_FILE}


def test_a_daemons_sockets_are_linked_and_no_others(folder: Path, listening: Listening) -> None:
    """What else stands there under their names is of another kind, or of another process."""
    pipe = folder / "pipe"
    daemon = listening(pipe, "control")
    listening(pipe, "control_privileged")
    os.mkfifo(pipe / "control_lock")
    (pipe / "log").symlink_to("/dev/zero")
    DaemonSockets(pipe, folder / "closed").hold(daemon)
    assert held(folder) == {"control"}
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(folder / "closed/control"))


@pytest.mark.parametrize("kind", ["socket", "file", "missing"])
def test_a_control_socket_of_another_process_is_refused(folder: Path, listening: Listening, kind: str) -> None:
    """Its user is ours: it is asked whose it is."""
    pipe = folder / "pipe"
    daemon = listening(folder, "elsewhere")
    if kind == "socket":
        listening(pipe, "control")
    elif kind == "file":
        (pipe / "control").touch()
    with pytest.raises(SocketReplaced, match=str(folder)):
        DaemonSockets(pipe, folder / "closed").hold(daemon)
    assert held(folder) == set()


@needs_root
def test_where_the_kernel_does_not_tell_a_socket_of_our_user_counts(
    folder: Path, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without unix_diag, or a file system with numbers of its own."""

    def unknown() -> dict[int, tuple[int, int]]:
        raise FileNotFoundError

    for answer in (unknown, dict):
        monkeypatch.setattr(sockets, "_files_of_sockets", answer)
        pipe, ours = folder / "pipe", DaemonSockets(folder / "pipe", folder / "closed")
        daemon = listening(pipe, "control")
        os.chown(pipe / "control", NOBODY, NOBODY)
        with pytest.raises(SocketReplaced):
            ours.hold(daemon)
        os.chown(pipe / "control", 0, 0)
        ours.hold(daemon)
        ours.clear()
        assert held(folder) == set()
        assert list(pipe.iterdir()) == []


def test_links_are_kept_while_the_daemon_lives(folder: Path, listening: Listening) -> None:
    """What was found to be its own once is not asked again: a client may have replaced it since."""
    pipe, ours = folder / "pipe", DaemonSockets(folder / "pipe", folder / "closed")
    daemon = listening(pipe, "control")
    ours.hold(daemon)
    inode = (folder / "closed/control").stat().st_ino
    (pipe / "control").unlink()
    listening(pipe, "control")
    ours.hold(daemon)
    assert (folder / "closed/control").stat().st_ino == inode
    assert ours.mend() == ["control"]
    assert (pipe / "control").stat().st_ino == inode
    assert ours.mend() == []
