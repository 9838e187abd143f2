"""Addresses of a cluster's nodes and pods, and the way from the API server to them.

For Kubernetes a node and a pod have addresses 10.X.a.b. What they serve listens on 127.X.a.b, which every user may use
on Linux. X is the cluster's number: two clusters at once have two, since a name that only one process can have belongs
to it. The kernel takes that name back however the process ends.

The API server reaches nodes and pods by our proxy (EgressSelectorConfiguration with HTTPConnect, KEP-1281): `CONNECT
10.X.a.b:port` leads to 127.X.a.b:port, and anything else is refused (403).
"""

import asyncio
import ipaddress
import re
import socket
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Self

from gpuplane.base import files

NUMBERS = [number for number in range(2, 251) if number != 96]
"""Services have 10.96.0.0/16."""
LOOPBACK = "127.{}.0.1"
"""Where the control plane of a cluster listens, by its number."""
FIRST_HOST, LAST_HOST = 0x0100, 0xFFFE
"""a.b of the first and the last node or pod; 0.b is the control plane's own."""
MAX_HEAD_BYTES = 8192
SECONDS_TO_ASK = 10.0
"""Seconds in which a connection has to say where it leads."""
SECONDS_TO_CONNECT = 10.0
SECONDS_HALF_CLOSED = 60.0
"""Seconds of silence after which a connection ends of which one side has ended."""
CONNECT = re.compile(rb"CONNECT (10(?:\.[0-9]{1,3}){3}):([0-9]{1,5}) HTTP/1\.[01]\r\n")


class NoAddress(Exception):
    """No network or no address is left. The message is for people."""


class Network:
    """The addresses of one cluster. `close` gives its number back."""

    def __init__(self, number: int, claim: socket.socket | None = None) -> None:
        """`claim`: what keeps others from the number, if anything does."""
        self.number = number
        self._claim = claim
        self._used = set[int]()
        self._last = LAST_HOST

    @property
    def control_plane(self) -> str:
        """Where the control plane listens: 127.X.0.1."""
        return LOOPBACK.format(self.number)

    def allocate(self) -> str:
        """An address, 10.X.a.b, that was not given out lately. Raises NoAddress."""
        for host in chain(range(self._last + 1, LAST_HOST + 1), range(FIRST_HOST, self._last + 1)):
            if host not in self._used and host & 0xFF not in (0, 0xFF):
                self._used.add(host)
                self._last = host
                return f"10.{self.number}.{host >> 8}.{host & 0xFF}"
        raise NoAddress("every address of this cluster is taken")

    def release(self, address: str) -> None:
        """It may be given out again."""
        self._used.discard(int(ipaddress.IPv4Address(address)) & 0xFFFF)

    def loopback(self, address: str) -> str:
        """Where somebody listens whose address is 10.X.a.b: 127.X.a.b. Raises ValueError for another network's."""
        first, number, *host = str(ipaddress.IPv4Address(address)).split(".")
        if (first, number) != ("10", str(self.number)):
            raise ValueError(f"{address} is not in 10.{self.number}.0.0/16")
        return ".".join(("127", number, *host))

    def close(self) -> None:
        """Another cluster may have the number."""
        if self._claim is not None:
            self._claim.close()


def choose_network() -> Network:
    """The network of the first number that nobody uses. Raises NoAddress."""
    problem: OSError | None = None
    for number in NUMBERS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0gpuplane-sandbox-{number}")  # abstract: unix(7); as loopback, of this network namespace
            with socket.socket() as probe:
                probe.bind((LOOPBACK.format(number), 0))
            return Network(number, claim)
        except OSError as error:
            claim.close()
            problem = error
    raise NoAddress(f"no address 127.X.0.1 can be used: {problem and problem.strerror}")


def find_port(address: str, preferred: int = 0) -> int:
    """A port that can be listened on: the preferred one, if it can. Raises OSError where there is none."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Go's listeners, and asyncio's
        try:
            probe.bind((address, preferred))
            probe.listen()  # only now it is told that somebody listens there
        except OSError:
            if not preferred:
                raise
            return find_port(address)
        return int(probe.getsockname()[1])


class EgressProxy:
    """`async with EgressProxy(path, network)`: it serves at a Unix socket that is ours alone."""

    def __init__(self, path: Path, network: Network) -> None:
        self.path, self.network = path, network
        self._server: asyncio.Server | None = None
        self.connections = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        """Raises OSError."""
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        with files.open_directory(self.path.parent) as directory:  # the path of a socket has at most 107 bytes
            listener.bind(f"/proc/self/fd/{directory}/{self.path.name}")
        self.path.chmod(0o600)  # nobody can connect yet
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=MAX_HEAD_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self.connections:
            task.cancel()
        await asyncio.gather(*self.connections, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        try:
            with suppress(OSError):  # one of them has gone
                await self._serve(reader, writer)
                await writer.drain()
                writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self.connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. Raises OSError."""
        try:
            async with asyncio.timeout(SECONDS_TO_ASK):
                head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            writer.write(_response(HTTPStatus.BAD_REQUEST))
            return
        try:
            host, port = _target(head, self.network)
        except ValueError:
            writer.write(_response(HTTPStatus.FORBIDDEN))
            return
        try:
            async with asyncio.timeout(SECONDS_TO_CONNECT):
                there, to_there = await asyncio.open_connection(host, port)
        except OSError:  # a TimeoutError too
            writer.write(_response(HTTPStatus.BAD_GATEWAY))
            return
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _relay((reader, to_there), (there, writer))
        finally:
            to_there.transport.abort()


def _target(head: bytes, network: Network) -> tuple[str, int]:
    """Where a request leads: a loopback address and a port. Raises ValueError for one that must lead nowhere."""
    if (asked := CONNECT.match(head)) is None:
        raise ValueError("no CONNECT to an address of this cluster")
    port = int(asked[2])
    if not 0 < port < 1 << 16:
        raise ValueError("no port")
    return network.loopback(asked[1].decode()), port


def _response(status: HTTPStatus) -> bytes:
    return f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


async def _relay(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Until both sides have ended; or one has, and the other is silent for `SECONDS_HALF_CLOSED`."""
    moved = 0

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal moved
        while piece := await reader.read(1 << 16):
            writer.write(piece)
            await writer.drain()
            moved += len(piece)
        writer.write_eof()

    tasks = [asyncio.create_task(copy(*way)) for way in ways]
    try:
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        while rest and not any(task.exception() for task in done):
            before = moved
            done, rest = await asyncio.wait(tasks, timeout=SECONDS_HALF_CLOSED)
            if moved == before:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
