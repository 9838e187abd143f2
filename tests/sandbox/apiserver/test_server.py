"""The small API server behaves as a client of the real one expects: lightkube, typed, is the client here."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, Node, Pod
from lightkube.types import PatchType

from gpuplane.sandbox.apiserver.objects import ResourcePath, StatusError, parse_path
from gpuplane.sandbox.apiserver.patches import merge_patch
from gpuplane.sandbox.apiserver.selectors import matches
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from gpuplane.sandbox.http import Request


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[AsyncClient]:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    client = AsyncClient(KubeConfig.from_file(path))
    yield client
    await client.close()


async def test_a_nodes_life(server: ApiServer, client: AsyncClient) -> None:
    """Made, read, patched, deleted; every write has a version of its own."""
    made = await client.create(Node(metadata=ObjectMeta(name="a", labels={"x": "1", "y": "2"})))
    patched = await client.patch(Node, "a", {"metadata": {"labels": {"x": None, "z": "3"}}}, patch_type=PatchType.MERGE)

    assert made.metadata and made.metadata.resourceVersion == "1"
    assert patched.metadata and patched.metadata.labels == {"y": "2", "z": "3"}
    assert (await client.get(Node, "a")).metadata == patched.metadata
    with pytest.raises(ApiError, match="has been modified"):
        await client.patch(Node, "a", {"metadata": {"resourceVersion": "1", "labels": {"x": "2"}}})
    with pytest.raises(ApiError, match="already exists"):
        await client.create(Node(metadata=ObjectMeta(name="a")))

    await client.delete(Node, "a")

    with pytest.raises(ApiError, match='nodes "a" not found'):
        await client.get(Node, "a")


async def test_a_patch_of_a_status_merges_its_conditions(server: ApiServer, client: AsyncClient) -> None:
    """By their type, and field by field; it leaves everything but the status alone. A merge patch replaces the list."""
    ready, ours = {"type": "Ready", "status": "True"}, {"type": "Ours", "status": "False", "reason": "Fine"}
    server.put("/api/v1/nodes/a", {"metadata": {"labels": {"x": "1"}}, "status": {"conditions": [ready, ours]}})

    async def conditions(kind: PatchType, *given: dict[str, str]) -> list[tuple[str, str, str | None]]:
        patch = {"metadata": {"labels": {"x": "2"}}, "status": {"conditions": list(given)}}
        node = await client.patch(Node.Status, "a", patch, patch_type=kind)
        assert node.status
        return [(each.type, each.status, each.reason) for each in node.status.conditions or []]

    assert await conditions(
        PatchType.STRATEGIC, {"type": "Ours", "status": "True"}, {"type": "New", "status": "?"}
    ) == [
        ("Ready", "True", None),
        ("Ours", "True", "Fine"),
        ("New", "?", None),
    ]
    assert await conditions(PatchType.MERGE, {"type": "Ours", "status": "True"}) == [("Ours", "True", None)]
    found = (await client.get(Node, "a")).metadata
    assert found
    assert found.labels == {"x": "1"}


async def test_events(server: ApiServer, client: AsyncClient) -> None:
    """Made, and counted again."""
    about = ObjectReference(kind="Node", name="n1", uid="n1")
    event = Event(metadata=ObjectMeta(name="n1.1", namespace="default"), involvedObject=about, count=1, reason="Why")
    await client.create(event)
    await client.patch(Event, "n1.1", {"count": 2}, namespace="default", patch_type=PatchType.STRATEGIC)

    [found] = [each async for each in client.list(Event, namespace="default", fields={"involvedObject.uid": "n1"})]
    assert (found.count, found.reason) == (2, "Why")


async def test_namespaces_and_selectors(server: ApiServer, client: AsyncClient) -> None:
    """A namespace holds its own; all of them are one collection; fields choose."""
    for namespace, name, where in (("a", "one", "n1"), ("a", "two", "n2"), ("b", "one", "n1")):
        pod = {"spec": {"nodeName": where, "containers": []}}
        server.put(f"/api/v1/namespaces/{namespace}/pods/{name}", pod)

    async def names(**chosen: Any) -> list[str]:
        found = [pod.metadata async for pod in client.list(Pod, **chosen)]
        return [f"{each.namespace}/{each.name}" for each in found if each]

    assert await names(namespace="a") == ["a/one", "a/two"]
    assert await names(namespace="*", fields={"spec.nodeName": "n1"}) == ["a/one", "b/one"]


async def test_a_watch_from_a_version(server: ApiServer, client: AsyncClient) -> None:
    """What came after the version is told first, then what happens; what ceases to match is told as deleted."""
    server.put("/api/v1/nodes/a", {"spec": {"providerID": "x"}})
    server.put("/api/v1/nodes/a", {"spec": {"providerID": "x", "unschedulable": True}})
    events = aiter(client.watch(Node, resource_version="1", fields={"spec.providerID": "x"}))

    assert (await anext(events))[0] == "MODIFIED"

    server.put("/api/v1/nodes/b", {"spec": {"providerID": "x"}})
    server.put("/api/v1/nodes/c", {"spec": {}})
    server.put("/api/v1/nodes/a", {"spec": {}})
    server.put("/api/v1/nodes/b", None)
    told = [await anext(events) for _ in range(3)]

    assert [(kind, node.metadata and node.metadata.name) for kind, node in told] == [
        ("ADDED", "b"),
        ("DELETED", "a"),
        ("DELETED", "b"),
    ]


async def test_a_version_that_is_forgotten(server: ApiServer, client: AsyncClient) -> None:
    """410 comes as an event of a stream that was opened well."""
    server.put("/api/v1/nodes/a", {})
    server.put("/api/v1/nodes/a", {})
    server.expire_history()
    with pytest.raises(ApiError, match="too old resource version: 1") as refused:
        await anext(aiter(client.watch(Node, resource_version="1")))
    assert refused.value.status.code == 410


@pytest.mark.parametrize(
    ("path", "code"),
    [("/", 404), ("/api/v1/nodes/none", 404), ("/apis/a.b/v1/things", 200), ("/api/v1/namespaces/a/pods/p/log", 404)],
)
async def test_paths(server: ApiServer, path: str, code: int) -> None:
    """Any collection can be asked about; what is not there is a 404 with a Status."""
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        answer = await http.get(path)
    assert answer.status_code == code
    assert answer.json()["kind"] == ("Status" if code == 404 else "ThingList")


async def test_metadata_alone(server: ApiServer) -> None:
    """A client that asks for metadata gets no status."""
    server.put("/api/v1/nodes/a", {"status": {"images": ["many"]}})
    accept = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        [found] = (await http.get("/api/v1/nodes", headers=accept)).json()["items"]
    assert sorted(found) == ["apiVersion", "kind", "metadata"]


async def test_bytes_that_are_no_http(server: ApiServer) -> None:
    """They end their own connection and nothing else."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    writer.write(b"hello\r\n\r\n")

    assert await reader.read() == b""

    writer.close()
    await writer.wait_closed()
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        assert (await http.get("/api/v1/nodes")).status_code == 200


async def test_troubles_end(server: ApiServer) -> None:
    """A trouble concerns the requests that it names, as often as it says."""
    server.failures = [InjectedFailure("GET */nodes", times=2, code=500, message="etcd")]
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        codes = [(await http.get(f"/api/v1/{what}")).status_code for what in ("pods", "nodes", "nodes", "nodes")]
    assert codes == [200, 500, 500, 200]


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
    ],
)
def test_merge_patches(old: Any, patch: Any, new: Any) -> None:
    """The examples of RFC 7386, appendix A."""
    assert merge_patch(old, patch) == new


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("", True),
        ("metadata.name=a", True),
        ("metadata.name==a,spec.nodeName!=n2", True),
        ("metadata.name=b", False),
        ("spec.absent=", True),
    ],
)
def test_selectors(selector: str, expected: bool) -> None:
    """All terms must fit; an absent value is the empty one."""
    found = {"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}}

    assert matches(found, selector) is expected
    assert matches(None, selector) is False


@pytest.mark.parametrize("watch", ["", "&watch=true"])
async def test_what_is_no_selector(server: ApiServer, watch: str) -> None:
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        assert (await http.get(f"/api/v1/nodes?fieldSelector=a{watch}")).status_code == 400


CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"


@pytest.mark.parametrize("content", [b"", b"null", b"7", b"{", b"\xff", b"a: b", b"[" * 100_000])
@pytest.mark.parametrize("kind", ["json", "apply-patch+yaml", "merge-patch+json", "json-patch+json"])
def test_what_is_no_object(content: bytes, kind: str) -> None:
    """It is refused, and nothing raises."""
    server = ApiServer()
    server.put(f"{CLASSES}/c", {"spec": {}})
    method, path = ("PATCH", f"{CLASSES}/c") if "patch" in kind else ("POST", CLASSES)
    asked = Request(method, path, {"fieldManager": "m"}, {"content-type": f"application/{kind}"}, content)
    with pytest.raises(StatusError) as refused:
        server.registry.respond(asked)
    assert refused.value.code == 400


async def test_a_finalizer_holds_an_object(server: ApiServer, client: AsyncClient) -> None:
    """A deletion marks it; it goes when the last finalizer goes."""
    server.put("/api/v1/nodes/a", {"metadata": {"finalizers": ["example.com/f"]}})
    await client.delete(Node, "a")
    held = (await client.get(Node, "a")).metadata
    assert held
    assert held.deletionTimestamp
    await client.patch(Node, "a", {"metadata": {"finalizers": None}}, patch_type=PatchType.MERGE)
    assert not server.objects.has(parse_path("/api/v1/nodes/a"))


async def test_what_a_test_has_it_make_of_writes(tmp_path: Path) -> None:
    """Another object, or a refusal; what the test itself puts there is not asked about."""

    def admit(path: ResourcePath, new: dict[str, Any]) -> dict[str, Any]:
        if path.name == "b":
            raise StatusError(422, "Invalid", "no", details={"causes": [{"field": "spec"}]})
        return {**new, "spec": {}}

    async with ApiServer(admit=admit) as server:
        server.put("/api/v1/nodes/b", {"spec": {"podCIDR": "10.0.0.0/24"}})
        async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
            made = await http.post("/api/v1/nodes", json={"metadata": {"name": "a"}, "spec": {"unschedulable": True}})
            headers = {"content-type": "application/merge-patch+json"}
            refused = await http.patch("/api/v1/nodes/b", json={"spec": None}, headers=headers)
    assert (made.status_code, made.json()["spec"]) == (201, {})
    assert (refused.status_code, refused.json()["details"]) == (422, {"causes": [{"field": "spec"}]})
