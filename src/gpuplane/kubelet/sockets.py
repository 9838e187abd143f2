"""Unix sockets in a directory that others use too: a socket that answers is never unlinked.

gRPC's own bind unlinks whatever socket stands at the path, and its shutdown unlinks the path again, though it may be
another's by then. So a server binds under a name that only we use and is then linked to the public name, which fails
where that name is taken; and it is taken down only while it is still ours.
"""

import os
import secrets
import socket
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

LONGEST = 107  # bytes of a unix socket's path (sun_path)


class Taken(Exception):
    """The public name cannot be had: who or what stands there, and what to do."""


def identity(path: Path) -> tuple[int, int, int] | None:
    """Which socket stands at a path: (device, inode, time of change), or None. Raises Taken for any other file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISSOCK(found.st_mode):
        raise Taken(f"{path} is not a socket: move it away")
    return found.st_dev, found.st_ino, found.st_ctime_ns


def owner(path: Path) -> str | None:
    """Who answers at a socket, as "process 12 (nvidia-device-plugin)"; None where nobody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except OSError as error:
            return f"an owner that does not accept ({error.strerror or error})"
        pid, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    name = ""
    with suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    return f"process {pid} ({name or 'of another container'})"


@asynccontextmanager
async def serving(server: grpc.aio.Server, path: Path) -> AsyncIterator[tuple[int, int, int]]:
    """Serve at a path, mode 0600, until the block ends. Gives the socket's identity; raises Taken."""
    private = path.with_name(f".{path.name}.{secrets.token_hex(3)}")
    if len(os.fsencode(private)) > LONGEST:
        raise Taken(f"{path} is too long for a unix socket ({LONGEST} bytes): use a shorter directory")
    if identity(path) is not None:
        if served := owner(path):
            raise Taken(f"{path.name} is served by {served}: stop it, or this agent")
        path.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{private}")
    await server.start()
    try:
        private.chmod(0o600)
        ours = identity(private)
        assert ours is not None
        try:
            os.link(private, path)
        except FileExistsError:
            raise Taken(f"{path.name} was taken by another while we started") from None
        finally:
            private.unlink(missing_ok=True)
        try:
            ours = identity(path) or ours
            yield ours
        finally:
            with suppress(Taken):
                if identity(path) == ours:
                    path.unlink(missing_ok=True)
    finally:
        await server.stop(0.5)
