"""Downloads the programs of a control plane, once.

A program gets its name only when its bytes are those of the release, and for the machine that was asked for; the
directory of a version gets its name only when it has all programs. What is cut off goes on where it ended, also in
another run. Servers are not believed: sizes, times and redirects are bounded, and nothing of theirs but the bytes is
used.
"""

import fcntl
import hashlib
import os
import re
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import httpx2

from gpuplane.base import files
from gpuplane.base.text import clip
from gpuplane.sandbox.controlplane.releases import ELF_MACHINES, MAX_PROGRAM_BYTES, Download

T = TypeVar("T")
ATTEMPTS = 5
"""How often a file is asked for that is cut off, without anything new."""
PAUSE = 1.0
"""Seconds between two."""
TIMEOUT = httpx2.Timeout(30.0)
SECONDS_FOR_FILE = 3600.0
MAX_REDIRECTS = 5
MAX_CHECKSUMS_BYTES = 1 << 16

Progress = Callable[[str, int, int], None]
"""Is told of a file: its name, how many bytes are there, and how many it will have (0: nobody knows)."""


class FetchError(Exception):
    """The programs cannot be had. The message says why."""


class Fetched(NamedTuple):
    """A program that was downloaded. `checksum`: SHA-256 of what was downloaded."""

    name: str
    url: str
    checksum: str
    size: int


def fetch(
    wanted: Sequence[Download], directory: Path, architecture: str, progress: Progress = lambda *_: None
) -> list[Fetched]:
    """Make a directory with these programs; nothing where it has them. Raises FetchError and OSError.

    What was downloaded before that is used next time.
    """
    if directory.is_dir() and any(directory.iterdir()) and not is_complete(wanted, directory):
        raise FetchError(f"{directory} is not empty, and has not all programs: choose another directory")
    partial = directory.with_name(f".{directory.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _locked(partial), _client() as client:
        if is_complete(wanted, directory):  # another fetch was faster
            with suppress(OSError):
                partial.rmdir()
            return []
        found = [_fetch_one(client, each, partial, architecture, progress) for each in wanted]
        for leftover in partial.glob("*.part"):
            leftover.unlink()
        files.sync_directory(partial)
        partial.replace(directory)
    return found


def is_complete(wanted: Sequence[Download], directory: Path) -> bool:
    """Whether a directory has these programs."""
    return all((directory / each.name).is_file() for each in wanted)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Only one at a time. Raises FetchError."""
    with files.open_directory(directory) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError("another fetch of this version is at work: wait until it has ended") from None
        yield


def _client() -> httpx2.Client:
    return httpx2.Client(
        timeout=TIMEOUT, follow_redirects=True, max_redirects=MAX_REDIRECTS, headers={"accept-encoding": "identity"}
    )


def _fetch_one(
    client: httpx2.Client, wanted: Download, partial: Path, architecture: str, progress: Progress
) -> Fetched:
    """A program in a directory, under its name. Raises FetchError and OSError."""
    checksum = wanted.checksum or _published_checksum(client, wanted)
    target, part = partial / wanted.name, partial / f"{wanted.file_name}.part"
    if not target.exists():
        _download(client, wanted, part, checksum, progress)
        made = part
        if wanted.member:
            made = partial / f"{wanted.name}.new"
            _extract(part, wanted.member, made)
        _check_machine(made, wanted, architecture)
        made.chmod(0o755)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(target)
    return Fetched(wanted.name, wanted.url, checksum, target.stat().st_size)


def _patiently(url: str, attempt: Callable[[], T], count: Callable[[], int] = lambda: 0) -> T:
    """What comes of an attempt, which is repeated where it is cut off. `count`: what there is of it; as long as it
    grows no attempt has failed. Raises FetchError."""
    until, failures = time.monotonic() + SECONDS_FOR_FILE, 0
    while True:
        before = count()
        try:
            return attempt()
        except httpx2.TransportError as error:  # cut off, refused, silent
            failures = 0 if count() > before else failures + 1
            if failures >= ATTEMPTS or time.monotonic() > until:
                reason = clip(str(error)) or type(error).__name__
                raise FetchError(f"{url}: {reason}. What is there is kept: try again") from None
            time.sleep(PAUSE if failures else 0)


def _published_checksum(client: httpx2.Client, wanted: Download) -> str:
    """What the release says. Its file has one checksum alone, or lines of checksum and name."""
    body = _patiently(wanted.checksums_url, lambda: _read(client, wanted.checksums_url))
    for line in body.decode(errors="replace").splitlines():
        found = re.fullmatch(r"([0-9a-f]{64})(?:\s+\*?(\S+))?\s*", line)
        if found and found[2] in (None, wanted.file_name):
            return found[1]
    raise FetchError(f"{wanted.checksums_url} has no checksum of {wanted.file_name}")


def _read(client: httpx2.Client, url: str) -> bytes:
    """A small file. Raises FetchError and TransportError."""
    body = b""
    with _asked(client, url, {}) as answer:
        if answer.status_code != 200:
            raise FetchError(f"{url}: the server answers {answer.status_code}")
        for piece in answer.iter_raw():
            body += piece
            if len(body) > MAX_CHECKSUMS_BYTES:
                raise FetchError(f"{url} is too large for checksums")
    return body


def _download(client: httpx2.Client, wanted: Download, part: Path, checksum: str, progress: Progress) -> None:
    """Until the file has these bytes. Raises FetchError and OSError."""
    until, resumed = time.monotonic() + SECONDS_FOR_FILE, part.exists()
    _patiently(wanted.url, lambda: _receive(client, wanted, part, until, progress), lambda: _size(part))
    if (got := _checksum(part)) == checksum:
        return
    part.unlink()
    if not resumed:
        raise FetchError(f"{wanted.url} has the checksum {got}, and not {checksum}: it is not used")
    _download(client, wanted, part, checksum, progress)  # what was there before may have been of something else


def _receive(client: httpx2.Client, wanted: Download, part: Path, until: float, progress: Progress) -> None:
    """One answer, to its end, behind what is there. Raises httpx2.TransportError where it is cut off."""
    have = _size(part)
    with _asked(client, wanted.url, {"range": f"bytes={have}-"} if have else {}) as answer:
        if answer.status_code == 416 and have:  # it is whole, or longer than the file
            return
        if answer.status_code not in (200, 206):
            raise FetchError(f"{wanted.url}: the server answers {answer.status_code}")
        if answer.status_code == 200:  # from the beginning
            have = 0
        elif not answer.headers.get("content-range", "").startswith(f"bytes {have}-"):
            raise FetchError(f"{wanted.url}: the server answers with another part than it was asked for")
        total = have + int(answer.headers.get("content-length") or 0)
        with part.open("ab" if have else "wb") as file:
            for piece in answer.iter_raw():  # as it comes: what is collected would be lost where it is cut off
                have += len(piece)
                if max(have, total) > wanted.max_bytes:
                    part.unlink()
                    raise FetchError(f"{wanted.url} is larger than {wanted.max_bytes >> 20} MB: it is not used")
                if time.monotonic() > until:
                    raise FetchError(f"{wanted.url} takes longer than {SECONDS_FOR_FILE:g} s. What is there is kept")
                file.write(piece)
                progress(wanted.name, have, total)


@contextmanager
def _asked(client: httpx2.Client, url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
    """An answer. Raises FetchError for redirects that do not end or leave TLS, and TransportError."""
    try:
        with client.stream("GET", url, headers=headers) as answer:
            for each in (*answer.history, answer):
                if url.startswith("https:") and each.url.scheme != "https":
                    raise FetchError(f"{url} leads to {clip(str(each.url))}, which is not safe")
            yield answer
    except (httpx2.TooManyRedirects, httpx2.InvalidURL) as error:
        raise FetchError(f"{url}: {clip(str(error))}") from None


def _extract(archive: Path, member: str, target: Path) -> None:
    """One regular file of an archive. Raises FetchError and OSError."""
    try:
        with tarfile.open(archive) as opened, target.open("wb") as made:
            found = opened.getmember(member)
            source = opened.extractfile(found) if found.isreg() and found.size <= MAX_PROGRAM_BYTES else None
            if source is None:
                raise FetchError(f"{member} in {archive.name} is no program")
            shutil.copyfileobj(source, made, 1 << 20)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise FetchError(f"{archive.name} has no {member}: {clip(str(error))}") from None


def _check_machine(path: Path, wanted: Download, architecture: str) -> None:
    """Raises FetchError for what is no program of this architecture."""
    with path.open("rb") as file:
        head = file.read(20)
    if head[:4] != b"\x7fELF" or int.from_bytes(head[18:20], "little") != ELF_MACHINES[architecture]:
        path.unlink()
        raise FetchError(f"{wanted.url} is no program for linux/{architecture}")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
