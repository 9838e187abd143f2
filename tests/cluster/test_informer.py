"""Collections of a real API server: listed in pages, watched, gone on with, and listed again when that is needed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
import pytest
import pytest_asyncio

from gpuplane.cluster.reading.budgets import ApiBudget
from gpuplane.kubernetes.claims import ApiClaim, ApiSlice
from gpuplane.kubernetes.client import api, connect, lists
from gpuplane.kubernetes.client.informer import Informer
from gpuplane.kubernetes.objects import ApiNode, ApiObject, ApiPod
from tests.cluster.controlplane import DEADLINE, Client, ControlPlane, Json
from tests.kubernetes.client.recorder import Recorder

SPACE = "/api/v1/namespaces/informer"
PODS, CONFIG_MAPS = f"{SPACE}/pods", f"{SPACE}/configmaps"
HOUR = 3600.0
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """With a namespace for pods that nobody schedules."""
    async with Client(control_plane) as admin:
        await admin.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "informer"}})

        async def account() -> Any:
            return (await admin.tried("GET", f"{SPACE}/serviceaccounts/default"))[0] == 200

        await admin.until(account)
        yield admin


async def make(admin: Client, *names: str, **spec: Any) -> None:
    for name in names:
        pod = {"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "example.com/wait"}], **spec}
        await admin.ask("POST", PODS, {"metadata": {"name": name}, "spec": pod})


async def delete(admin: Client, *names: str) -> None:
    for name in names:
        await admin.ask("DELETE", f"{PODS}/{name}", gracePeriodSeconds="0")


@asynccontextmanager
async def running(informer: Informer[Any], found: Recorder[Any]) -> AsyncIterator[Recorder[Any]]:
    """An informer that follows until the end of the block."""
    streams = found.streams
    task = asyncio.create_task(informer.run(found))
    try:
        await found.becomes(lambda: found.streams > streams, DEADLINE)
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def follow(control_plane: ControlPlane, path: str = PODS, shape: type[Any] = ApiPod, **more: Any) -> Informer[Any]:
    return Informer(control_plane.kubeconfig, path, shape, **{"list_every": HOUR, **more})


async def compact(control_plane: ControlPlane) -> None:
    """Have etcd forget all but the present, as the API server does every five minutes."""
    command = msgspec.json.decode((control_plane.directory / "etcd.json").read_bytes())
    where = urlsplit(command[command.index("--listen-client-urls") + 1])
    async with httpx2.AsyncClient(base_url=where.geturl()) as etcd:
        now = (await etcd.post("/v3/kv/range", json={"key": "AA=="})).json()["header"]["revision"]
        answer = await etcd.post("/v3/kv/compaction", json={"revision": now, "physical": True})
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("metadata_only", [False, True])
async def test_pods_come_change_and_go(
    control_plane: ControlPlane, admin: Client, metadata_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a list in pages; of a pod that is made again there is a new one, with another UID."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 2)
    await make(admin, "a", "b", "c", "d", "e")
    informer = follow(control_plane, metadata_only=metadata_only)
    async with running(informer, Recorder()) as found:
        assert set(found.objects) == {"a", "b", "c", "d", "e"}
        first = found.objects["a"].metadata.uid
        assert bool(found.objects["a"].spec.containers) is not metadata_only
        await admin.patch(f"{PODS}/b", {"metadata": {"labels": {"app": "b"}}})
        await delete(admin, "a")
        await make(admin, "a")
        await found.becomes(lambda: found.objects.get("a") and found.objects["a"].metadata.uid != first, DEADLINE)
        assert found.objects["b"].metadata.labels == {"app": "b"}
        assert ("DELETED", "a") in found.events
        await delete(admin, "a", "b", "c", "d", "e")
        await found.becomes(lambda: not found.objects, DEADLINE)
    assert (found.lists, found.failures) == (1, [])


async def test_an_empty_collection_and_one_object(control_plane: ControlPlane, admin: Client) -> None:
    """By a field selector."""
    informer = follow(control_plane, fields="metadata.name=wanted", metadata_only=True)
    async with running(informer, Recorder()) as found:
        assert found.objects == {}
        await make(admin, "other", "wanted")
        await found.becomes(lambda: found.objects, DEADLINE)
        assert set(found.objects) == {"wanted"}
        await delete(admin, "other", "wanted")
        await found.becomes(lambda: not found.objects, DEADLINE)


async def test_a_list_over_a_compaction(
    control_plane: ControlPlane, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether or not the server still knows the version of the first page, all objects are there once."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 2)
    await make(admin, "a", "b", "c", "d", "e")
    ask, asked = api.ApiClient._ask, 0

    async def and_compact(client: api.ApiClient, request: httpx2.Request) -> bytes:
        nonlocal asked
        body, asked = await ask(client, request), asked + 1
        if asked == 1:
            await admin.patch(f"{PODS}/e", {"metadata": {"labels": {"app": "e"}}})
            await compact(control_plane)
        return body

    monkeypatch.setattr(api.ApiClient, "_ask", and_compact)
    async with connect(control_plane.kubeconfig) as client:
        found = await client.list(PODS, ApiPod)
    assert sorted(each.metadata.name for each in found.items) == ["a", "b", "c", "d", "e"]
    await delete(admin, "a", "b", "c", "d", "e")


async def test_a_version_that_a_new_server_does_not_know(control_plane: ControlPlane, admin: Client) -> None:
    """410: while nobody watched a pod was deleted, etcd was compacted, and the server was restarted."""
    await make(admin, "stays", "goes")
    informer, found = follow(control_plane), Recorder[ApiPod]()
    async with running(informer, found):
        assert set(found.objects) == {"stays", "goes"}
    await delete(admin, "goes")
    await make(admin, "new")
    await compact(control_plane)
    await asyncio.to_thread(control_plane.run, "restart", "kube-apiserver")
    task = asyncio.create_task(informer.run(found))
    try:
        await found.becomes(lambda: set(found.objects) == {"stays", "new"}, DEADLINE)
        assert found.lists == 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await delete(admin, "stays", "new")


async def test_a_server_that_is_restarted_meanwhile(control_plane: ControlPlane, admin: Client) -> None:
    """Nothing is lost, and the stream is open again."""
    await make(admin, "before")
    async with running(follow(control_plane), Recorder()) as found:
        streams = found.streams
        await asyncio.to_thread(control_plane.run, "restart", "kube-apiserver")
        await make(admin, "after")
        await delete(admin, "before")
        await found.becomes(lambda: set(found.objects) == {"after"}, DEADLINE)
        assert found.streams > streams
        await delete(admin, "after")
        await found.becomes(lambda: not found.objects, DEADLINE)


async def test_bookmarks_keep_the_version_young(control_plane: ControlPlane, admin: Client) -> None:
    """A server sends one before it ends a stream: the next goes on from there, without a list."""
    informer = follow(control_plane, CONFIG_MAPS, ApiObject, fields="metadata.name=nothing", lifetime=(5.0, 5.0))
    async with running(informer, Recorder()) as found:
        first = int(informer._version)
        for number in range(3):
            await admin.ask("POST", CONFIG_MAPS, {"metadata": {"name": f"other-{number}"}})
        await found.becomes(lambda: found.streams >= 3, DEADLINE)
        assert int(informer._version) >= first + 3
    assert (found.lists, found.events, found.failures) == (1, [], [])


OBJECTS: list[tuple[str, type[Any], Json, Json, Callable[[Any], object], object]] = [
    (
        "/api/v1/nodes",
        ApiNode,
        {"metadata": {"name": "types"}, "spec": {"unschedulable": True}},
        {"status": {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "False"}],
                    "nodeInfo": {"containerRuntimeVersion": "containerd://2.1", "kubeletVersion": "v1.36.2"}}},
        lambda found: (
            found.spec.unschedulable,
            found.status.capacity,
            [(each.type, each.status) for each in found.status.conditions],
            found.status.node_info.container_runtime_version,
            found.status.node_info.kubelet_version,
        ),
        (True, {"cpu": "4"}, [("Ready", "False")], "containerd://2.1", "v1.36.2"),
    ),
    (
        PODS,
        ApiPod,
        {"metadata": {"name": "types", "annotations": {"a": "b"}},
         "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
                  "schedulingGates": [{"name": "example.com/wait"}], "nodeSelector": {"a": "b"},
                  "resourceClaims": [{"name": "g", "resourceClaimName": "types"}]}},
        {},
        lambda found: (
            found.metadata.namespace,
            found.metadata.annotations,
            found.spec.containers[0].amounts(),
            len(found.spec.scheduling_gates),
            found.spec.node_selector,
            found.spec.resource_claims[0].resource_claim_name,
            found.has_claims,
            found.status.phase,
        ),
        ("informer", {"a": "b"}, {"nvidia.com/gpu": "1"}, 1, {"a": "b"}, "types", True, "Pending"),
    ),
    (
        "/apis/resource.k8s.io/v1/namespaces/informer/resourceclaims",
        ApiClaim,
        {"metadata": {"name": "types"},
         "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "count": 1}}]}}},
        {"status": {"allocation": {"devices": {
            "results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}],
            "config": [{"source": "FromClaim", "requests": ["r"],
                        "opaque": {"driver": "d.example.com", "parameters": {"kind": "K"}}}]}}}},
        lambda found: (
            [(each.driver, each.pool, each.device) for each in found.status.allocation.devices.results],
            [bytes(each.opaque.parameters) for each in found.status.allocation.devices.config],
        ),
        ([("d.example.com", "p", "x")], [b'{"kind":"K"}']),
    ),
    (
        "/apis/resource.k8s.io/v1/resourceslices",
        ApiSlice,
        {"metadata": {"name": "types"},
         "spec": {"driver": "d.example.com", "nodeName": "types", "devices": [{"name": "x"}],
                  "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}},
        {},
        lambda found: (found.spec["driver"], found.spec["devices"], found.metadata.generation),
        ("d.example.com", [{"name": "x"}], 1),
    ),
    (
        "/apis/policy/v1/namespaces/informer/poddisruptionbudgets",
        ApiBudget,
        {"metadata": {"name": "types"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}},
        {},
        lambda found: (found.name, found.spec.selector.match_labels),
        ("informer/types", {"a": "b"}),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "shape", "made", "status", "read", "expected"), OBJECTS, ids=[each[1].__name__ for each in OBJECTS]
)
async def test_the_types_are_those_of_the_server(
    control_plane: ControlPlane,
    admin: Client,
    path: str,
    shape: type[Any],
    made: Json,
    status: Json,
    read: Callable[[Any], object],
    expected: object,
) -> None:
    """One object alone, and in a list."""
    await admin.ask("POST", path, made)
    if status:
        await admin.patch(f"{path}/types", status, "status")
    async with connect(control_plane.kubeconfig) as client:
        one = await client.get(f"{path}/types", shape)
        listed = await client.list(path, shape, fields="metadata.name=types")
    for each in (one, *listed.items):
        assert (each.metadata.name, bool(each.metadata.uid), read(each)) == ("types", True, expected)
    assert len(listed.items) == 1
    await admin.ask("DELETE", f"{path}/types")
