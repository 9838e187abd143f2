"""The pages over TLS: who listens, with which certificate, and what becomes of a bad one."""

import asyncio
import socket
import ssl
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpuplane.service import httpserver, pageserver
from gpuplane.service.daemonpages import DaemonPages
from gpuplane.service.pageserver import serve_daemon_pages
from gpuplane.service.servingoptions import ServingOptions
from tests.service.secret import EXPIRY, PEMS, Secret

METRIC = "gpuplane_certificate_expiry_timestamp_seconds"


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def trusting() -> ssl.SSLContext:
    """A client that takes every certificate, and sees which one it was."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def certificate_of(port: int, context: ssl.SSLContext | None = None) -> str:
    """The certificate that a server shows, in PEM."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as raw,
        (context or trusting()).wrap_socket(raw) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
        assert shown is not None
        return ssl.DER_cert_to_PEM_cert(shown)


def page(port: int, path: str) -> bytes:
    """What is read over TLS."""
    with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", timeout=60, context=trusting()) as answer:
        body: bytes = answer.read()
        return body


async def until_shown(port: int, name: str) -> None:
    """Wait until a server shows a certificate."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(certificate_of, port) != (PEMS / f"{name}.crt").read_text():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(secret: Secret, reports: list[str]) -> AsyncIterator[int]:
    """Pages with the certificate of a secret, at a port."""
    port = free_port()
    options = ServingOptions(host="127.0.0.1", port=port, certificate=secret.files)
    task = asyncio.create_task(serve_daemon_pages(DaemonPages(), options, report_certificate=reports.append))
    try:
        async with asyncio.timeout(60):
            while not task.done():
                with suppress(ConnectionRefusedError):
                    await asyncio.to_thread(certificate_of, port)
                    break
                await asyncio.sleep(0.01)
        if task.done():
            await task
        yield port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_every_page_is_served_over_tls_and_none_without(tmp_path: Path) -> None:
    """Plain HTTP gets no answer: neither a page nor an error that a client could take for one."""
    async with serving(Secret(tmp_path, "first"), []) as port:
        assert await asyncio.to_thread(page, port, "/healthz") == b"ok\n"
        assert await asyncio.to_thread(page, port, "/readyz") == b"ok\n"
        assert METRIC.encode() in await asyncio.to_thread(page, port, "/metrics")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert b"HTTP" not in await reader.read()
        writer.close()


async def test_a_new_certificate_is_served_without_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics tell when the one that is served expires. A bad pair is reported once, and a good one again."""
    monkeypatch.setattr(pageserver, "CERTIFICATE_PERIOD", 0.02)
    reports: list[str] = []
    secret = Secret(tmp_path, "first")
    async with serving(secret, reports) as port:
        before = await asyncio.to_thread(page, port, "/metrics")
        secret.link(PEMS / "second.crt", PEMS / "first.key")
        async with asyncio.timeout(60):
            while not reports:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert await asyncio.to_thread(certificate_of, port) == (PEMS / "first.crt").read_text()
        assert len(reports) == 1
        assert reports[0] != ""

        secret.swap("second")
        await until_shown(port, "second")
        async with asyncio.timeout(60):
            while len(reports) < 2:
                await asyncio.sleep(0.02)
            while f"{METRIC} {EXPIRY['second']}\n".encode() not in await asyncio.to_thread(page, port, "/metrics"):
                await asyncio.sleep(0.02)
    assert f"{METRIC} {EXPIRY['first']}\n".encode() in before
    assert reports[1:] == [""]


async def test_nothing_is_served_where_the_certificate_cannot_be_used(tmp_path: Path) -> None:
    """Who asked for TLS gets no pages without it."""
    secret = Secret(tmp_path, "first")
    secret.link(PEMS / "second.crt", PEMS / "first.key")
    with pytest.raises(OSError, match=r"tls\.key"):
        async with serving(secret, []):
            pass


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_tls_1_1_is_refused(tmp_path: Path) -> None:
    """By the server, whatever a client allows."""
    old = trusting()
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(Secret(tmp_path, "first"), []) as port:
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            await asyncio.to_thread(certificate_of, port, old)


async def test_connections_that_say_nothing_cost_nobody_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the handshake nor in the midst of it: the oldest gives way, and a slow one ends in time."""
    async with serving(Secret(tmp_path, "first"), []) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * httpserver.MAX_CONNECTIONS)]
        for _, writer in silent[::2]:
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # a handshake begins, and goes no further
        assert await asyncio.to_thread(page, port, "/healthz") == b"ok\n"
        async with asyncio.timeout(60):
            for reader, _ in silent[: httpserver.MAX_CONNECTIONS]:
                with suppress(ConnectionResetError):
                    await reader.read()
        monkeypatch.setattr(httpserver, "MAX_CONNECTION_SECONDS", 0.1)
        async with asyncio.timeout(60):
            for reader, _ in silent:
                with suppress(ConnectionResetError):
                    await reader.read()
        for _, writer in silent:
            writer.transport.abort()
