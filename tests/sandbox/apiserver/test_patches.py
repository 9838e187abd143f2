"""Patches: server-side apply with its managers, and JSON patches."""

import json
from typing import Any

import httpx2
import pytest

from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer

Json = dict[str, Any]


async def ask(server: ApiServer, case: Json) -> httpx2.Response:
    headers = dict(case.get("headers", {})) | ({"Content-Type": kind} if (kind := case.get("contentType")) else {})
    content = json.dumps(case["body"]).encode() if "body" in case else None
    async with httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        return await http.request(case["verb"], case["path"], content=content, headers=headers)


LABELS = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.count": "8"}}}


async def apply(server: ApiServer, body: Json, query: str = "?fieldManager=gpuplane") -> httpx2.Response:
    kind = "application/apply-patch+yaml"
    case = {"verb": "PATCH", "path": f"/api/v1/nodes/n1{query}", "contentType": kind, "body": body}
    return await ask(server, case)


async def test_a_manager_of_plain_writes_conflicts_too() -> None:
    """Whoever wrote a label by other means is named, with the version; what he writes later he takes over."""
    async with ApiServer() as server:
        server.put(
            "/api/v1/nodes/n1", {"metadata": {"labels": {"nvidia.com/gpu.count": "7", "a": "b"}}}, "kubectl-label"
        )
        refused = (await apply(server, LABELS)).json()
        assert refused["details"]["causes"] == [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "kubectl-label" using v1',
                "field": ".metadata.labels.nvidia.com/gpu.count",
            }
        ]
        forced = (await apply(server, LABELS, "?fieldManager=gpuplane&force=true")).json()
        assert forced["metadata"]["labels"] == {"nvidia.com/gpu.count": "8", "a": "b"}

        server.put("/api/v1/nodes/n1", {"metadata": {"labels": {"nvidia.com/gpu.count": "9"}}}, "kubectl-label")
        empty = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        left = (await apply(server, empty)).json()
        assert left["metadata"]["labels"] == {"nvidia.com/gpu.count": "9"}


async def test_what_a_manager_no_longer_means_goes() -> None:
    """And takes the map that it leaves empty with it."""
    async with ApiServer() as server:
        server.put("/api/v1/nodes/n1", {"spec": {"podCIDR": "10.0.0.0/24"}})
        await apply(server, LABELS)
        left = (await apply(server, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).json()
        assert "labels" not in left["metadata"]
        assert left["spec"] == {"podCIDR": "10.0.0.0/24"}
        assert [each["manager"] for each in left["metadata"]["managedFields"]] == ["somebody"]


@pytest.mark.parametrize(
    ("metadata", "code", "text"),
    [
        ({"labels": {"a": "b"}, "uid": "another"}, 409, "not another"),
        ({"labels": {"a": "b"}, "resourceVersion": "7"}, 409, "not 7"),
        ({"name": "n2"}, 400, "not those of the URL"),
        ({"managedFields": []}, 400, "must be nil"),
    ],
)
async def test_what_is_refused(metadata: Json, code: int, text: str) -> None:
    async with ApiServer() as server:
        server.put("/api/v1/nodes/n1", {})
        answer = await apply(server, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", **metadata}})
        assert (answer.status_code, text in answer.json()["message"]) == (code, True), answer.json()
        assert "labels" not in server.put("/api/v1/nodes/n1", {})["metadata"]  # type: ignore[index]


async def test_an_apply_by_uid_makes_no_object_again() -> None:
    """Without a UID an apply creates what is not there; one that names a UID means that object and no other."""
    async with ApiServer() as server:
        gone = await apply(server, {**LABELS, "metadata": {**LABELS["metadata"], "uid": "of-before"}})  # type: ignore[dict-item]
        assert (gone.status_code, gone.json()["reason"]) == (409, "Conflict")
        assert (await apply(server, LABELS)).status_code == 201


CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"


async def test_drivers_share_the_status_of_a_claim() -> None:
    """An entry of a device is its driver's: another one that applies does not take it away."""
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}}
    async with ApiServer() as server:
        server.put(CLAIM, {"spec": {"devices": {}}})
        for driver, data in (("gpu", 1), ("nic", 2), ("gpu", 3)):
            entry = {"driver": driver, "pool": "p", "device": "d", "data": data}
            case = {
                "verb": "PATCH",
                "path": f"{CLAIM}/status?fieldManager={driver}",
                "contentType": "application/apply-patch+yaml",
                "body": {**head, "status": {"devices": [entry]}},
            }
            assert (await ask(server, case)).status_code == 200
        [found] = server.objects.list(parse_path(CLAIM.removesuffix("/c")))
        assert [(each["driver"], each["data"]) for each in found["status"]["devices"]] == [("gpu", 3), ("nic", 2)]
        assert found["spec"] == {"devices": {}}


REMOVE_SECOND = {"op": "remove", "path": "/spec/taints/1"}


@pytest.mark.parametrize(
    ("operations", "code", "keys"),
    [
        ([{"op": "test", "path": "/spec/taints/1/key", "value": "b"}, REMOVE_SECOND], 200, ["a"]),
        ([{"op": "test", "path": "/spec/taints/0/key", "value": "b"}, REMOVE_SECOND], 422, None),
        ([{"op": "test", "path": "/spec/taints/7", "value": {}}], 422, None),
        ([{"op": "add", "path": "/spec/taints/-", "value": {"key": "c"}}], 200, ["a", "b", "c"]),
        ([{"op": "replace", "path": "/metadata/labels/x~1y", "value": "2"}], 200, ["a", "b"]),
        ([{"op": "replace", "path": "/metadata/labels/none", "value": "2"}], 422, None),
        ([{"op": "jump", "path": "/metadata"}], 422, None),
    ],
)  # fmt: skip
async def test_a_json_patch(operations: list[Json], code: int, keys: list[str] | None) -> None:
    """All of it or nothing."""
    case = {
        "verb": "PATCH",
        "path": "/api/v1/nodes/n1",
        "contentType": "application/json-patch+json",
        "body": operations,
    }
    async with ApiServer() as server:
        taints = [{"key": "a"}, {"key": "b"}]
        server.put("/api/v1/nodes/n1", {"metadata": {"labels": {"x/y": "1"}}, "spec": {"taints": taints}})
        answer = await ask(server, case)
        assert answer.status_code == code
        [found] = server.objects.list(parse_path("/api/v1/nodes"))
        assert [each["key"] for each in found["spec"]["taints"]] == (keys or ["a", "b"])
