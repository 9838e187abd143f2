"""Files that are not ours alone: how they are opened, written and trusted. Every room does it by these functions.

Whatever stands at a path may have been put there by somebody else: a FIFO that never answers, a device whose opening
does something, a link to another file, a file without an end. So
- `read` opens regular files only, never waits for one that writes, and stops at a bound;
- `replace` writes to a new file beside the old one and renames it: it follows no link and truncates nothing;
- `untrusted_reason` says who else could put another thing at a path. What root mounts, executes or obeys lies on a
  path that only root can change.

It imports nothing of ours and no pathlib, for the process of the driver uses it too.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

Path = str | os.PathLike[str]

MAX_FILE_BYTES = 16 * 1024 * 1024
"""Bytes that are read of a file where nobody says otherwise."""

MAX_LINKS = 40
"""Links that one path may lead over, as for the kernel."""

FILE_TYPE_NAMES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
}


def read(path: Path, max_bytes: int = MAX_FILE_BYTES, *, follow: bool = True) -> bytes:
    """The content of a regular file of at most `max_bytes` bytes. Raises OSError, with what is wrong and the path.

    `follow`: whether the last part of the path may be a link (its target has to be a regular file all the same).
    """
    with open_regular_file(path, follow=follow) as file:
        parts: list[bytes] = []
        left = max_bytes + 1 if os.fstat(file).st_size <= max_bytes else 0  # what is too large is not read in vain
        while left > 0 and (part := os.read(file, min(left, 1 << 20))):
            parts.append(part)
            left -= len(part)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it is larger than the limit of {max_bytes} bytes", os.fspath(path))
    return b"".join(parts)


@contextmanager
def open_regular_file(
    path: Path, *, follow: bool = True, unfit: Callable[[os.stat_result], str] | None = None
) -> Iterator[int]:
    """The descriptor of a regular file, open for reading; reading it never waits. Raises OSError.

    What it is is asked before it is opened for reading: the opening of a device may do something. A link below /proc
    to the descriptor leads to the very file that was asked about. `unfit`: what else than a regular file is fit to be
    opened: the function gives "" for that, and for everything else what is wrong with it.
    """
    name = os.fspath(path)
    found = os.open(name, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        if reason := (unfit or not_regular_reason)(seen := os.fstat(found)):
            raise OSError(errno.ELOOP if stat.S_ISLNK(seen.st_mode) else errno.EINVAL, reason, name)
        try:
            file = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:  # it is there: not to be taken for one that is not
            raise OSError(errno.EIO, "it cannot be opened because /proc is not mounted: mount /proc", name) from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from None
    finally:
        os.close(found)
    try:
        yield file
    finally:
        os.close(file)


def not_regular_reason(found: os.stat_result) -> str:
    """What keeps it from being read as a regular file: "it is a FIFO, and …"; "" for nothing."""
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFREG:
        return ""
    return f"it is {FILE_TYPE_NAMES.get(kind, 'something else')}, and must be a regular file"


def replace(path: Path, content: bytes, *, mode: int = 0o600, sync: bool = True, aside: Path | None = None) -> None:
    """Give a file another content: after a crash at any point it has the old one or the new one. Raises OSError.

    It is written beside it as PATH.new, or as `aside`, whatever stood there before, and renamed. `sync`: it is on disk
    then.
    """
    name = os.fspath(path)
    aside = aside or f"{name}.new"
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


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """The descriptor of a directory that is no link, to work in: whatever happens to its path then. Raises OSError."""
    found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield found
    finally:
        os.close(found)


def take_ownership(file: int, mode: int) -> bool:
    """Make what a descriptor is of our own user's, with this mode; whether it was otherwise. Raises OSError."""
    found = os.fstat(file)
    foreign, other = found.st_uid != os.geteuid(), stat.S_IMODE(found.st_mode) != mode
    if foreign:
        os.fchown(file, os.geteuid(), os.getegid())
    if foreign or other:
        os.fchmod(file, mode)
    return foreign or other


def sync_directory(path: Path) -> None:
    """Have the entries of a directory on disk. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


class ResolvedPath(NamedTuple):
    """Where a path leads, and who could have it lead elsewhere."""

    real: str | None
    """The path without links; None where it leads nowhere."""
    weak: tuple[str, str] | None
    """The first part of it that somebody else than root or ourselves could change, and why: ("/x", "is a link")."""
    same: bool = True
    """Whether one who sees the root from outside gets to the same by this path."""


def resolve_path(
    path: str,
    lstat: Callable[[str], os.stat_result | None],
    readlink: Callable[[str], str | None],
    *,
    follow: bool = True,
) -> ResolvedPath:
    """Go along a path below a root, which `lstat` and `readlink` see as "": no link and no `..` leaves it.

    They may raise, or give None for what is not there. `follow`: a link is gone along, and trusted where root or we
    own it. Otherwise the way ends there.
    """
    at, rest, links, same = "", _parts(path), 0, True
    weak = _weak(at, lstat(at), follow, on_the_way=True)
    while rest:
        part = rest.pop()
        if part == "..":
            same &= at != ""
            at = at.rpartition("/")[0]
            continue
        step = f"{at}/{part}"
        if (found := lstat(step)) is None:
            return ResolvedPath(None, weak, same)
        weak = weak or _weak(step, found, follow, on_the_way=True)
        if not stat.S_ISLNK(found.st_mode):
            at = step
            continue
        links += 1
        target = readlink(step) if follow and links <= MAX_LINKS else None
        if target is None:
            return ResolvedPath(None, weak, same)
        if target.startswith("/"):
            at, same = "", False
        rest += _parts(target)
    return ResolvedPath(at or "/", weak or _weak(at, lstat(at), follow, on_the_way=False), same)


def _weak(at: str, found: os.stat_result | None, follow: bool, *, on_the_way: bool) -> tuple[str, str] | None:
    reason = "" if found is None else untrusted_owner_or_mode(found, on_the_way=on_the_way, follow=follow)
    return (at or "/", reason) if reason else None


def _parts(path: str) -> list[str]:
    """The parts of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def untrusted_reason(path: Path, *, follow: bool = False) -> str:
    """Why somebody else than root or ourselves could put another thing at a path; "" if nobody could.

    Each part of it has to be owned by root or by our own user, and none may be writable by its group or by others. A
    directory on the way may be so if it is sticky (/tmp): then what is ours in it stays ours. No part may be a link;
    with `follow` each may be one of root's or ours, and what it leads to is asked the same. Raises OSError where a part
    cannot be looked at.
    """
    name = os.path.join(os.getcwd(), os.fspath(path))
    way = resolve_path(name, lambda at: os.lstat(at or "/"), os.readlink, follow=follow)
    if way.weak is None and way.real is None:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return " ".join(way.weak) if way.weak else ""


def untrusted_owner_or_mode(found: os.stat_result, *, on_the_way: bool, follow: bool = False) -> str:
    """What lets somebody else than root or ourselves change it: "is a link", "is owned by uid 12" …; "" for nothing.

    `on_the_way`: it is a directory that leads to what is asked about, so being sticky is enough. `follow`: it may be a
    link. A device is root's work whoever may use it, and who may write to a socket can only connect to it. A user who
    is not root often has a group of their own, with the same number, and lets it write: that is no other.
    """
    mode, owner = found.st_mode, found.st_uid
    kind = stat.S_IFMT(mode)
    if owner == 0 and kind != stat.S_IFLNK and not mode & (stat.S_IWGRP | stat.S_IWOTH):
        return ""  # as nearly all are: a look asks it of hundreds
    user = os.geteuid()
    if kind == stat.S_IFLNK and not follow:
        return "is a link"
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        return ""
    if owner not in (0, user):
        return f"is owned by uid {owner}"
    shared = mode & (stat.S_IWGRP | stat.S_IWOTH)
    if kind in (stat.S_IFLNK, stat.S_IFSOCK) or (on_the_way and mode & stat.S_ISVTX):
        return ""
    if shared & stat.S_IWOTH:
        return "is writable by others"
    private = user != 0 and found.st_gid == user == os.getegid()
    return "is writable by its group" if shared and not private else ""
