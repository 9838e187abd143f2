"""A cluster with played nodes, and an administrator who looks at it and changes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from gpuplane.cli.commands.sandbox.wantednodes import count_gpus, parse_nodes
from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.api import ApiClient
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.sandbox.apply import apply_objects
from gpuplane.sandbox.cluster import Cluster
from gpuplane.sandbox.kubelet.dra.times import KUBELET_TIMES, DraTimes
from gpuplane.sandbox.node.played import PlayedNode

DEADLINE = 120.0
"""Seconds until something has become so, on a busy machine."""
Json = dict[str, Any]
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
QUICK = (0.5, 1.0)


class World:
    """A cluster that runs, and an administrator's client."""

    def __init__(self, cluster: Cluster, client: ApiClient) -> None:
        self.cluster, self.client = cluster, client

    @property
    def nodes(self) -> Mapping[str, PlayedNode]:
        """By name."""
        return self.cluster.nodes

    async def apply(self, *objects: Json) -> None:
        """Make objects, or change them."""
        await apply_objects(self.client, objects)

    async def get(self, path: str) -> Json | None:
        """An object; None where there is none."""
        try:
            return await self.client.get(path, Json)
        except ApiServerError as error:
            if error.code != 404:
                raise
            return None

    async def pod(self, name: str) -> Json | None:
        """A pod of the default namespace."""
        return await self.get(f"{PODS}/{name}")

    async def delete(self, name: str, **options: Any) -> None:
        """Ask for the end of a pod."""
        await self.client.send("DELETE", f"{PODS}/{name}", options or None)

    async def events(self, name: str) -> set[tuple[str, str, str]]:
        """(type, reason, message) of what kubelet told of a pod."""
        found = await self.client.get(f"/api/v1/namespaces/{NAMESPACE}/events?limit=500", Json)
        return {
            (each["type"], each["reason"], each["message"])
            for each in found["items"]
            if each["involvedObject"]["name"] == name and each["source"].get("component") == "kubelet"
        }

    async def until_told(self, name: str, *event: str) -> None:
        """Until kubelet has told this of a pod. Raises TimeoutError, with what it told."""

        async def told() -> bool:
            return event in await self.events(name)

        try:
            await self.until(told)
        except TimeoutError:
            raise TimeoutError(f"not {event}: {await self.events(name)}") from None

    async def text(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """The status of an answer that is no object, and its text."""
        http: httpx2.AsyncClient = self.client._http
        answer = await http.request(method, path, headers=headers)
        return answer.status_code, answer.text

    async def until(self, found: Callable[[], Awaitable[Any]]) -> Any:
        """What is found, as soon as it is anything. Raises TimeoutError."""
        async with asyncio.timeout(DEADLINE):
            while not (there := await found()):
                await asyncio.sleep(0.05)
        return there

    async def until_pod(self, name: str, is_so: Callable[[Json], Any]) -> Json:
        """A pod, as soon as something is so of it. Raises TimeoutError, with its status."""
        last: Json | None = None

        async def found() -> Json | None:
            nonlocal last
            last = await self.pod(name)
            return last if last and is_so(last) else None

        try:
            pod: Json = await self.until(found)
        except TimeoutError:
            raise TimeoutError(f"pod {name}: {last and last.get('status')}") from None
        return pod

    async def until_gone(self, name: str) -> None:
        """Until a pod is no more."""

        async def gone() -> bool:
            return await self.pod(name) is None

        await self.until(gone)


@asynccontextmanager
async def running_world(
    directory: Path, programs: Path, nodes: str, *, agents: bool = True, dra_times: DraTimes = KUBELET_TIMES
) -> AsyncIterator[World]:
    """A cluster that is gone afterwards."""
    cluster = Cluster(
        directory, programs, parse_nodes(nodes), count_gpus, kept=False, with_agents=agents, crash_backoff=QUICK,
        dra_times=dra_times,
    )  # fmt: skip
    async with cluster.running(print), connect(cluster.control_plane.kubeconfig) as client:
        yield World(cluster, client)


def pod(name: str, *, count: int = 0, **spec: Any) -> Json:
    """A pod with one container "main", which asks for so many devices."""
    container: Json = {"name": "main", "image": "cuda:12", **spec.pop("container", {})}
    if count:
        container["resources"] = {"limits": {"nvidia.com/gpu": count}}
    metadata = {"name": name, "namespace": NAMESPACE}
    whole = {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def state(pod: Json, container: str = "main") -> Json:
    """The state of a container."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each["state"] for each in statuses if each["name"] == container), {})


def is_running(pod: Json) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running" and "running" in state(pod))
