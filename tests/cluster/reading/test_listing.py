"""Nodes and Pods of an API server, in pages, by a user who may list them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpuplane.cluster.reading.listing import ClusterUnavailable, list_cluster
from gpuplane.kubernetes.client import lists, streams
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.cluster.reading.test_cluster import node, pod


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        for index in range(5):
            described = node(f"n{index}")
            server.put(f"/api/v1/nodes/n{index}", {"apiVersion": "v1", "kind": "Node", **described})
        for index in range(7):
            described = pod(f"p{index}", on=f"n{index}" if index < 5 else "")
            server.put(f"/api/v1/namespaces/d/pods/p{index}", {"apiVersion": "v1", "kind": "Pod", **described})
        yield server


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return path


@pytest.mark.parametrize("page", [500, 2])
async def test_all_of_a_cluster_is_listed(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """In one page or in several."""
    monkeypatch.setattr(lists, "PAGE_SIZE", page)
    found = await list_cluster(kubeconfig)

    assert [each.name for each in found.nodes] == [f"n{index}" for index in range(5)]
    assert sorted(each.name for each in found.pods) == [f"d/p{index}" for index in range(5)]
    assert sorted(each.name for each in found.waiting) == ["d/p5", "d/p6"]


async def test_a_page_that_is_too_large_is_asked_for_in_smaller_ones(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await list_cluster(kubeconfig)
    monkeypatch.setattr(streams, "MAX_ANSWER_BYTES", 3000)

    assert await list_cluster(kubeconfig) == whole
    monkeypatch.setattr(streams, "MAX_ANSWER_BYTES", 100)
    with pytest.raises(ClusterUnavailable, match="is it an API server"):
        await list_cluster(kubeconfig)


async def test_an_object_that_cannot_be_read_is_named_and_left_out(server: ApiServer, kubeconfig: Path) -> None:
    """By its name, else by its place; all others are there."""
    nodes = [node("good"), {"metadata": {"name": "bad", "labels": [1]}}, {"metadata": None}, 7]
    pods: list[object] = [
        pod("good", on="good"),
        {"metadata": {"name": "bad", "namespace": "d"}, "spec": 3},
        {"metadata": {"namespace": "d", "name": 5}},
    ]
    for path, items in (("nodes", nodes), ("pods", pods)):
        page = msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": items})
        server.failures.append(InjectedFailure(f"GET /api/v1/{path}*", garbage=page))
    found = await list_cluster(kubeconfig)

    assert [each.name for each in found.nodes] == ["good"]
    assert [each.name for each in found.pods] == ["d/good"]
    unreadable = {each.subject: each.detail for each in found.notes if each.code == "object-unreadable"}
    assert [*unreadable] == ["bad", "node 3", "node 4", "d/bad", "pod 3"]
    assert unreadable["bad"] == "Expected `object | null`, got `array` - at `$.metadata.labels`"


async def test_why_a_cluster_cannot_be_listed(server: ApiServer, kubeconfig: Path, tmp_path: Path) -> None:
    server.failures.append(InjectedFailure("GET /api/v1/nodes*", code=403, message="no"))
    with pytest.raises(ClusterUnavailable, match=r"may not list nodes \(403\)"):
        await list_cluster(kubeconfig)
    await server.stop()
    with pytest.raises(ClusterUnavailable):
        await list_cluster(kubeconfig)
    with pytest.raises(ClusterUnavailable, match="cannot be used"):
        await list_cluster(tmp_path / "none")


async def test_budgets_of_disruption_are_listed_where_that_is_allowed(server: ApiServer, kubeconfig: Path) -> None:
    """Else the cluster is told without them. Another failure is one."""
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "d"},
              "spec": {"selector": {}}, "status": {"disruptionsAllowed": 2}}  # fmt: skip
    server.put("/apis/policy/v1/namespaces/d/poddisruptionbudgets/b", budget)
    found = await list_cluster(kubeconfig)
    assert (found.budgets, {each.budgets for each in found.pods}) == ({"d/b": 2}, {("d/b",)})

    server.failures.append(InjectedFailure("GET /apis/policy/v1/*", code=403, message="no"))
    found = await list_cluster(kubeconfig)
    assert found.budgets == {}
    assert [note.subject for note in found.notes if note.code == "budgets-unread"] == ["poddisruptionbudgets"]
    server.failures.append(InjectedFailure("GET /apis/policy/v1/*", code=500, message="no"))
    with pytest.raises(ClusterUnavailable):
        await list_cluster(kubeconfig)


async def test_one_malformed_object_takes_no_page_with_it(server: ApiServer, kubeconfig: Path) -> None:
    server.put("/api/v1/nodes/odd", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "odd", "labels": [1]}})
    found = await list_cluster(kubeconfig)

    assert len(found.nodes) == 5
    assert [(note.code, note.subject) for note in found.notes][:1] == [("object-unreadable", "odd")]


@pytest.mark.parametrize("words", [("placement", "explain"), ("placement", "plan"), ("simulate", "--from-cluster")])
async def test_commands_ask_the_cluster_of_a_kubeconfig(kubeconfig: Path, words: tuple[str, ...]) -> None:
    more = ("--seeds", "1") if words[0] == "simulate" else ()
    program = Path(sys.executable).parent / "gpuplane"
    process = await asyncio.create_subprocess_exec(
        program, *words, *more, "--json", "--kubeconfig", str(kubeconfig), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()

    assert process.returncode == 0
    found = json.loads(said)
    if words == ("placement", "explain"):
        assert [each["pod"] for each in found["pods"]] == ["d/p5", "d/p6"]
    else:
        assert found["nodes"] == 5
