"""Where one daemon lives: its directories, closed to others as far as clients of another user allow.

pipe   0755   sockets, which its clients connect to: mounted into their containers, and never replaced
log    0711   control.log and server.log; a server has the user of its clients
shm    1777   what server and clients share as /dev/shm; a tmpfs of its own, so that it fills nobody else's memory
"""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from gpuplane.host.mps.command import Failed, run

LONGEST = 107
"""Bytes that the path of a socket may have (sockaddr_un)."""
LABEL = b"system_u:object_r:container_file_t:s0\0"
"""What SELinux lets containers use; files get it from their directory."""

OWN_SHM = 'mount --bind "$1" /dev/shm && shift && exec "$@"'


class Place:
    """The directories of one daemon. `own_shm`: it has a tmpfs as /dev/shm, which takes the right to mount."""

    def __init__(self, root: Path, directory: str, own_shm: bool) -> None:
        self.home, self.own_shm = root / directory, own_shm
        self.pipe, self.log, self.shm = (self.home / each for each in ("pipe", "log", "shm"))

    async def prepare(self, deadline: float) -> None:
        """Make what is missing. Raises OSError, Failed."""
        if len(os.fsencode(self.pipe / "control_privileged")) > LONGEST:
            reason = "is too long for the path of a socket: give the resource or the root a shorter name"
            raise OSError(errno.ENAMETOOLONG, reason, str(self.pipe))
        for path, mode in ((self.home, 0o711), (self.pipe, 0o755), (self.log, 0o711), (self.shm, 0o1777)):
            path.mkdir(mode=0o711, parents=True, exist_ok=True)
            if path is self.shm and self.own_shm and not path.is_mount():
                options = "nosuid,nodev,noexec,mode=1777,size=50%"
                await run(("mount", "-t", "tmpfs", "-o", options, "gpuplane-mps", str(path)), deadline)
            path.chmod(mode)
        if Path("/sys/fs/selinux/enforce").exists():
            for path in (self.pipe, self.shm):
                os.setxattr(path, "security.selinux", LABEL)

    def within(self, *command: str) -> tuple[str, ...]:
        """A command that sees the daemon's own /dev/shm."""
        if not self.own_shm:
            return command
        return ("unshare", "--mount", "--propagation", "private", "sh", "-c", OWN_SHM, "sh", str(self.shm), *command)

    async def remove(self, deadline: float) -> None:
        """Take everything away. What is in use stays."""
        if self.shm.is_mount():
            with suppress(Failed):
                await run(("umount", str(self.shm)), deadline)
        for path in (self.pipe, self.log, self.shm):
            if not path.is_mount():
                shutil.rmtree(path, ignore_errors=True)
        for path in (self.home, *self.home.parents[:1]):
            with suppress(OSError):
                path.rmdir()
