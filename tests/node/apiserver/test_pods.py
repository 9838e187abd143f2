"""The pods of a node, watched where the configuration wants it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuplane.kubernetes.client import lists, retry
from gpuplane.kubernetes.podref import ContainerId, PodMetadata, PodRef
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver.pods import watch_pods
from gpuplane.node.core.telemetry.usage import with_names_of_pods
from gpuplane.node.model.config import MetricsSettings, Settings
from gpuplane.node.model.facts import ConfigLoaded
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import PODS_PART
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.texts import as_shown

WATCHED = Settings(metrics=MetricsSettings(watch_pods=True, pod_labels=("app", "example.com/*")))


def pod(server: ApiServer, name: str, node: str = "n1", **metadata: Any) -> str:
    """A pod; its UID."""
    path = f"/api/v1/namespaces/team/pods/{name}"
    found = server.put(
        path,
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team", **metadata},
            "spec": {"nodeName": node, "containers": []},
        },
    )
    assert found is not None
    return str(found["metadata"]["uid"])


@asynccontextmanager
async def watching(tmp_path: Path, settings: Settings = WATCHED) -> AsyncIterator[tuple[ApiServer, Node]]:
    """A server, and a node that watches its pods there."""
    async with ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        node = Node(Snapshot())
        node.apply(ConfigLoaded(settings))
        task = asyncio.create_task(watch_pods(node, "n1", kubeconfig))
        try:
            yield server, node
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def comes_to(node: Node, ready: Callable[[Snapshot], Any]) -> None:
    """Wait for a snapshot that is so."""
    assert await node.wait_until(lambda snapshot: bool(ready(snapshot)), 60), (
        node.snapshot.pods,
        node.snapshot.statuses,
    )


async def test_pods_come_change_and_go(tmp_path: Path, monkeypatch: Any) -> None:
    """Those of this node alone, with the labels that are allowed; in pages, and by the stream."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 2)
    async with watching(tmp_path) as (server, node):
        uids = {name: pod(server, name, labels={"app": name, "secret": "x"}) for name in ("one", "two", "three")}
        pod(server, "elsewhere", "n2")
        expected = {uid: PodMetadata("team", name, {"app": name}) for name, uid in uids.items()}
        await comes_to(node, lambda snapshot: snapshot.pods == expected)
        pod(server, "one", labels={"app": "changed", "example.com/team": "a"}, uid=uids["one"])
        changed = PodMetadata("team", "one", {"app": "changed", "example.com/team": "a"})
        await comes_to(node, lambda snapshot: (snapshot.pods or {}).get(uids["one"]) == changed)
        server.put("/api/v1/namespaces/team/pods/two", None)
        await comes_to(node, lambda snapshot: uids["two"] not in (snapshot.pods or {}))
        status = node.snapshot.statuses.of(PODS_PART)
        assert status is not None
        assert status.state == "ok"


async def test_a_static_pod_has_the_uid_of_its_cgroup(tmp_path: Path) -> None:
    """The values of a real node's mirror pod; the annotation alone, which anybody could write, means nothing."""
    hash = "60dafbe5f355954d7fb4b2e9ad741c7b"
    mirror = {"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash}
    async with watching(tmp_path) as (server, node):
        pod(server, "static-one-gpu-node-1", annotations=mirror)
        await comes_to(node, lambda snapshot: hash in (snapshot.pods or {}))
        forged = pod(server, "forged", annotations={"kubernetes.io/config.hash": "f" * 32})
        await comes_to(node, lambda snapshot: forged in (snapshot.pods or {}))
        assert "f" * 32 not in (node.snapshot.pods or {})


async def test_it_is_watched_only_while_it_is_wanted(tmp_path: Path) -> None:
    """No request before; nothing is known after."""
    async with watching(tmp_path, Settings()) as (server, node):
        pod(server, "one")
        await asyncio.sleep(0.5)
        assert not [request for request in server.requests if "pods" in request]
        node.apply(ConfigLoaded(WATCHED))
        await comes_to(node, lambda snapshot: snapshot.pods)
        node.apply(ConfigLoaded(Settings()))
        await comes_to(node, lambda snapshot: snapshot.pods is None and snapshot.statuses.of(PODS_PART) is None)


async def test_another_change_of_the_configuration_leaves_the_watch_alone(tmp_path: Path) -> None:
    """What is known of the pods stays, and nothing is asked again; other labels are another watch."""
    async with watching(tmp_path) as (server, node):
        uid = pod(server, "one", labels={"app": "a", "tier": "x"})
        await comes_to(node, lambda snapshot: uid in (snapshot.pods or {}) and snapshot.statuses.of(PODS_PART))
        asked = len(server.requests)
        node.apply(ConfigLoaded(WATCHED.but(metrics=WATCHED.metrics.but(interval=5.0))))
        await asyncio.sleep(0.5)
        assert len(server.requests) == asked
        assert uid in (node.snapshot.pods or {})
        node.apply(ConfigLoaded(WATCHED.but(metrics=WATCHED.metrics.but(pod_labels=("tier",)))))
        other = PodMetadata("team", "one", {"tier": "x"})
        await comes_to(node, lambda snapshot: (snapshot.pods or {}).get(uid) == other)


async def test_a_refusal_names_the_component(tmp_path: Path, monkeypatch: Any) -> None:
    """And what was known stays while the server is away."""
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.05, 0.1))
    async with watching(tmp_path) as (server, node):
        uid = pod(server, "one")
        await comes_to(node, lambda snapshot: uid in (snapshot.pods or {}))
        server.failures.append(InjectedFailure(request="*pods*", times=1000, code=403))
        server.end_streams()

        def refused(snapshot: Snapshot) -> bool:
            status = snapshot.statuses.of(PODS_PART)
            return status is not None and status.state == "failing" and "pod-labels" in as_shown(status.text)

        await comes_to(node, refused)
        assert uid in (node.snapshot.pods or {})


def test_a_container_without_a_record_has_its_pods_name() -> None:
    """Records come first; where there is neither there is no name."""
    known, other, unknown = (ContainerId(f"uid-{n}", f"{n}") for n in range(3))
    names = {known: PodRef(namespace="team", name="one", container="main")}
    pods = {"uid-0": PodMetadata("x", "y"), "uid-1": PodMetadata("team", "two")}

    assert with_names_of_pods(names, [known, other, unknown], pods) == {
        known: names[known],
        other: PodRef(namespace="team", name="two", uid="uid-1"),
    }
    assert with_names_of_pods(names, [known, other], None) == names
