"""A tree of files that is looked at as if it were `/`: links lead where they lead for a program whose root it is.

The driver's root may be another system's, a container's say. An absolute link in it means the root's, `..` does not
leave it, and nothing outside of it is ever opened. What was looked at is remembered, so that whoever looked can ask
whether any of it is another one by now (`changed`) at the cost of an lstat each.

Who else could change what a path leads to is told of each path (`untrusted_reason`), the way to the root itself
included.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from gpuplane.base.files import ResolvedPath, resolve_path

ABSENT_ERRORS = (errno.ENOENT, errno.ENOTDIR)

FileMark: TypeAlias = tuple[int, ...]


class Tree:
    """The files under a root, as they are when they are first looked at. Paths are those inside of it."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._seen: dict[str, os.stat_result | None] = {}
        self._ways: dict[tuple[str, bool], ResolvedPath] = {}
        self._listed: dict[str, Mapping[str, bool]] = {}
        self._marks: dict[str, FileMark] = {}
        self._times: dict[str, FileMark] = {}
        self._above: Tree | None = Tree("/") if self._root else None
        self._place = os.path.abspath(root)
        self.refused: dict[str, str] = {}
        """What could not be looked at, though it may be there: a path as this process sees it → why."""

    @property
    def root(self) -> str:
        """The root as this process sees it."""
        return self._root or "/"

    def outside(self, path: str) -> str:
        """A path as this process, which sees the root from outside, has to write it."""
        return self._root + path or "/"

    def printable_path_outside(self, path: str) -> str:
        """The same for people, on one line."""
        name = self.outside(path).rstrip("/") or "/"
        return name if name.isprintable() else name.encode("unicode_escape").decode()

    def resolve(self, path: str) -> str | None:
        """Where a path leads, a path without links; None where it leads nowhere, or to what cannot be told as text."""
        real = self._walk(path).real
        return real if real is not None and real.isprintable() else None

    def same_outside(self, path: str) -> bool:
        """Whether somebody who sees the root from outside, and follows links as usual, gets to the same by a path."""
        return not self._root or self._walk(path).same

    def untrusted_reason(self, path: str, *, follow: bool = True) -> str:
        """Why somebody else than root, or than us, could change what a path leads to; "" if nobody could.

        Links of root's are gone along; without `follow` any link is a reason. On one line.
        """
        if self._above is not None and (reason := self._above.untrusted_reason(self._place)):
            return reason
        found = self._walk(path, follow=follow).weak
        return f"{self.printable_path_outside(found[0])} {found[1]}" if found is not None else ""

    def _walk(self, path: str, *, follow: bool = True) -> ResolvedPath:
        if (path, follow) not in self._ways:
            self._ways[path, follow] = resolve_path(
                path, lambda at: self._lstat(at or "/"), self._target, follow=follow
            )
        return self._ways[path, follow]

    def stat(self, path: str) -> os.stat_result | None:
        """What a path leads to; None where that is nothing."""
        real = self.resolve(path)
        return None if real is None else self._lstat(real)

    def file(self, path: str) -> str | None:
        """Where a path leads, if that is a regular file."""
        real = self.resolve(path)
        found = None if real is None else self._lstat(real)
        return real if found is not None and stat.S_ISREG(found.st_mode) else None

    def names(self, folder: str) -> Mapping[str, bool]:
        """What is in a folder: name → whether it is a link. Nothing where it is no folder, or cannot be read."""
        real = self.resolve(folder)
        if real is None:
            return {}
        if real not in self._listed:
            self._listed[real] = self._list(real)
        return self._listed[real]

    def read(self, path: str, most: int = 1 << 24) -> bytes:
        """The content of a file, up to so many bytes; nothing where it cannot be read."""
        with self.open(path) as file:
            try:
                return b"" if file is None else os.read(file, most)
            except OSError as error:
                self._refuse(path, error)
                return b""

    @contextmanager
    def open(self, path: str) -> Iterator[int | None]:
        """A regular file, opened to be read; None where it cannot be."""
        real, file = self.file(path), None
        if real is not None:
            try:
                file = os.open(self.outside(real), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                self._refuse(real, error)
        try:
            yield file
        finally:
            if file is not None:
                os.close(file)

    def changed(self) -> bool:
        """Whether anything that was looked at is another one now, or has other entries."""
        if self._above is not None and self._above.changed():
            return True
        return any(self._mark(path) != mark for path, mark in self._marks.items()) or any(
            self._time(path) != time for path, time in self._times.items()
        )

    def _list(self, folder: str) -> Mapping[str, bool]:
        self._times[folder] = self._time(folder)
        try:
            with os.scandir(self.outside(folder)) as entries:
                return {entry.name: entry.is_symlink() for entry in entries}
        except OSError as error:
            self._refuse(folder, error)
            return {}

    def _lstat(self, path: str) -> os.stat_result | None:
        if path not in self._seen:
            try:
                self._seen[path] = os.lstat(self.outside(path))
            except (OSError, ValueError) as error:
                self._seen[path] = None
                self._refuse(path, error)
            self._marks[path] = _mark(self._seen[path])
        return self._seen[path]

    def _target(self, link: str) -> str | None:
        try:
            return os.readlink(self.outside(link))
        except OSError as error:
            self._refuse(link, error)
            return None

    def _refuse(self, path: str, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno not in ABSENT_ERRORS:
            self.refused[self.outside(path)] = error.strerror or type(error).__name__

    def _mark(self, path: str) -> FileMark:
        try:
            return _mark(os.lstat(self.outside(path)))
        except (OSError, ValueError):
            return ()

    def _time(self, folder: str) -> FileMark:
        try:
            found = os.lstat(self.outside(folder))
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_ctime_ns


def _mark(found: os.stat_result | None) -> FileMark:
    """What tells one thing from another that has its name. A folder is the same one whatever is in it."""
    if found is None:
        return ()
    same = (found.st_mode, found.st_uid, found.st_gid, found.st_dev, found.st_ino)
    return same if stat.S_ISDIR(found.st_mode) else (*same, found.st_size, found.st_mtime_ns)
