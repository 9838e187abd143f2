"""Pods by plugin and by claim on many nodes, while agents, kubelets and the API server are killed.

What is looked at all the time are the device nodes that containers got: none is in two at once. In the end nothing is
left: no pod, no claim, nothing prepared, no address.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.sandbox.kubelet.dra.times import DraTimes
from gpuplane.sandbox.node.played import PlayedNode
from gpuplane.sandbox.node.runner import ProcessProgram
from tests.cluster.sandbox.world import NAMESPACE, PODS, Json, World, pod, running_world
from tests.lengths import length

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("played cluster"),
    pytest.mark.timeout(3000),
]
NODES = length(3, 20)
COUNT = length(60, 2000)
AT_ONCE = 6 * NODES
SECONDS_BETWEEN_FAULTS, SECONDS_BETWEEN_API_SERVERS = (3.0, 6.0), 120.0
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
TEMPLATE: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "soak", "namespace": NAMESPACE},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}},
}


def gpu_nodes(node: PlayedNode) -> Counter[str]:
    """How many containers that run have each GPU's device node."""
    found: Counter[str] = Counter()
    for uid, run in node.pods.runs.items():
        if (running := run.running) is None or running.pod.uid != uid:
            continue
        for name, edits in running.created.items():
            if run.record(name).is_running:
                paths = {each.path for each in edits.device_nodes}
                found.update(path for path in paths if path.removeprefix("/dev/nvidia").isdigit())
    return found


def agents(node: PlayedNode) -> Iterator[ProcessProgram]:
    """The agents of a node that run."""
    for run in node.pods.runs.values():
        for program in run.programs.values():
            if isinstance(program, ProcessProgram):
                yield program


async def all_agents_ready(world: World) -> bool:
    found = await world.client.get("/apis/apps/v1/namespaces/gpuplane/daemonsets/gpuplane-agent", Json)
    return bool((found.get("status") or {}).get("numberReady") == len(world.nodes))


class Soak:
    """One run. `ends`: how pods have ended, and how often; `doubles`: what was in two containers at once."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.doubles: list[tuple[str, str]] = []

    async def run(self, count: int) -> None:
        meanwhile = [asyncio.create_task(each) for each in (self._look(), self._break())]
        slots = asyncio.Semaphore(AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    await slots.acquire()
                    group.create_task(self._play(number, slots))
        finally:
            for task in meanwhile:
                task.cancel()
            await asyncio.gather(*meanwhile, return_exceptions=True)

    async def _play(self, number: int, slots: asyncio.Semaphore) -> None:
        """One pod, from its making to its end."""
        name = f"soak-{number}"
        command = {"command": ["sleep", f"{self.random.uniform(0.2, 3):.1f}"]}
        if self.random.random() < 0.5:
            made = pod(name, count=self.random.choice((1, 1, 2)), restartPolicy="Never", container=command)
        else:
            claim = {"resources": {"claims": [{"name": "gpu"}]}}
            claims = [{"name": "gpu", "resourceClaimTemplateName": "soak"}]
            made = pod(name, restartPolicy="Never", resourceClaims=claims, container={**command, **claim})
        try:
            await self._persistently(self.world.apply, made)
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.uniform(0, 2))  # it is deleted whatever it does
                self.ends["deleted"] += 1
            else:
                self.ends[await self._end_of(name)] += 1
            await self._persistently(self.world.delete, name)
            await self._until_gone(name)
        finally:
            slots.release()

    async def _end_of(self, name: str) -> str:
        while True:
            with suppress(ApiServerError):
                found = await self.world.pod(name)
                status = (found or {}).get("status") or {}
                if status.get("phase") in ("Succeeded", "Failed"):
                    return str(status.get("reason") or status["phase"])
            await asyncio.sleep(0.3)

    async def _until_gone(self, name: str) -> None:
        while True:
            with suppress(ApiServerError):
                if await self.world.pod(name) is None:
                    return
            await asyncio.sleep(0.3)

    async def _persistently(self, request: object, *arguments: object) -> None:
        while True:
            try:
                await request(*arguments)  # type: ignore[operator]
                return
            except ApiServerError as error:
                if error.code == 404:
                    return
            await asyncio.sleep(0.3)

    async def _look(self) -> None:
        while True:
            for name, node in self.world.nodes.items():
                self.doubles += [(name, path) for path, count in gpu_nodes(node).items() if count > 1]
            await asyncio.sleep(0.05)

    async def _break(self) -> None:
        """An agent or a kubelet every few seconds; the API server, which takes long to start, now and then."""
        loop = asyncio.get_running_loop()
        api_server_at = loop.time() + SECONDS_BETWEEN_API_SERVERS / 4
        while True:
            await asyncio.sleep(self.random.uniform(*SECONDS_BETWEEN_FAULTS))
            node = self.random.choice(list(self.world.nodes.values()))
            what = self.random.choice(("agent", "kubelet", "kubelet killed"))
            if loop.time() > api_server_at:
                what, api_server_at = "API server", loop.time() + SECONDS_BETWEEN_API_SERVERS
            self.faults[what] += 1
            if what == "agent":
                for each in agents(node):
                    each.kill()
            elif what == "API server":
                await self.world.cluster.control_plane.restart("kube-apiserver")
            else:
                await node.restart_kubelet(kill=what == "kubelet killed")


async def test_nothing_is_given_out_twice_and_nothing_stays(programs: Path, tmp_path: Path, seed: int) -> None:
    nodes = f"{max(NODES // 2, 1)}×hgx-h100,{NODES - NODES // 2}×t4"
    async with running_world(tmp_path, programs, nodes, dra_times=DraTimes().scaled(0.1)) as world:
        await world.apply(TEMPLATE)
        await world.until(lambda: all_agents_ready(world))
        soak = Soak(world, seed)
        await soak.run(COUNT)
        print(f"ends: {dict(soak.ends)}; faults: {dict(soak.faults)}")
        assert soak.doubles == []
        assert soak.ends.total() == COUNT
        assert soak.ends.keys() <= {"Succeeded", "deleted", "UnexpectedAdmissionError"}

        async def nothing_left() -> bool:
            claims = await world.client.get(CLAIMS, Json)
            pods = await world.client.get(PODS, Json)
            books = [node.kubelet.dra.books.claims for node in world.nodes.values()]
            files = [
                path
                for node in world.nodes.values()
                for path in (node.spec.directory / "root/var/run/cdi").glob("*claim*")
            ]
            return not (claims["items"] or pods["items"] or any(books) or files)

        await world.until(nothing_left)
        for node in world.nodes.values():
            assert {run.pod.metadata.namespace for run in node.pods.runs.values()} == {"gpuplane"}
