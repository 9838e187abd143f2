"""Where one daemon lives: its directories, closed to others as far as clients of another user allow.

pipe   0755   sockets, which its clients connect to: mounted into their containers, and never replaced itself. A client
              that is root in its container can write there (sockets.py)
log    0711   control.log and server.log; a server has the user of its clients
shm    1777   what server and clients share as /dev/shm; a tmpfs of its own, so that it fills nobody else's memory
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.node.host.mps.command import CommandFailed, run_command
from gpuplane.node.host.mps.files import FILES_FOLDER
from gpuplane.node.host.mps.sockets import PIPE_DIRECTORY_MODE

MAX_SOCKET_PATH = 107
"""Bytes that the path of a socket may have (sockaddr_un)."""
LONGEST_SOCKET_NAME = "control_privileged"
SELINUX_LABEL = b"system_u:object_r:container_file_t:s0\0"
"""What SELinux lets containers use; files get it from their directory."""

OWN_SHM_SCRIPT = 'mount --bind "$1" /dev/shm && shift && exec "$@"'


class DaemonDirectories:
    """The directories of one daemon. `own_shm`: it has a tmpfs as /dev/shm, which takes the right to mount."""

    def __init__(self, root: Path, directory: str, own_shm: bool) -> None:
        self.home, self.own_shm = root / directory, own_shm
        self.pipe, self.log, self.shm = (self.home / each for each in ("pipe", "log", "shm"))
        self.closed = root / FILES_FOLDER / directory
        self.said = self.log / "start.log"

    async def prepare(self, deadline: float) -> None:
        """Make what is missing, and take back what is there. Raises OSError, CommandFailed."""
        for path in (self.pipe, self.closed):
            if len(os.fsencode(path / LONGEST_SOCKET_NAME)) > MAX_SOCKET_PATH:
                reason = "is too long for a socket's path: use a shorter name for the resource or the root"
                raise OSError(errno.ENAMETOOLONG, reason, str(path))
        self.home.mkdir(mode=0o711, parents=True, exist_ok=True)
        if reason := files.untrusted_reason(self.home.parent):
            raise OSError(errno.EPERM, f"{reason}: users other than root could end the daemon", str(self.home))
        _take(self.home, 0o711)
        for path, mode in ((self.pipe, PIPE_DIRECTORY_MODE), (self.log, 0o711), (self.shm, 0o1777)):
            with suppress(FileExistsError):
                path.mkdir(mode=0o711)
            if path is self.shm and self.own_shm and not path.is_mount():
                options = "nosuid,nodev,noexec,mode=1777,size=50%"
                await run_command(("mount", "-t", "tmpfs", "-o", options, "gpuplane-mps", str(path)), deadline)
            _take(path, mode)
        if Path("/sys/fs/selinux/enforce").exists():
            for path in (self.pipe, self.shm):
                os.setxattr(path, "security.selinux", SELINUX_LABEL, follow_symlinks=False)

    @contextmanager
    def output(self) -> Iterator[int]:
        """A new file for what a daemon says when it is started: a daemon may keep it. Raises OSError."""
        with suppress(FileNotFoundError):
            self.said.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        found = os.open(self.said, flags, 0o600)
        try:
            yield found
        finally:
            os.close(found)

    def within(self, *command: str) -> tuple[str, ...]:
        """A command that sees the daemon's own /dev/shm."""
        if not self.own_shm:
            return command
        return (
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            OWN_SHM_SCRIPT,
            "sh",
            str(self.shm),
            *command,
        )

    async def remove(self, deadline: float) -> None:
        """Take everything away. What is in use stays."""
        if self.shm.is_mount():
            with suppress(CommandFailed):
                await run_command(("umount", str(self.shm)), deadline)
        left = [str(path) for path in (self.pipe, self.log, self.shm) if not path.is_mount()]
        with suppress(CommandFailed):  # a program, for clients may have put anything there: as deep, and as much
            await run_command(("rm", "-rf", "--one-file-system", "--", *left), deadline)
        for path in (self.home, *self.home.parents[:1]):
            with suppress(OSError):
                path.rmdir()


def _take(path: Path, mode: int) -> None:
    """A directory of ours is as we made it, whatever its clients did."""
    with files.open_directory(path) as found:
        files.take_ownership(found, mode)
