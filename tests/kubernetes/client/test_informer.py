"""A collection is followed through everything that an API server does to its clients."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.client import api, lists, retry
from gpuplane.kubernetes.client.api import ApiClient
from gpuplane.kubernetes.client.informer import Informer
from gpuplane.kubernetes.objects import ApiPod
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.kubernetes.client.recorder import Recorder

PODS = "/api/v1/namespaces/team/pods"
LIST, WATCH = f"GET {PODS}", f"WATCH {PODS}"
HOUR = 3600.0


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    async with ApiServer() as server:
        put(server, "one")
        yield server


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return path


def put(server: ApiServer, name: str, phase: str = "Pending") -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team"}}
    server.put(f"{PODS}/{name}", {**pod, "spec": {"containers": []}, "status": {"phase": phase}})


@asynccontextmanager
async def following(
    kubeconfig: Path,
    list_every: float = HOUR,
    meanwhile: Callable[[ApiClient], Coroutine[Any, Any, object]] | None = None,
) -> AsyncIterator[Recorder[ApiPod]]:
    found = Recorder[ApiPod]()
    informer = Informer(kubeconfig, PODS, ApiPod, list_every=list_every)
    task = asyncio.create_task(informer.run(found, meanwhile))
    try:
        await found.becomes(lambda: found.streams)
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_objects_come_change_and_go(server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a list in pages, one event each."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 2)
    for name in ("two", "three", "four", "five"):
        put(server, name)
    async with following(kubeconfig) as found:
        assert set(found.objects) == {"one", "two", "three", "four", "five"}
        put(server, "six")
        put(server, "two", "Running")
        server.put(f"{PODS}/one", None)
        await found.becomes(lambda: len(found.events) == 3)
        assert found.events == [("ADDED", "six"), ("MODIFIED", "two"), ("DELETED", "one")]
        assert found.objects["two"].status.phase == "Running"
    assert server.requests.count(LIST) == 3


@pytest.mark.parametrize("end", ["drop", "finish"])
async def test_a_stream_goes_on_where_the_one_before_ended(server: ApiServer, kubeconfig: Path, end: str) -> None:
    """Nothing is listed again, nothing is lost, nothing is told twice, and no failure is told."""
    async with following(kubeconfig) as found:
        put(server, "two")
        await found.becomes(lambda: "two" in found.objects)
        if end == "drop":
            await server.drop_connections()
        else:
            server.end_streams()
        put(server, "three")
        server.put(f"{PODS}/one", None)
        await found.becomes(lambda: len(found.events) == 3)
        assert found.events == [("ADDED", "two"), ("ADDED", "three"), ("DELETED", "one")]
    assert server.requests.count(LIST) == 1
    assert not found.failures


async def test_a_bookmark_keeps_the_version_young(server: ApiServer, kubeconfig: Path) -> None:
    """What happens elsewhere makes the last version of a quiet collection an old one, which is forgotten."""
    async with following(kubeconfig) as found:
        server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        server.bookmark()
        server.objects.compact()
        server.end_streams()
        put(server, "two")
        await found.becomes(lambda: "two" in found.objects)
    assert server.requests.count(LIST) == 1


@pytest.mark.parametrize("how", ["in the stream", "at its opening", "by its status"])
async def test_a_version_that_is_forgotten_is_listed_anew(server: ApiServer, kubeconfig: Path, how: str) -> None:
    """410: what was deleted meanwhile is gone; and it is no failure."""
    async with following(kubeconfig) as found:
        if how == "in the stream":
            server.expire_history()
            put(server, "two")
        else:
            if how == "by its status":
                server.failures.append(InjectedFailure(WATCH, code=410, message="too old resource version"))
            await server.stop()
            server.put(f"{PODS}/one", None)
            put(server, "two")
            server.objects.compact()
            await server.start()
        await found.becomes(lambda: "two" in found.objects and found.lists == 2)
        assert ("one" in found.objects) is (how == "in the stream")
        assert not [each for each in found.failures if each.code]


async def test_a_list_that_is_old_is_not_gone_on_from(server: ApiServer, kubeconfig: Path) -> None:
    """What a server that was restored from a backup has lost is seen by a list alone."""
    async with following(kubeconfig, list_every=0.0) as found:
        await server.drop_connections()
        await found.becomes(lambda: found.lists >= 2)


@pytest.mark.parametrize("garbage", [b'{"type": "MODIFIED", "object": 7}\n', b"<html>\n", b'{"type": "ADDED"}\n'])
async def test_what_cannot_be_read_is_not_asked_for_again(server: ApiServer, kubeconfig: Path, garbage: bytes) -> None:
    """A stream from the same version would tell it again."""
    server.failures.append(InjectedFailure(WATCH, garbage=garbage))
    async with following(kubeconfig) as found:
        await found.becomes(lambda: found.lists == 2)
        assert not found.failures


async def test_a_silent_stream_is_given_up(
    server: ApiServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "STREAM_TIMEOUT", 0.2)
    async with following(kubeconfig) as found:
        await found.becomes(lambda: found.streams >= 3)
        assert found.lists == 1
        assert not found.failures


async def test_a_server_that_is_away_is_told_and_waited_for(server: ApiServer, kubeconfig: Path) -> None:
    """The stream after it goes on where the last one ended."""
    async with following(kubeconfig) as found:
        await server.stop()
        await found.becomes(lambda: len(found.failures) >= 2)
        put(server, "two")
        await server.start()
        await found.becomes(lambda: "two" in found.objects)
    assert server.requests.count(LIST) == 1


async def test_an_event_that_could_not_be_handled_is_told_again(server: ApiServer, kubeconfig: Path) -> None:
    """Its version counts as seen only after that."""
    async with following(kubeconfig) as found:
        found.refuses = 2
        put(server, "two")
        await found.becomes(lambda: "two" in found.objects)
        assert len(found.failures) == 2
        assert found.events == [("ADDED", "two")]


async def test_what_is_done_meanwhile_ends_with_the_stream(server: ApiServer, kubeconfig: Path) -> None:
    """It has an open client of its own stream, and begins again with the next."""
    running, begun = set[int](), 0

    async def write(client: ApiClient) -> None:
        nonlocal begun
        begun += 1
        running.add(begun)
        try:
            while True:
                await client.get(f"{PODS}/one", ApiPod)
                await asyncio.sleep(0.01)
        finally:
            running.discard(begun)

    async with following(kubeconfig, meanwhile=write) as found:
        await found.becomes(lambda: running == {1})
        server.end_streams()
        await found.becomes(lambda: running == {2})
        assert not found.failures
    assert not running
