"""Files that are not ours alone: how they are opened, written and trusted. Every room does it by these functions.

Whatever stands at a path may have been put there by somebody else: a FIFO that never answers, a device whose opening
does something, a link to another file, a file without an end. So
- `read` opens regular files only, never waits for one that writes, and stops at a bound;
- `replace` writes to a new file beside the old one and renames it: it follows no link and truncates nothing;
- `untrusted` says who else could put another thing at a path. What root mounts, executes or obeys lies on a path that
  only root can change.

It imports nothing of ours and no pathlib, for the process of the driver uses it too.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

Path = str | os.PathLike[str]

MOST = 16 * 1024 * 1024
"""Bytes that are read of a file where nobody says otherwise."""

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
}


def read(path: Path, most: int = MOST, *, follow: bool = True) -> bytes:
    """The content of a regular file of at most `most` bytes. Raises OSError, with what is wrong and the path.

    `follow`: whether the last part of the path may be a link (its target has to be a regular file all the same).
    """
    with opened(path, follow=follow) as file:
        parts: list[bytes] = []
        left = most + 1
        while left > 0 and (part := os.read(file, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes, the most that is read of it", os.fspath(path))
    return b"".join(parts)


@contextmanager
def opened(path: Path, *, follow: bool = True) -> Iterator[int]:
    """The descriptor of a regular file, open for reading. Raises OSError.

    What it is is asked before it is opened for reading: the opening of a device may do something. A link below /proc
    to the descriptor leads to the very file that was asked about.
    """
    name = os.fspath(path)
    found = os.open(name, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        kind = stat.S_IFMT(os.fstat(found).st_mode)
        if kind != stat.S_IFREG:
            raise OSError(
                errno.EINVAL, f"it is {KINDS.get(kind, 'something else')}, and has to be a regular file", name
            )
        try:
            file = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from None
    finally:
        os.close(found)
    try:
        yield file
    finally:
        os.close(file)


def replace(path: Path, content: bytes, *, mode: int = 0o600, sync: bool = True) -> None:
    """Give a file another content: after a crash at any point it has the old one or the new one. Raises OSError.

    It is written beside it as PATH.new, whatever stood there before, and renamed. `sync`: it is on disk then.
    """
    name = os.fspath(path)
    aside = f"{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(aside)
    file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(file, "wb") as stream:
            os.fchmod(file, mode)  # whatever the umask says
            stream.write(content)
            stream.flush()
            if sync:
                os.fsync(file)
        os.replace(aside, name)
    except OSError:
        with suppress(OSError):
            os.unlink(aside)
        raise
    if sync:
        sync_directory(os.path.dirname(name) or ".")


def sync_directory(path: Path) -> None:
    """Have the entries of a directory on disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def untrusted(path: Path) -> str:
    """Why somebody else than root or ourselves could put another thing at an absolute path; "" if nobody could.

    No part of it may be a link, each has to be owned by root or by our own user, and none may be writable by its group
    or by others. A directory on the way may be so if it is sticky (/tmp): then what is ours in it stays ours. Raises
    OSError where a part cannot be looked at.
    """
    at, parts = "/", [part for part in os.fspath(path).split("/") if part]
    if reason := weakness(os.lstat(at), on_the_way=bool(parts)):
        return f"{at} {reason}"
    for number, part in enumerate(parts, 1):
        at = os.path.join(at, part)
        if reason := weakness(os.lstat(at), on_the_way=number < len(parts)):
            return f"{at} {reason}"
    return ""


def weakness(found: os.stat_result, *, on_the_way: bool) -> str:
    """What lets somebody else than root or ourselves change it: "is a link", "is owned by uid 12" …; "" for nothing.

    `on_the_way`: it is a directory that leads to what is asked about, so being sticky is enough.
    """
    if stat.S_ISLNK(found.st_mode):
        return "is a link"
    if found.st_uid not in (0, os.geteuid()):
        return f"is owned by uid {found.st_uid}"
    shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if shared and not (on_the_way and found.st_mode & stat.S_ISVTX):
        return f"is writable by {'others' if shared & stat.S_IWOTH else 'its group'}"
    return ""
