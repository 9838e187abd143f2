"""Pods of a played node while something goes wrong: no device is held twice, and nothing is left behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpuplane.sandbox.node import played
from tests.cluster.sandbox.world import PODS, Json, World, is_running, pod, running_world
from tests.sandbox.plugin import DEV, SIX, Plugin, device

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("played cluster"),
    pytest.mark.timeout(600),
]
NODE = "t4-0"
ONE: Json = {"resources": {"limits": {DEV: 1}}}


class Faulty:
    """A world of one node without an agent, whose device plugin does as it is told."""

    def __init__(self, world: World) -> None:
        self.world, self.node = world, world.nodes[NODE]
        self.addresses = set(self.node.network._used)
        self.plugin = Plugin(self.node.spec.link / "device-plugins", *SIX)

    async def register(self) -> None:
        """The plugin serves anew, and is registered."""
        if hasattr(self.plugin, "server"):
            await self.plugin.stop()
        await self.plugin.serve()
        await self.plugin.register()
        await self.node.kubelet.until_capacity(DEV, len(SIX), len(SIX))

    async def start(self, name: str, **spec: Any) -> None:
        """A pod with one device, bound to the node by its author."""
        spec.setdefault("container", ONE)
        await self.world.apply(pod(name, nodeName=NODE, **spec))

    async def held(self) -> Counter[str]:
        """How many pods that have not ended hold each device, as the API server shows it."""
        found = Counter[str]()
        for each in (await self.world.client.get(PODS, Json))["items"]:
            if each["status"]["phase"] in ("Pending", "Running"):
                for status in each["status"].get("containerStatuses") or ():
                    for resource in status.get("allocatedResourcesStatus") or ():
                        found.update(one["resourceID"] for one in resource["resources"])
        return found

    async def end_all(self) -> None:
        """Delete all pods, and see that nothing is left of them."""
        names = [each["metadata"]["name"] for each in (await self.world.client.get(PODS, Json))["items"]]
        await asyncio.gather(*(self.world.delete(name) for name in names))
        for name in names:
            await self.world.until_gone(name)
        await self.node.kubelet.until(lambda: not self.node.pods.runs)
        self.node.kubelet.manager.free_ended_pods()
        assert not self.node.kubelet.pods
        assert not self.node.kubelet.devices.allocated
        assert self.node.network._used == self.addresses
        assert not [each for each in self.node.pods._tasks if not each.done()]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def faulty(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Faulty]:
    async with running_world(tmp_path_factory.mktemp("faulty"), programs, "t4", agents=False) as world:
        found = Faulty(world)
        await found.register()
        try:
            yield found
        finally:
            await found.plugin.stop()


async def test_a_pod_is_deleted_while_it_is_admitted(faulty: Faulty) -> None:
    gate = faulty.plugin.gates["Allocate"] = asyncio.Event()
    await faulty.start("admitted")
    await faulty.plugin.until_asked("Allocate")
    await faulty.world.delete("admitted")
    del faulty.plugin.gates["Allocate"]
    gate.set()
    await faulty.world.until_gone("admitted")
    await faulty.end_all()


async def test_a_pod_is_deleted_while_its_init_container_runs(faulty: Faulty) -> None:
    await faulty.start("init", initContainers=[{"name": "first", "image": "a:1", "command": ["sleep", "inf"], **ONE}])

    def runs(found: Json) -> bool:
        return any("running" in each["state"] for each in found["status"].get("initContainerStatuses") or ())

    await faulty.world.until_pod("init", runs)
    await faulty.end_all()


async def test_a_pod_is_deleted_and_made_again_at_once(faulty: Faulty) -> None:
    for _ in range(4):
        await faulty.start("again")
        await faulty.world.delete("again", gracePeriodSeconds=0)
    await faulty.start("again")
    await faulty.world.until_pod("again", is_running)
    assert set((await faulty.held()).values()) == {1}
    await faulty.end_all()


@pytest.mark.parametrize("kill", [False, True])
async def test_kubelet_starts_again_while_pods_start(faulty: Faulty, kill: bool) -> None:
    """Those that do not run yet are rejected, for no device is healthy before the plugin has registered."""
    names = [f"starts-{number}" for number in range(len(SIX))]
    await asyncio.gather(*(faulty.start(name) for name in names))
    await faulty.node.restart_kubelet(kill=kill)
    await faulty.register()
    for name in names:
        await faulty.world.until_pod(name, lambda found: is_running(found) or found["status"]["phase"] == "Failed")
    assert set((await faulty.held()).values()) <= {1}
    for each in (await faulty.world.client.get(PODS, Json))["items"]:
        assert each["status"]["phase"] == "Running" or each["status"]["reason"] == "UnexpectedAdmissionError"
    await faulty.end_all()


@pytest.mark.parametrize("program", ["kube-apiserver", "etcd"])
async def test_the_api_server_is_killed_while_pods_start_and_end(faulty: Faulty, program: str) -> None:
    old, new = [f"old-{number}" for number in range(3)], [f"new-{number}" for number in range(3)]
    await asyncio.gather(*(faulty.start(name) for name in old))
    for name in old:
        await faulty.world.until_pod(name, is_running)
    await asyncio.gather(*(faulty.start(name) for name in new), *(faulty.world.delete(name) for name in old))
    await faulty.world.cluster.control_plane.restart(program)
    for name in old:
        await faulty.world.until_gone(name)
    for name in new:
        await faulty.world.until_pod(name, is_running)
    assert set((await faulty.held()).values()) == {1}
    await faulty.end_all()


async def test_the_clock_jumps(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting is by a clock that does not; what is written has the time of the day."""
    jump = timedelta()

    class Clock:
        @staticmethod
        def now(zone: Any) -> datetime:
            return datetime.now(zone) + jump

    monkeypatch.setattr(played, "datetime", Clock)
    for hours in (1, -2):
        jump = timedelta(hours=hours)
        name = f"clock-{hours + 2}"
        await faulty.start(name, restartPolicy="Never", container={**ONE, "command": ["sleep", "0.3"]})
        found = await faulty.world.until_pod(name, lambda found: found["status"]["phase"] == "Succeeded")
        started = datetime.fromisoformat(found["status"]["startTime"])
        assert abs(started - datetime.now(UTC) - jump) < timedelta(minutes=30)
    monkeypatch.undo()
    await faulty.end_all()


async def test_a_held_device_is_withdrawn(faulty: Faulty) -> None:
    """As recorded: Unhealthy while the plugin says so, and Healthy again once it is no longer in the list."""
    await faulty.start("holds")

    def health(found: Json) -> str:
        status = found["status"].get("containerStatuses") or [{}]
        shown = status[0].get("allocatedResourcesStatus") or [{"resources": [{"health": ""}]}]
        return str(shown[0]["resources"][0]["health"])

    await faulty.world.until_pod("holds", lambda found: is_running(found) and health(found) == "Healthy")
    [held] = await faulty.held()
    rest = [device(each) for each in SIX if each != held]
    faulty.plugin.send(*rest, device(held, "Unhealthy"))
    await faulty.world.until_pod("holds", lambda found: health(found) == "Unhealthy")
    faulty.plugin.send(*rest)
    await faulty.world.until_pod("holds", lambda found: health(found) == "Healthy")
    faulty.plugin.send(*(device(each) for each in SIX))
    await faulty.end_all()


async def test_a_pod_waits_for_its_volumes(faulty: Faulty) -> None:
    """volumemanager: until they are there the pod is being created, and an Event says why."""
    await faulty.start("mounts", volumes=[{"name": "v", "configMap": {"name": "late"}}])
    told = 'MountVolume.SetUp failed for volume "v" : configmap "late" not found'
    await faulty.world.until_told("mounts", "Warning", "FailedMount", told)
    found = await faulty.world.pod("mounts")
    assert found is not None
    assert found["status"]["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    await faulty.world.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late", "namespace": "default"}, "data": {}}
    )
    await faulty.world.until_pod("mounts", is_running)
    await faulty.end_all()
