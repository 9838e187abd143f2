"""Claims come and go with their pods, where there is no kube-controller-manager."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpuplane.kubernetes.client import connect
from gpuplane.sandbox.apiserver.objects import ResourcePath, StatusError, parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.claimcontroller import DELETE_PROTECTION_FINALIZER, run_claim_controller, settle_claims

Json = dict[str, Any]
GROUP = "/apis/resource.k8s.io/v1"
SPACE = f"{GROUP}/namespaces/default"
POD = "/api/v1/namespaces/default/pods/p0"
REQUESTS = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
TEMPLATE = {
    "metadata": {"name": "t"},
    "spec": {
        "spec": {"devices": {"requests": REQUESTS}},
        "metadata": {"labels": {"a": "b"}, "annotations": {"k": "v"}},
    },
}
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "node-a", "device": "gpu-0"}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.put(f"{SPACE}/resourceclaimtemplates/t", TEMPLATE)
        yield server


async def settle(server: ApiServer, tmp_path: Path) -> bool:
    """Have the controller do all that there is to do; whether it wrote something."""
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    start = server.objects.version
    async with connect(tmp_path / "kubeconfig") as client:
        version = -1
        while version != server.objects.version:
            version = server.objects.version
            await settle_claims(client)
    return version > start


def pod(*claims: Json) -> Json:
    return {"spec": {"nodeName": "node-a", "resourceClaims": list(claims)}}


FROM_TEMPLATE = {"name": "g", "resourceClaimTemplateName": "t"}


def claims(server: ApiServer) -> list[Json]:
    return list(server.objects.list(parse_path(f"{GROUP}/resourceclaims")))


def allocate(server: ApiServer, claim: Json, *pods: Json) -> None:
    """As the scheduler does: finalizer, allocation, reservation."""
    reserved = [{"resource": "pods", "name": each["metadata"]["name"], "uid": each["metadata"]["uid"]} for each in pods]
    metadata = {**claim["metadata"], "finalizers": [DELETE_PROTECTION_FINALIZER]}
    status = {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": reserved}
    server.put(f"{SPACE}/resourceclaims/{metadata['name']}", {**claim, "metadata": metadata, "status": status})


def put(server: ApiServer, path: str, found: Json) -> Json:
    kept = server.put(path, found)
    assert kept is not None
    return kept


async def test_a_claim_of_a_template(server: ApiServer, tmp_path: Path) -> None:
    """As Kubernetes 1.36.2 was recorded to make it (case exact/template of dra-allocation.jsonl). Made once."""
    made = put(server, POD, pod(FROM_TEMPLATE))

    assert await settle(server, tmp_path)
    assert not await settle(server, tmp_path)

    [claim] = claims(server)
    name = claim["metadata"]["name"]
    assert re.fullmatch("p0-g-[a-z0-9]{5}", name)
    shown = {key: claim["metadata"].get(key) for key in ("generateName", "labels", "annotations", "ownerReferences")}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p0", "uid": made["metadata"]["uid"], "controller": True}
    assert shown == {
        "generateName": "p0-g-",
        "labels": {"a": "b"},
        "annotations": {"k": "v", "resource.kubernetes.io/pod-claim-name": "g"},
        "ownerReferences": [owner],
    }
    assert claim["spec"] == {"devices": {"requests": REQUESTS}}
    statuses = server.objects.get(parse_path(POD))["status"]["resourceClaimStatuses"]
    assert statuses == [{"name": "g", "resourceClaimName": name}]


async def test_a_pod_waits_for_its_template(server: ApiServer, tmp_path: Path) -> None:
    """Claims that a pod names, and those of templates that are there, do not wait."""
    late = {"name": "l", "resourceClaimTemplateName": "late"}
    put(server, POD, pod({"name": "n", "resourceClaimName": "mine"}, FROM_TEMPLATE, late))
    await settle(server, tmp_path)
    assert [each["metadata"]["generateName"] for each in claims(server)] == ["p0-g-"]

    server.put(f"{SPACE}/resourceclaimtemplates/late", TEMPLATE)
    await settle(server, tmp_path)
    assert [each["metadata"]["generateName"] for each in claims(server)] == ["p0-g-", "p0-l-"]


async def test_a_claim_that_is_refused_is_not_made(tmp_path: Path) -> None:
    """As one with admin access in a namespace without the label."""

    def refuse(_: ResourcePath, new: Json) -> Json:
        if new["kind"] == "ResourceClaim":
            raise StatusError(422, "Invalid", "no")
        return new

    async with ApiServer(admit=refuse) as server:
        server.put(f"{SPACE}/resourceclaimtemplates/t", TEMPLATE)
        put(server, POD, pod(FROM_TEMPLATE))
        assert (await settle(server, tmp_path), claims(server)) == (False, [])


@pytest.mark.parametrize("end", [None, {"phase": "Succeeded"}, {"phase": "Failed"}])
async def test_a_claim_of_a_template_goes_with_its_pod(server: ApiServer, tmp_path: Path, end: Json | None) -> None:
    """An allocated one, too: its reservation, its allocation and its finalizer end first."""
    made = put(server, POD, pod(FROM_TEMPLATE))
    await settle(server, tmp_path)
    allocate(server, claims(server)[0], made)
    assert not await settle(server, tmp_path)

    server.put(POD, None if end is None else {**made, "status": end})
    await settle(server, tmp_path)
    assert claims(server) == []


async def test_a_pod_that_comes_again_gets_another_claim(server: ApiServer, tmp_path: Path) -> None:
    """A pod of the same name is another pod."""
    put(server, POD, pod(FROM_TEMPLATE))
    await settle(server, tmp_path)
    [before] = claims(server)
    server.put(POD, None)
    put(server, POD, pod(FROM_TEMPLATE))
    await settle(server, tmp_path)
    [after] = claims(server)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]


async def test_a_claim_that_pods_share(server: ApiServer, tmp_path: Path) -> None:
    """It is allocated until the last of them has ended, and stays."""
    first, second = (put(server, f"{POD}{each}", pod({"name": "n", "resourceClaimName": "c"})) for each in "ab")
    server.put(f"{SPACE}/resourceclaims/c", {"spec": {"devices": {"requests": REQUESTS}}})
    allocate(server, claims(server)[0], first, second)

    server.put(f"{POD}a", None)
    await settle(server, tmp_path)
    [claim] = claims(server)
    assert [each["uid"] for each in claim["status"]["reservedFor"]] == [second["metadata"]["uid"]]
    assert "allocation" in claim["status"]

    server.put(f"{POD}b", None)
    await settle(server, tmp_path)
    [claim] = claims(server)
    assert not claim["status"]
    assert not claim["metadata"]["finalizers"]


async def test_a_claim_in_use_is_deleted_when_its_pod_ends(server: ApiServer, tmp_path: Path) -> None:
    """The deletion waits for the pod."""
    made = put(server, POD, pod({"name": "n", "resourceClaimName": "c"}))
    server.put(f"{SPACE}/resourceclaims/c", {"spec": {"devices": {"requests": REQUESTS}}})
    allocate(server, claims(server)[0], made)
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        await http.delete(f"{SPACE}/resourceclaims/c")
    await settle(server, tmp_path)
    assert [each["metadata"]["name"] for each in claims(server)] == ["c"]

    server.put(POD, None)
    await settle(server, tmp_path)
    assert claims(server) == []


async def test_beside_a_server(server: ApiServer, tmp_path: Path) -> None:
    """It follows what clients ask for."""
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    async with (
        run_claim_controller(tmp_path / "kubeconfig"),
        httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http,
    ):
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p0"}, **pod(FROM_TEMPLATE)}
        await http.post("/api/v1/namespaces/default/pods", json=body)
        await server.until(lambda: bool(claims(server)))
        await http.delete(POD)
        await server.until(lambda: not claims(server))
