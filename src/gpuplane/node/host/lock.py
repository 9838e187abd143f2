"""The lock of a directory that is one process's at a time: the state directory, and that of the MPS supervisor.

It is `flock` on the file `lock` in it, which names its holder for whoever waits. The directory has to be ours alone: on
a path that somebody else could change the lock would say nothing.
"""

import asyncio
import errno
import fcntl
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gpuplane.base import files

UNKNOWN_OWNER = "an unknown process"


@asynccontextmanager
async def locked_directory(directory: Path, every: float = 0.5) -> AsyncIterator[AsyncIterator[str]]:
    """The directory's lock. Gives an iterator that yields who holds it, again and again, and ends once it is ours.

    Makes the directory where it is missing, closed to others. Raises OSError, also where somebody else could put
    another directory at its path.
    """
    lock = open_lock(directory)

    async def waiting() -> AsyncIterator[str]:
        while owner := try_lock(lock):
            yield owner
            await asyncio.sleep(every)

    try:
        yield waiting()
    finally:
        os.close(lock)


def open_lock(directory: Path) -> int:
    """The descriptor that is locked: of the file `lock`, or of the directory where that cannot be written.

    Makes the directory where it is missing, closed to others. Raises OSError.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "it is not a directory", str(directory)) from None
    if reason := files.untrusted_reason(directory, follow=True):
        way_out = (
            "users other than root could change the agent's state: run chown root and chmod go-w on it, or use "
            "another --state-dir"
        )
        raise OSError(errno.EPERM, f"{reason}: {way_out}", str(directory))
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if stat.S_IMODE(os.fstat(folder).st_mode) != 0o700:
            os.fchmod(folder, 0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        lock = os.open("lock", flags, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            return folder
        os.close(folder)
        raise OSError(error.errno, error.strerror, str(lock_file(directory))) from None
    os.close(folder)
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise OSError(errno.EINVAL, "it is not a regular file: remove it", str(lock_file(directory)))
    return lock


def try_lock(lock: int) -> str:
    """Take a lock, if it is free; who has it, "" once it is ours."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError):
            return os.pread(lock, 64, 0).decode(errors="replace").strip() or UNKNOWN_OWNER
        return UNKNOWN_OWNER
    with suppress(OSError):  # a disk that is full or read-only, or a directory's descriptor
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()}\n".encode(), 0)
    return ""


def lock_file(directory: Path) -> Path:
    """The file that is locked."""
    return directory / "lock"
