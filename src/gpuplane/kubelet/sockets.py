"""Unix sockets in a directory that others use too: a socket that answers is never unlinked.

Each registration has a socket of a name of its own. So what an agent removes on its way out can never be the socket of
its successor, and kubelet, which tells plugins apart by their sockets (from 1.37 on), takes the two for two. What dead
agents left is known by its name, and by nobody answering there.
"""

import asyncio
import logging
import os
import re
import secrets
import socket
import stat
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import grpc

from gpuplane import files

LONGEST = 107  # bytes of a unix socket's path (sun_path)
NAME = "gpuplane-{}.sock"
"""The name of a socket: as long as this, whatever the resource is called, since a path of a socket has little room."""
LEFT_BEHIND = re.compile(r"gpuplane-[0-9a-f]{8}\.sock|\.gpuplane\..+")
"""The names of our sockets; the second are those of earlier versions, while they started."""

GRACE = 0.1  # seconds that requests under way get to be answered when a server ends; streams are cut after it

Identity: TypeAlias = tuple[int, int, int]

log = logging.getLogger(__name__)
_strange = set[Path]()  # what was said to be no socket


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
    return process(pid) if pid else "a process of another container"


def process(pid: int) -> str:
    """A process for people: "process 12 (nvidia-device-plugin)"."""
    return f"process {pid} ({_command(pid)})"


def _command(pid: int) -> str:
    """The first words of a process's command line."""
    with suppress(OSError):
        words = files.read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")
        return " ".join(words[:4])[:200].strip() or "of another container"
    return "of another container"


@asynccontextmanager
async def serving(directory: Path, add: Callable[[grpc.aio.Server], object]) -> AsyncIterator[tuple[Path, Identity]]:
    """Serve at a new socket, mode 0600, what `add` adds to a server, until the block ends. Gives its path and identity.

    Raises Taken where it cannot be made or is gone at once, and OSError where the directory takes no socket.
    """
    path = directory / NAME.format(secrets.token_hex(4))
    check_length(path.with_name(NAME.format("0" * 8)))  # a reason that is the same at every try
    clear(directory)
    _try_to_bind(path)
    server = grpc.aio.server()
    try:
        add(server)
        server.add_insecure_port(address(path))
        path.chmod(0o600)
        await server.start()
        ours = identity(path)
        if ours is None:
            raise Taken(f"{path.name} was removed while we started")
        yield path, ours
    finally:
        path.unlink(missing_ok=True)
        stopping = asyncio.create_task(server.stop(GRACE))
        await asyncio.shield(stopping)  # awaited by itself it may swallow a cancellation (asyncio.wait_for before 3.12)


def _try_to_bind(path: Path) -> None:
    """Raises the OSError that gRPC would only log."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(os.fspath(path))
    path.unlink()


def clear(directory: Path) -> None:
    """Remove the sockets of agents that are no more. What is no socket, answers, or is not ours by name stays."""
    for left in directory.iterdir():
        if not LEFT_BEHIND.fullmatch(left.name):
            continue
        try:
            if not stat.S_ISSOCK(left.lstat().st_mode):
                if left not in _strange:
                    _strange.add(left)
                    log.warning("%s is named as a socket of an agent, and is none: left as it is", left)
            elif owner(left) is None:
                left.unlink(missing_ok=True)
        except OSError as error:
            log.debug("%s: %s", left, error)
