"""Unix sockets in a directory that other programs use too: a socket that answers is never removed.

Each registration of a device plugin has a socket with a name of its own. So an agent that ends can never remove the
socket of its successor, and kubelet, which tells plugins apart by their sockets (from 1.37 on), sees two plugins. A
socket that a dead agent left has one of our names, and no process answers there.

Sockets of DRA have names that kubelet gives (`serve_at`).
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

from gpuplane.base import files

LONGEST_PATH = 107  # bytes of a unix socket's path (sun_path)
SOCKET_NAME = "gpuplane-{}.sock"
"""The name of a socket. Its length does not depend on the resource's name, because the path of a socket is limited."""
HIDDEN_NAME = ".gp-{}"
"""The name of a socket until its server answers; no longer than the shortest final name. Kubelet ignores such names."""
HIDDEN_SOCKETS = re.compile(r"\.gp-[0-9a-f]{4}")
OUR_SOCKETS = re.compile(r"gpuplane-[0-9a-f]{8}\.sock")

GRACE = 0.1  # seconds in which open requests are answered when a server stops; streams are closed after that

SocketIdentity: TypeAlias = tuple[int, int, int]

log = logging.getLogger(__name__)
_reported_files = set[Path]()  # what was logged because it is no socket


class SocketUnavailable(Exception):
    """A socket cannot be used or made. The message says what is at its path, and what to do."""


def grpc_target(path: Path) -> str:
    """The gRPC target of a unix socket."""
    return f"unix:{quote(os.fspath(path))}"


def error_details(error: grpc.aio.AioRpcError) -> str:
    """The error of a failed call, without gRPC's report of how it tried to connect."""
    return (error.details() or error.code().name).rpartition(" error: ")[2]


def check_length(path: Path) -> None:
    """Raises SocketUnavailable for a path that is too long. gRPC would try it for ever, and stat finds nothing."""
    length = len(os.fsencode(path))
    if length > LONGEST_PATH:
        raise SocketUnavailable(
            f"{path} is too long for a unix socket ({length} bytes, {LONGEST_PATH} at most): use a shorter directory"
        )


def socket_identity(path: Path) -> SocketIdentity | None:
    """The socket at a path as (device, inode, time of change), or None. Raises SocketUnavailable for another file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketUnavailable(f"{path} is not a socket: move it away")
    return found.st_dev, found.st_ino, found.st_ctime_ns


def is_same_socket(path: Path, ours: SocketIdentity) -> bool:
    """Whether our socket is still at a path. No other file has its inode while we listen; a chmod changes nothing."""
    found = socket_identity(path)
    return found is not None and found[:2] == ours[:2]


def describe_server(path: Path) -> str | None:
    """The process that answers at a socket, "process 12 (nvidia-device-plugin)"; None if none does. Never waits."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError as error:
            return f"a process that does not accept connections ({error.strerror or error})"
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return describe_process(pid) if pid else "a process of another container"


def describe_process(pid: int) -> str:
    """A process for people: "process 12 (nvidia-device-plugin)"."""
    return f"process {pid} ({_command_line(pid)})"


def _command_line(pid: int) -> str:
    """The first words of a process's command line."""
    with suppress(OSError):
        words = files.read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")
        return " ".join(words[:4])[:200].strip() or "of another container"
    return "of another container"


@asynccontextmanager
async def serve_at_new_socket(
    directory: Path, add: Callable[[grpc.aio.Server], object]
) -> AsyncIterator[tuple[Path, SocketIdentity]]:
    """Serve at a new socket, mode 0600, what `add` adds to a server, until the block ends. Gives its path and identity.

    Raises SocketUnavailable if the path is too long or the socket is gone at once, and OSError if it cannot be made.
    """
    path = directory / SOCKET_NAME.format(secrets.token_hex(4))
    check_length(path.with_name(SOCKET_NAME.format("0" * 8)))  # the same message at every try
    remove_dead_sockets(directory)
    _check_bind(path)
    server = grpc.aio.server()
    try:
        add(server)
        server.add_insecure_port(grpc_target(path))
        path.chmod(0o600)
        await server.start()
        ours = socket_identity(path)
        if ours is None:
            raise SocketUnavailable(f"{path.name} was removed while the agent started")
        yield path, ours
    finally:
        path.unlink(missing_ok=True)
        stopping = asyncio.create_task(server.stop(GRACE))
        await asyncio.shield(stopping)  # awaited by itself it may swallow a cancellation (asyncio.wait_for before 3.12)


@asynccontextmanager
async def serve_at(path: Path, add: Callable[[grpc.aio.Server], object]) -> AsyncIterator[SocketIdentity]:
    """Serve at this path, mode 0600, what `add` adds to a server, until the block ends. Gives the socket's identity.

    A dead socket at the path is replaced. The socket gets its name once the server answers. gRPC knows it by another
    name: it removes at its end what is at the path that it knows, which may be the socket of a successor by then.

    Raises SocketUnavailable if the path is too long, or a live socket or another file is there, and OSError if the
    socket cannot be made.
    """
    check_length(path)
    if socket_identity(path) is not None and (other := describe_server(path)):
        raise SocketUnavailable(f"{other} serves {path}: this agent takes over when that process ends")
    remove_dead_sockets(path.parent, HIDDEN_SOCKETS)
    hidden = path.with_name(HIDDEN_NAME.format(secrets.token_hex(2)))
    check_length(hidden)
    _check_bind(hidden)
    server, ours = grpc.aio.server(), None
    try:
        add(server)
        server.add_insecure_port(grpc_target(hidden))
        hidden.chmod(0o600)
        await server.start()
        hidden.rename(path)
        ours = socket_identity(path)
        if ours is None:
            raise SocketUnavailable(f"{path} was removed while the agent started")
        yield ours
    finally:
        hidden.unlink(missing_ok=True)
        with suppress(SocketUnavailable, OSError):
            if ours is not None and is_same_socket(path, ours):
                path.unlink()
        stopping = asyncio.create_task(server.stop(GRACE))
        await asyncio.shield(stopping)


def _check_bind(path: Path) -> None:
    """Raises the OSError that gRPC would only log."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(os.fspath(path))
    path.unlink()


def remove_dead_sockets(directory: Path, names: re.Pattern[str] = OUR_SOCKETS) -> None:
    """Remove the sockets of agents that have ended. What is no socket, answers, or has not one of these names stays."""
    for left in directory.iterdir():
        if not names.fullmatch(left.name):
            continue
        try:
            if not stat.S_ISSOCK(left.lstat().st_mode):
                if left not in _reported_files:
                    _reported_files.add(left)
                    log.warning(
                        "%s has the name of an agent's socket, but is not a socket: the agent does not remove it",
                        left,
                    )
            elif describe_server(left) is None:
                left.unlink(missing_ok=True)
        except OSError as error:
            log.debug("%s: %s", left, error)
