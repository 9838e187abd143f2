"""Unix sockets in a directory that others use too: a socket that answers is never unlinked.

gRPC's own bind unlinks whatever socket stands at the path, and its shutdown unlinks the path again, though it may be
another's by then. So a server binds under a name that only we use and is then linked to the public name, which fails
where that name is taken; and it is taken down only while it is still ours.

To look who answers, to unlink what a dead process left and to link ours is one step for every gpuplane agent: they
hold a lock on the directory meanwhile. NVIDIA's plugin asks nobody; what it takes from us is noticed by its identity.
"""

import asyncio
import fcntl
import os
import secrets
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import grpc

LONGEST = 107  # bytes of a unix socket's path (sun_path)
PRIVATE = ".gpuplane."
GRACE = 0.1  # seconds that requests under way get to be answered when a server ends; streams are cut after it

Identity: TypeAlias = tuple[int, int, int]


class Taken(Exception):
    """The public name cannot be had: who or what stands there, and what to do."""


def address(path: Path) -> str:
    """The gRPC target of a unix socket."""
    return f"unix:{quote(os.fspath(path))}"


def complaint(error: grpc.aio.AioRpcError) -> str:
    """What a failed call says, without gRPC's account of how it tried to connect."""
    return (error.details() or error.code().name).rpartition(" error: ")[2]


def check_length(path: Path) -> None:
    """Raises Taken for a path that no unix socket can have. gRPC would try it for ever, and stat says only that nothing
    is there."""
    length = len(os.fsencode(path))
    if length > LONGEST:
        raise Taken(
            f"{path} is too long for a unix socket ({length} bytes, {LONGEST} at most): use a shorter directory"
        )


def identity(path: Path) -> Identity | None:
    """Which socket stands at a path: (device, inode, time of change), or None. Raises Taken for any other file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        raise Taken(f"{path} is not a socket: move it away")
    return found.st_dev, found.st_ino, found.st_ctime_ns


def stands(path: Path, ours: Identity) -> bool:
    """Whether our socket still stands at a path. No other can have its inode while we listen, so a chmod is no loss."""
    found = identity(path)
    return found is not None and found[:2] == ours[:2]


def owner(path: Path) -> str | None:
    """Who answers at a socket, as "process 12 (nvidia-device-plugin)"; None where nobody does. Never waits."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError as error:
            return f"a process that does not accept connections ({error.strerror or error})"
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return f"process {pid} ({_command(pid)})" if pid else "a process of another container"


def _command(pid: int) -> str:
    """The first words of a process's command line."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(words[:4]).strip()[:80] or "of another container"
    return "of another container"


@asynccontextmanager
async def serving(path: Path, add: Callable[[grpc.aio.Server], object]) -> AsyncIterator[Identity]:
    """Serve at a path, mode 0600, what `add` adds to a server, until the block ends. Gives the socket's identity.

    Raises Taken, and OSError where the directory takes no socket.
    """
    private = path.with_name(PRIVATE + secrets.token_hex(4))
    for each in (path, path.with_name(PRIVATE + "0" * 8)):  # a reason that is the same at every try
        check_length(each)
    _check(path)
    _try_to_bind(private)
    server = grpc.aio.server()
    try:
        add(server)
        server.add_insecure_port(address(private))
        await server.start()
        private.chmod(0o600)
        ours = _claim(private, path)
        try:
            yield ours
        finally:
            with suppress(Taken, OSError):
                if stands(path, ours):
                    path.unlink(missing_ok=True)
    finally:
        private.unlink(missing_ok=True)
        stopping = asyncio.create_task(server.stop(GRACE))
        await asyncio.shield(stopping)  # awaited by itself it may swallow a cancellation (asyncio.wait_for before 3.12)


def _check(path: Path) -> None:
    if identity(path) is not None and (served := owner(path)):
        raise Taken(f"{path.name} is served by {served}: this agent takes over when that ends")


def _try_to_bind(path: Path) -> None:
    """Raises the OSError that gRPC would only log."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(os.fspath(path))
    path.unlink()


def _claim(private: Path, path: Path) -> Identity:
    """Give our socket its public name, in the place of one that nobody serves."""
    with _locked(path.parent):
        for left in path.parent.glob(f"{PRIVATE}*"):
            if left != private and owner(left) is None:
                left.unlink(missing_ok=True)
        _check(path)
        path.unlink(missing_ok=True)
        try:
            os.link(private, path)
        except FileExistsError:
            raise Taken(f"{path.name} was taken by another while we started") from None
        private.unlink()
        ours = identity(path)
    if ours is None:
        raise Taken(f"{path.name} was removed while we started")
    return ours


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Taken(f"another agent starts to serve in {directory}") from None
    finally:
        os.close(handle)
