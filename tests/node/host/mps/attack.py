"""What a client, or any pod, could try on the daemons of others. Each of these is a real process with real sockets."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuplane.node.host.mps.processes import CONTROL_PROGRAM, PIPE_DIRECTORY_VARIABLE, SERVER_PROGRAM
from tests.node.host.mps.world import World

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it plays another user, and root of a container")

FAKE = """
import os, socket, sys, threading
os.umask(0)
path, answer = sys.argv[1:3]
s = socket.socket(socket.AF_UNIX)
os.chdir(os.path.dirname(path))
s.bind(os.path.basename(path) + ".fake")
os.rename(os.path.basename(path) + ".fake", os.path.basename(path))
s.listen(64)
print(flush=True)
kept = []
while True:
    c, _ = s.accept()
    if answer:
        c.recv(1000)
        c.sendall(answer.encode())
        c.close()
    kept.append(c)
"""


AT_ONCE = """
import os, socket, sys
os.chdir(os.path.dirname(sys.argv[1]))
name = os.path.basename(sys.argv[1])
s = socket.socket(socket.AF_UNIX)
s.bind("mine")
s.listen()
print(flush=True)
while True:
    try:
        if not os.path.samefile(name, "mine"):
            os.link("mine", "again")
            os.rename("again", name)
    except FileNotFoundError:
        pass
"""


class Attacker:
    """Starts processes that are none of ours, and ends them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.started: list[subprocess.Popen[bytes]] = []

    def impostor(
        self, name: str, program: str, *, uid: int = NOBODY, apart: bool = False, more: Mapping[str, str] | None = None
    ) -> int:
        """A process that looks like a daemon or a server of a pipe directory; `apart`: in a namespace of processes."""
        command = [program, "-c", "sleep 3600; :", "-d"]
        prefix = ["unshare", "--pid", "--fork", "--kill-child"] if apart else []
        if apart:
            command = [*prefix, "bash", "-c", f"exec -a {program} sh -c 'sleep 3600; :' -d"]
        process = subprocess.Popen(
            command, executable=None if apart else "/bin/sh", user=uid, group=uid, extra_groups=[], process_group=0,
            env={PIPE_DIRECTORY_VARIABLE: str(self.world.pipe(name)), "PATH": os.environ["PATH"], **(more or {})},
        )  # fmt: skip
        self.started.append(process)
        return process.pid

    def daemon(self, name: str, **how: object) -> int:
        """An impostor of a control daemon."""
        return self.impostor(name, CONTROL_PROGRAM, **how)  # type: ignore[arg-type]

    def server(self, name: str, **how: object) -> int:
        """An impostor of a server."""
        return self.impostor(name, SERVER_PROGRAM, **how)  # type: ignore[arg-type]

    def listen(self, path: Path, answer: str = "") -> None:
        """A socket in the place of another, that answers so, or never."""
        self._run(FAKE, path, answer)

    def seize(self, path: Path) -> None:
        """A socket in the place of every other that is put there."""
        self._run(AT_ONCE, path)

    def _run(self, *code: str | Path) -> None:
        process = subprocess.Popen([sys.executable, "-c", *code], stdout=subprocess.PIPE, process_group=0)
        self.started.append(process)
        assert process.stdout is not None
        process.stdout.readline()

    def alive(self, pid: int) -> bool:
        """Whether nobody has ended it."""
        return next(each for each in self.started if each.pid == pid).poll() is None

    def end(self) -> None:
        """End them all, with their children."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
