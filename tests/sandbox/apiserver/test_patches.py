"""Patches of a Node: server-side apply with its managers, and JSON patches. The recorded ones are of ResourceSlices."""

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
        ({"labels": {"a": "x" * 64}}, 422, "must be no more than 63 bytes"),
        ({"labels": {"a": "-x"}}, 422, "a valid label must be"),
        ({"labels": {"a/b/c": "x"}}, 422, "name part"),
        ({"annotations": {"a": "x" * (256 << 10)}}, 422, "Too long"),
        ({"labels": {"a": "b"}, "uid": "another"}, 409, "uid another"),
        ({"name": "n2"}, 400, "does not match"),
        ({"colour": "red"}, 500, ".metadata.colour: field not declared in schema"),
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
