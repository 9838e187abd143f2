"""An API server, or what stands in its place, that never stops: it is hung up on, said, and asked again later."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest

from gpuplane.kubernetes.client import connect, connection, lists, retry
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.objects import ApiPod
from gpuplane.node.apiserver.node import CONFIG_LABEL
from gpuplane.node.core.requests import node_requests
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.lengths import length
from tests.node.apiserver.test_node_requests import NAME, PATH, Told, following, node_object

LIST, ONE, WATCH = "GET /api/v1/nodes", f"GET {PATH}", "WATCH *"
SPACE = b" " * (1 << 16)
EVENT = msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": {"name": NAME}}}) + b"\n"
LARGE = b'{"metadata": {"labels": {"x": "' + b"x" * (1 << 20)
MOST = 16e6  # bytes more than before


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    """One with our Node."""
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    async with ApiServer() as server:
        server.put(PATH, node_object({CONFIG_LABEL: "good"}))
        yield server


PIECES = {
    "chunks": (SPACE, "body"),
    "length": (SPACE, "length"),
    "head": (b"x" * 4096, "head"),
    "lines": (EVENT * 500, "body"),
    "text": (LARGE, "body"),
    "small chunks": (b"1", "body"),
}
ALIKE = [(ONE, name) for name in ("head", "lines", "text", "small chunks")] + [(WATCH, "head"), (WATCH, "length")]
"""What is read as the same answer to a list is."""


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (request, name)
        for request in (LIST, ONE, WATCH)
        for name in PIECES
        if (request, name) not in length(ALIKE, list[tuple[str, str]]())
    ],
)
async def test_an_answer_without_an_end_is_given_up(
    server: ApiServer, kubeconfig: Path, request_: str, name: str
) -> None:
    """Soon and said, for little memory; and what comes after is believed. A list is first asked for in small pages."""
    piece, where = PIECES[name]
    times = 5 if request_ == LIST else 2
    server.failures.append(InjectedFailure(request_, times=times, endless=piece, where=where))
    async with following(kubeconfig) as node:
        tracemalloc.start()
        try:
            async with asyncio.timeout(240):
                while server.failures[0].times or not _well(node):
                    await asyncio.sleep(0.05)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert "failing" in node.standings
    assert most < MOST


def _well(node: Told) -> bool:
    return (
        node.apiserver is not None
        and node.apiserver.state == "ok"
        and node_requests(node.snapshot).config_name == "good"
    )


async def test_an_answer_that_drips_is_given_up(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then makes no answer longer than the deadline."""
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT", 0.5)
    server.failures.append(InjectedFailure(LIST, times=2, endless=b" ", pause=0.1))
    async with following(kubeconfig) as node:
        await node.stands("failing", "does not answer within 0.5 s")
        await node.stands("ok")


async def test_a_stream_of_an_hour_at_the_usual_pace_is_no_flood(server: ApiServer, kubeconfig: Path) -> None:
    """A Node of 1.5 MiB that changes a few times at once."""
    async with following(kubeconfig) as node:
        await node.stands("ok")
        for number in range(3):
            server.put(PATH, node_object({CONFIG_LABEL: f"c{number}"}, {"x": "x" * (1 << 20)}))
            await node.comes_to(lambda snapshot, number=number: node_requests(snapshot).config_name == f"c{number}")  # type: ignore[misc]
        assert "failing" not in node.standings


@pytest.mark.parametrize("names", [("x" * 20_000,), ("x",), ()], ids=["large", "small", "empty"])
@pytest.mark.parametrize(("tokens", "why"), [("same", "the list has no end"), ("new", "without an end")])
async def test_a_list_that_always_goes_on_is_given_up(
    tokens: str, why: str, names: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that names a next page with each page: with the same token, or with a new one each time."""
    monkeypatch.setattr(lists, "MAX_LIST_BYTES", 1 << 20)
    monkeypatch.setattr(lists, "MAX_CLUSTER_LIST_BYTES", 1 << 20)
    asked, served = 0, list[asyncio.Task[None]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        served.append(cast("asyncio.Task[None]", asyncio.current_task()))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                asked += 1
                token = "x" if tokens == "same" else f"{asked}"
                items = [{"metadata": {"name": name}} for name in names]
                page = {"items": items, "metadata": {"continue": token}}
                body = msgspec.json.encode(page)
                head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = tmp_path / "kubeconfig"
    path.write_text(ApiServer().kubeconfig().replace("http://127.0.0.1:0", f"http://127.0.0.1:{port}"))
    async with server:
        async with connect(path) as client:
            with pytest.raises(ApiServerError, match=why):
                await client.list("/api/v1/pods", ApiPod, metadata_only=True)
            with pytest.raises(ApiServerError, match=why):
                await client.list("/api/v1/pods", ApiPod, size_limit="cluster", kind="pod")
            with pytest.raises(ApiServerError, match=why):
                await client.list("/api/v1/pods", ApiPod)
        await asyncio.gather(*served)
    assert asked <= 3 * (2 if tokens == "same" else 1025 if names == ("x",) else 53)
