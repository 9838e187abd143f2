"""Metrics and health over HTTP."""

import asyncio
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuplane.node.agent.node import Node
from gpuplane.node.agent.restart import keep_part_running
from gpuplane.node.agent.statuspages import StatusPages, serve_status_pages
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import Part, Status, plugin_part
from gpuplane.service.daemonpages import EVENT_LOOP_STUCK_AFTER
from gpuplane.service.httpserver import MAX_CONNECTIONS
from gpuplane.service.servingoptions import ServingOptions
from tests.texts import as_shown

GPUS = (Gpu(index=0, uuid="GPU-a"), Gpu(index=1, uuid="GPU-b", faults=(Fault("gpu-lost", "gone"),)))


def ready() -> Node:
    """A node whose one resource kubelet reads."""
    node = Node(Snapshot())
    for fact in (MachineObserved(Machine(gpus=GPUS)), ConfigLoaded(Settings()), AllocationsListed((), 0.0)):
        node.apply(fact)
    node.apply(StatusChanged(plugin_part("nvidia.com/gpu"), Status("ok")))
    return node


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(node: Node, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The status pages of a node, at the URL that this gives."""
    port = free_port()
    task = asyncio.create_task(serve_status_pages(node, ServingOptions(host=host, port=port)))
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    async with asyncio.timeout(60):
        while not task.done():
            with suppress(ConnectionRefusedError):
                (await asyncio.open_connection(address, port))[1].close()
                break
            await asyncio.sleep(0.01)
    if task.done():
        await task
    yield f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def get(url: str) -> tuple[int, str]:
    """(HTTP status, body)."""

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def test_ready_means_that_kubelet_reads_every_resource() -> None:
    """Ready with the plugin's condition ok; unready, with the reason, before."""
    async with serving(ready()) as url:
        assert await get(f"{url}/readyz") == (200, "ok\n")
    async with serving(Node(Snapshot())) as url:
        assert (await get(f"{url}/readyz"))[0] == 503
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/nope"))[0] == 404


async def test_an_absent_driver_is_ready_with_the_reason_as_a_metric() -> None:
    """Nothing to advertise and the reason known: restarting the agent would cure nothing."""
    node = Node(Snapshot())
    node.apply(MachineObserved(Machine(faults=(Fault("driver-absent", "no libnvidia-ml.so.1"),))))
    async with serving(node) as url:
        assert await get(f"{url}/readyz") == (200, "ok\n")
        body = (await get(f"{url}/metrics"))[1]

    assert "gpuplane_waiting{" in body
    assert "driver-absent" in body


async def test_the_metrics_are_prometheus_text() -> None:
    """Every family parses, and the figures are the snapshot's."""
    async with serving(ready()) as url:
        body = (await get(f"{url}/metrics"))[1]
    families = {family.name: family for family in text_string_to_metric_families(body)}

    devices = {sample.labels["health"]: sample.value for sample in families["gpuplane_devices"].samples}
    assert devices == {"healthy": 1, "unhealthy": 1}
    assert families["gpuplane_ready"].samples[0].value == 1


def test_a_stuck_event_loop_is_not_alive() -> None:
    """Liveness is the event loop's own turn, and nothing else."""
    pages = StatusPages()
    assert pages.page("/healthz").status == 200
    pages.turned -= EVENT_LOOP_STUCK_AFTER + 1

    assert pages.page("/healthz").status == 503


def no_ipv6() -> bool:
    """Whether this machine has no IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return True
    return False


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost", "", *(() if no_ipv6() else ("::1", "::"))])
async def test_it_listens_where_it_is_told(host: str) -> None:
    """Of every family; all of IPv6 is all of IPv4 too."""
    async with serving(ready(), host) as url:
        assert (await get(f"{url}/healthz?verbose"))[0] == 200
        if host == "::":
            assert (await get(f"{url.replace('[::1]', '127.0.0.1')}/healthz"))[0] == 200


async def test_no_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own name is nobody's business, and a resolver may take its time."""

    def slow(name: str = "") -> str:
        raise AssertionError("looked up")

    monkeypatch.setattr(socket, "getfqdn", slow)
    async with serving(ready()) as url:
        assert (await get(f"{url}/healthz"))[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "203.0.113.1", "no-such-host.invalid"])
async def test_an_address_that_cannot_be_had_is_named(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line with the address, no traceback; it is tried again, and served when it can be."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        node = Node(Snapshot())
        task = asyncio.create_task(
            keep_part_running(
                node,
                Part("status pages"),
                lambda: serve_status_pages(node, ServingOptions(host=host, port=port)),
                (0.01, 0.1),
                0.05,
            )
        )
        assert await node.wait_until(lambda s: Part("status pages") in s.statuses, deadline=60)
        assert f"{host}:{port}: " in as_shown(node.snapshot.statuses[Part("status pages")].text)
    if host == "127.0.0.1":
        assert await node.wait_until(lambda s: Part("status pages") not in s.statuses, deadline=60)
        assert (await get(f"http://{host}:{port}/healthz"))[0] == 200
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert all(record.exc_info is None for record in caplog.records)


async def test_silent_and_broken_connections_cost_nobody_anything(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """However many are silent, a probe is answered; the oldest are let go of. Nothing is written about any of them."""
    async with serving(ready()) as url:
        caplog.clear()
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MAX_CONNECTIONS)]
        for _, writer in silent[::2]:
            writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert (await get(f"{url}/healthz"))[0] == 200
        async with asyncio.timeout(60):
            for reader, _ in silent[:MAX_CONNECTIONS]:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
        assert sum(thread.name.startswith("Thread-") for thread in threading.enumerate()) <= MAX_CONNECTIONS + 8
        for line in (b"\xff\xfe\r\n\r\n", b"GET /\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b"x" * 70_000):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(line)
            writer.transport.abort()
        for _, writer in silent:
            writer.transport.abort()
        assert (await get(f"{url}/readyz"))[0] == 200

    assert capfd.readouterr().err == ""
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


async def test_a_connection_that_dawdles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is that of the whole connection: a byte now and then buys no more of it."""
    monkeypatch.setattr("gpuplane.service.httpserver.MAX_CONNECTION_SECONDS", 0.1)
    async with serving(ready()) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        while not reader.at_eof():
            writer.write(b"G")
            with suppress(TimeoutError, ConnectionResetError):
                async with asyncio.timeout(0.05):
                    await reader.read()
        writer.close()
