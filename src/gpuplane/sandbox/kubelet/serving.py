"""Kubelet's own sockets: who serves there, and how they are made."""

import errno
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from gpuplane.node.kubelet.sockets import LONGEST_PATH, describe_server, grpc_target


async def start_server(paths: Sequence[Path], add: Callable[[grpc.aio.Server], object]) -> grpc.aio.Server:
    """A server at these sockets of what `add` adds to it. They appear when it serves. Raises OSError."""
    server = grpc.aio.server()
    add(server)
    private = {path.with_name(f".{secrets.token_hex(3)}"): path for path in paths}
    for path in private:
        try:
            server.add_insecure_port(grpc_target(path))
        except RuntimeError:
            raise OSError(errno.EACCES, "cannot create a socket in this directory", os.fspath(path.parent)) from None
    await server.start()
    for path, public in private.items():
        path.rename(public)
    return server


def prepare_socket_path(path: Path) -> None:
    """Make the directory of a socket that can be made. Raises OSError."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        problem = f"too long for a unix socket: the limit is {LONGEST_PATH} bytes; use a shorter directory"
        raise OSError(errno.ENAMETOOLONG, problem, os.fspath(path))
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    if other := describe_server(path):
        raise FileExistsError(errno.EADDRINUSE, f"another kubelet already runs there, {other}", os.fspath(path))
