"""Addresses of a cluster, and the way from the API server to its nodes."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpuplane.sandbox.controlplane import network
from gpuplane.sandbox.controlplane.network import EgressProxy, Network, NoAddress, choose_network, find_port

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def test_two_clusters_have_two_numbers() -> None:
    """Until one of them ends."""
    first, second = choose_network(), choose_network()
    try:
        assert first.number != second.number
        assert not {first.number, second.number} & {0, 1, 96, 255}
    finally:
        second.close()
        first.close()


def test_a_number_is_free_again_after_sigkill() -> None:
    """And not before: it is the kernel who keeps it."""
    code = (
        "import os, signal; from gpuplane.sandbox.controlplane.network import choose_network; found = choose_network();"
        "print(found.number, flush=True); input(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        number = int(process.stdout.readline())
        name = f"\0gpuplane-sandbox-{number}"
        with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match="in use"):
            other.bind(name)
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(name)


def test_where_no_address_can_be_used_an_error_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, which has 127.0.0.1 alone."""
    monkeypatch.setattr(network, "LOOPBACK", "198.51.100.{}")

    with pytest.raises(NoAddress, match="Cannot assign requested address"):
        choose_network()


def test_every_address_is_another_one_until_all_are_taken() -> None:
    """None is a network's or a broadcast's, and 10.X.0.b is the control plane's own."""
    found = Network(7)
    addresses = [found.allocate() for _ in range(255 * 254)]

    assert len(set(addresses)) == len(addresses)
    assert addresses[0] == "10.7.1.1"
    assert addresses[-1] == "10.7.255.254"
    assert not any(address.endswith((".0", ".255")) or address.startswith("10.7.0.") for address in addresses)
    with pytest.raises(NoAddress):
        found.allocate()
    found.release("10.7.3.4")
    assert found.allocate() == "10.7.3.4"


def test_an_address_that_is_released_is_not_given_out_at_once() -> None:
    """Somebody may still speak to who had it."""
    found = Network(7)
    first = found.allocate()
    found.release(first)

    assert found.allocate() == "10.7.1.2"


def test_what_listens_has_the_same_last_bytes() -> None:
    """In the network of this cluster alone."""
    assert Network(7).loopback("10.7.3.4") == "127.7.3.4"
    for other in ("10.8.3.4", "127.7.3.4", "10.7.3", "10.7.3.4.5", "10.07.3.4", "10.7.3.400", "a"):
        with pytest.raises(ValueError, match=r"."):
            Network(7).loopback(other)


def test_a_port_that_is_taken_is_not_preferred() -> None:
    """Also where somebody listens at every address, as a kubelet of the machine's own."""
    port = find_port("127.7.0.1")
    assert find_port("127.7.0.1", port) == port
    for address in ("127.7.0.1", "0.0.0.0"):
        with socket.create_server((address, port)):
            assert find_port("127.7.0.1", port) != port


async def test_connect_leads_to_a_node(root: Path) -> None:
    """What both sides say arrives, and that they have ended."""

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read()  # until the other side has ended
        writer.write(b"heard " + said)

    async with proxy(root) as egress, server(node) as port:
        reader, writer = await connect(egress, f"10.7.3.4:{port}")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
        large = os.urandom(1 << 20)
        writer.write(large)
        writer.write_eof()

        assert await reader.read() == b"heard " + large
        assert egress.path.stat().st_mode & 0o777 == 0o600
        writer.close()


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("CONNECT 127.0.0.1:22 HTTP/1.1", 403),
        ("CONNECT 127.7.3.4:22 HTTP/1.1", 403),
        ("CONNECT 10.8.3.4:22 HTTP/1.1", 403),
        ("CONNECT 10.96.0.1:443 HTTP/1.1", 403),
        ("CONNECT 192.0.2.1:443 HTTP/1.1", 403),
        ("CONNECT 10.7.3.4:0 HTTP/1.1", 403),
        ("CONNECT 10.7.3.4:65536 HTTP/1.1", 403),
        ("CONNECT 10.7.3.4 HTTP/1.1", 403),
        ("CONNECT 10.7.3.400:1 HTTP/1.1", 403),
        ("CONNECT 10.7.03.4:1 HTTP/1.1", 403),
        ("CONNECT [::1]:22 HTTP/1.1", 403),
        ("CONNECT localhost:22 HTTP/1.1", 403),
        ("GET http://10.7.3.4:1/ HTTP/1.1", 403),
        ("nothing", 403),
        ("CONNECT 10.7.3.4:1 HTTP/1.1", 502),  # nobody listens there
        ("X" * 100_000, 400),
    ],
)
async def test_anything_else_is_refused(root: Path, asked: str, status: int) -> None:
    """The answer says so, and the connection ends."""
    async with proxy(root) as egress:
        reader, writer = await asyncio.open_unix_connection(egress.path)
        writer.write(asked.encode() + b"\r\nHost: x\r\n\r\n")
        answer = await reader.read()
        writer.close()

        assert answer.split(b" ")[1] == str(status).encode()
        assert answer.endswith(b"\r\n\r\n")


async def test_one_who_asks_for_nothing_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He has his time."""
    monkeypatch.setattr(network, "SECONDS_TO_ASK", 0.1)
    async with proxy(root) as egress:
        reader, writer = await asyncio.open_unix_connection(egress.path)
        writer.write(b"CONNECT 10.7")

        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_a_node_whose_client_has_gone_is_let_go(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing more, as kubelet that follows a quiet log; the API server was killed."""
    monkeypatch.setattr(network, "SECONDS_HALF_CLOSED", 0.1)
    let_go = asyncio.Event()

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"a line")
        await reader.read()
        await let_go.wait()

    async with proxy(root) as egress, server(node) as port:
        reader, writer = await connect(egress, f"10.7.3.4:{port}")
        assert (await reader.readuntil(b"a line")).endswith(b"\r\n\r\na line")
        writer.close()
        async with asyncio.timeout(60):
            while egress.connections:
                await asyncio.sleep(0.01)
        let_go.set()


async def test_a_side_that_is_slow_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it says something now and then after the other has ended."""
    monkeypatch.setattr(network, "SECONDS_HALF_CLOSED", 5.0)

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        for _ in range(18):
            writer.write(b"x")
            await asyncio.sleep(0.3)

    async with proxy(root) as egress, server(node) as port:
        reader, writer = await connect(egress, f"10.7.3.4:{port}")
        await reader.readuntil(b"\r\n\r\n")
        writer.write_eof()

        assert await reader.read() == b"x" * 18
        writer.close()


async def test_its_end_ends_every_connection(root: Path) -> None:
    """And its socket is removed."""

    async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()

    async with server(node) as port:
        async with proxy(root) as egress:
            reader, writer = await connect(egress, f"10.7.3.4:{port}")
            await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        assert not egress.path.exists()
        writer.close()


async def test_a_long_path_and_one_that_a_dead_process_left_do_not_matter(root: Path) -> None:
    """The path of a socket may have 107 bytes: it is bound in its directory."""
    deep = root / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(root / "dead"))
    (root / "dead").rename(deep / "egress.sock")
    async with EgressProxy(deep / "egress.sock", Network(7)):
        with socket.socket(socket.AF_UNIX) as client:
            (root / "short").symlink_to(deep)
            client.connect(str(root / "short/egress.sock"))


@asynccontextmanager
async def proxy(root: Path) -> AsyncIterator[EgressProxy]:
    async with EgressProxy(root / "egress.sock", Network(7)) as egress:
        yield egress


@asynccontextmanager
async def server(node: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A node's server at 127.7.3.4; its port. Each of its connections has ended in the end."""
    connections = list[asyncio.Task[object]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        current = asyncio.current_task()
        assert current is not None
        connections.append(current)
        await node(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.7.3.4", 0) as found:
        yield found.sockets[0].getsockname()[1]
        async with asyncio.timeout(60):
            await asyncio.gather(*connections)


async def connect(egress: EgressProxy, target: str) -> Streams:
    """As Go's HTTPConnect asks."""
    reader, writer = await asyncio.open_unix_connection(egress.path)
    writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return reader, writer
