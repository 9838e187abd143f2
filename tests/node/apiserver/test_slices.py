"""ResourceSlices at an API server: published, kept as they shall be, and not written where nothing differs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver import slices as publisher
from gpuplane.node.apiserver.slices import publish_slices
from gpuplane.node.core.config.resolve import resolve_settings
from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.config import DraSettings, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    DrainRequested,
    MachineObserved,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import SLICES_PART, SlicesStatus
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from tests.node.core.dra.nodes import DRA, GPUS, MACHINE, claim

PATH = "/apis/resource.k8s.io/v1/resourceslices"
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
DRAIN, RESTORE = DrainRequested("GPU-1", Drain(reason="fan")), DrainRequested("GPU-1", None)
Json = dict[str, Any]


def spec(name: str, driver: str = "gpu.nvidia.com", node: str = "n1", **more: Any) -> Json:
    """A slice that somebody else makes."""
    pool = {"name": f"{node}/{name}", "generation": 1, "resourceSliceCount": 1}
    fields = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-x"}], **more}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": fields}


class Site:
    """An API server, and a node that publishes there."""

    def __init__(self, server: ApiServer, node: Node) -> None:
        self.server, self.node = server, node
        self.uid = ""

    def slices(self) -> Mapping[str, Json]:
        """Name → each slice that the server has."""
        found = [each for path, each in self.server.objects._objects.items() if path.plural == "resourceslices"]
        return {each["metadata"]["name"]: each for each in found}

    def ours(self) -> Mapping[str, Json]:
        """Device → its slice."""
        return {
            device["name"]: each
            for each in self.slices().values()
            if (each["spec"]["driver"], each["spec"]["nodeName"]) == ("gpu.nvidia.com", "n1")
            for device in each["spec"].get("devices", ())
        }

    def taints(self, device: str) -> list[Json]:
        """The taints of a device."""
        slice = self.ours().get(device)
        return [] if slice is None else slice["spec"]["devices"][0].get("taints", [])

    def edit(self, device: str, **fields: Any) -> None:
        """Edit a device by hand."""
        name = f"n1-gpu.nvidia.com-{device}"
        old = self.slices()[name]
        devices = [{**old["spec"]["devices"][0], **fields}]
        self.server.put(f"{PATH}/{name}", {**old, "spec": {**old["spec"], "devices": devices}})

    def put(self, slice: Json) -> None:
        self.server.put(f"{PATH}/{slice['metadata']['name']}", slice)

    def delete(self, name: str) -> None:
        self.server.put(f"{PATH}/{name}", None)

    def wipe(self) -> None:
        """As kubelet does when it starts: each slice of its node."""
        for name, each in list(self.slices().items()):
            if each["spec"].get("nodeName") == "n1":
                self.delete(name)

    def writes(self) -> list[str]:
        """The requests that change slices."""
        return [each for each in self.server.requests if PATH in each and each[0] in "PD"]

    async def becomes(self, ready: Callable[[], Any]) -> None:
        """Wait for the server, or for the node's status."""
        async with asyncio.timeout(30):
            while not ready():
                await asyncio.sleep(0.01)

    async def rest(self, seconds: float = 0.4) -> None:
        """Wait until nothing has been asked of the server for some time."""
        count = -1
        while count != len(self.server.requests):
            count = len(self.server.requests)
            await asyncio.sleep(seconds)

    def status(self) -> SlicesStatus:
        found = self.node.snapshot.statuses.of(SLICES_PART)
        return found if found is not None else SlicesStatus("waiting")


@asynccontextmanager
async def publishing(
    tmp_path: Path, settings: Settings = DRA, server: ApiServer | None = None, before: Iterable[Json] = ()
) -> AsyncIterator[Site]:
    """A node with four GPUs that publishes."""
    async with server or ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        made = server.put("/api/v1/nodes/n1", NODE)
        for each in before:
            server.put(f"{PATH}/{each['metadata']['name']}", each)
        node = Node(Snapshot())
        node.apply(ConfigLoaded(settings))
        node.apply(AllocationsListed((), 0.0))
        site = Site(server, node)
        site.uid = str((made or {})["metadata"]["uid"])
        node.apply(MachineObserved(MACHINE))
        task = asyncio.create_task(publish_slices(node, "n1", kubeconfig))
        try:
            yield site
        finally:
            assert not task.done() or task.cancelled(), task.exception()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def all_published(site: Site) -> None:
    await site.becomes(lambda: len(site.ours()) == 4 and site.status().state == "ok")
    await site.rest()


async def test_slices_are_published_and_owned_by_the_node(tmp_path: Path) -> None:
    """Each GPU's; then nothing is written, and almost nothing asked."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        one = site.ours()["gpu-1"]
        assert one["metadata"]["name"] == "n1-gpu.nvidia.com-gpu-1"
        [owner] = one["metadata"]["ownerReferences"]
        node = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": site.uid, "controller": True}
        assert owner == node
        assert one["spec"]["pool"] == {"name": "n1/gpu-1", "generation": 1, "resourceSliceCount": 1}
        assert one["spec"]["devices"][0]["attributes"]["type"] == {"string": "gpu"}
        assert len(site.writes()) == 4
        asked = [f"GET {PATH}", f"WATCH {PATH}", "GET /api/v1/nodes/n1"]
        assert sorted(each for each in site.server.requests if not each.startswith("PATCH")) == sorted(asked)
        assert set(site.status().published) == set(site.slices())


async def test_nothing_is_written_when_the_agent_starts_again(tmp_path: Path) -> None:
    """The slices stay when an agent ends, and are as the next one wants them; quantities may be written otherwise."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        site.edit("gpu-1", capacity={"memory": {"value": "83516416Ki"}})  # the same
        await site.rest()
        kept = list(site.slices().values())
        assert len(site.writes()) == 4
        writes = len(site.writes())
        again = asyncio.create_task(publish_slices(site.node, "n1", tmp_path / "kubeconfig"))
        await site.becomes(lambda: len(site.server.watchers) == 2)
        await site.rest()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
        assert len(site.writes()) == writes
        assert list(site.slices().values()) == kept


async def test_a_wipe_and_edits_are_healed(tmp_path: Path) -> None:
    """Within a second or so, with one write for each slice that was touched."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        site.wipe()
        began = time.monotonic()
        await site.becomes(lambda: len(site.ours()) == 4)
        assert time.monotonic() - began < 3
        await site.rest(1.0)
        before = len(site.writes())
        site.edit("gpu-2", attributes={"type": {"string": "mig"}})
        await site.becomes(lambda: site.ours()["gpu-2"]["spec"]["devices"][0]["attributes"]["type"]["string"] == "gpu")
        await site.rest(1.0)
        assert len(site.writes()) == before + 1


async def test_who_edits_without_end_is_answered_ever_more_rarely(tmp_path: Path) -> None:
    """No circle of writes."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        before, began = len(site.writes()), time.monotonic()
        while time.monotonic() - began < 4:
            site.edit("gpu-2", attributes={"type": {"string": "mig"}})
            await asyncio.sleep(0.02)
        assert 1 <= len(site.writes()) - before <= 5
        assert site.status().state == "ok"


async def test_others_slices_are_not_touched(tmp_path: Path) -> None:
    """Of another driver here, and of ours elsewhere; what is obsolete of ours goes."""
    others = [spec("theirs", driver="nic.example.com"), spec("elsewhere", node="n2"), spec("obsolete")]
    async with publishing(tmp_path, before=others) as site:
        await all_published(site)
        assert {"theirs", "elsewhere"} <= site.slices().keys()
        assert "obsolete" not in site.slices()
        deleted = site.server.requests.index(f"DELETE {PATH}/obsolete")
        assert deleted < min(n for n, each in enumerate(site.server.requests) if each.startswith("PATCH"))
        assert not [each for each in site.writes() if "theirs" in each or "elsewhere" in each]


async def test_a_taint_is_written_to_one_slice(tmp_path: Path) -> None:
    """The generation of its pool stays; the time of a taint that stays is sent back; neighbours are not written."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        versions = {name: each["metadata"]["resourceVersion"] for name, each in site.ours().items()}
        site.node.apply(DRAIN)
        await site.becomes(lambda: site.taints("gpu-1"))
        await site.rest()
        assert [each["key"] for each in site.taints("gpu-1")] == ["gpuplane.io/drained"]
        assert site.ours()["gpu-1"]["spec"]["pool"]["generation"] == 1
        changed = [name for name, each in site.ours().items() if each["metadata"]["resourceVersion"] != versions[name]]
        assert changed == ["gpu-1"]
        site.edit("gpu-1", taints=[{**site.taints("gpu-1")[0], "timeAdded": "2026-01-02T03:04:05Z"}])
        await site.rest()
        faulty = GPUS[1].but(pcie_root="pci0000:16")
        site.node.apply(MachineObserved(MACHINE.but(gpus=(GPUS[0], faulty, *GPUS[2:]))))
        root = "resource.kubernetes.io/pcieRoot"
        await site.becomes(
            lambda: site.ours()["gpu-1"]["spec"]["devices"][0]["attributes"][root]["string"] == "pci0000:16"
        )
        assert site.taints("gpu-1")[0]["timeAdded"] == "2026-01-02T03:04:05Z"
        site.node.apply(RESTORE)
        await site.becomes(lambda: not site.taints("gpu-1"))


async def test_a_taint_without_a_value_is_kept(tmp_path: Path) -> None:
    """The API server leaves out an empty value: that is no field that it dropped."""
    lost = GPUS[0].but(faults=(Fault("gpu-lost", "it has fallen off the bus"),))
    async with publishing(tmp_path) as site:
        await all_published(site)
        site.node.apply(MachineObserved(MACHINE.but(gpus=(lost, *GPUS[1:]))))
        await site.becomes(lambda: site.taints("gpu-0"))
        await site.rest()
        assert [each["key"] for each in site.taints("gpu-0")] == ["gpu.nvidia.com/gpu-lost"]
        assert site.status().state == "ok"


async def test_when_dra_is_switched_off_what_claims_hold_stays(tmp_path: Path) -> None:
    """Until the claim ends. Then nothing is watched any more."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        site.node.apply(ClaimPrepareRequested(claim("u1", 1)))
        site.node.apply(ConfigLoaded(Settings()))
        await site.becomes(lambda: list(site.ours()) == ["gpu-1"])
        await site.rest()
        assert [each["value"] for each in site.taints("gpu-1")] == ["dra-disabled"]
        site.node.apply(ClaimUnprepareRequested(claim("u1", 1).claim))
        await site.becomes(lambda: not site.slices() and not site.server.watchers)
        await site.becomes(lambda: site.node.snapshot.statuses.of(SLICES_PART) is None)
        site.node.apply(ConfigLoaded(DRA))
        await all_published(site)


async def test_while_dra_is_off_nothing_is_asked(tmp_path: Path) -> None:
    """Kubelet deletes what an agent of before has left."""
    async with publishing(tmp_path, Settings()) as site:
        await site.rest()
        assert not site.server.requests


async def test_the_driver_may_get_another_name(tmp_path: Path) -> None:
    """It publishes its own; those of the old name are kubelet's to delete, where no agent comes for them."""
    async with publishing(tmp_path) as site:
        await all_published(site)
        site.node.apply(ConfigLoaded(Settings(dra=DraSettings(enabled=True, driver="gpu.example.com"))))
        await site.becomes(lambda: len(site.slices()) == 8)


async def test_an_old_api_server_is_said_to_be_one(tmp_path: Path) -> None:
    """404 for the whole collection: it is asked again only much later. Where our Node is missing, soon."""
    server = ApiServer()
    server.failures.append(InjectedFailure(f"GET {PATH}", times=99, code=404, message="not found"))
    async with publishing(tmp_path, server=server) as site:
        await site.becomes(lambda: site.status().code == "slices-not-published")
        await site.rest(1.5)
        assert len(site.server.requests) == 1
        site.node.apply(ConfigLoaded(Settings()))
        await site.becomes(lambda: site.node.snapshot.statuses.of(SLICES_PART) is None)


async def test_a_node_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    """Kubelet makes it; nothing can be owned by it before."""
    async with publishing(tmp_path) as site:
        site.server.put("/api/v1/nodes/n1", None)
        site.wipe()
        await site.becomes(lambda: site.status().code == "slices-not-published")
        assert not site.slices()
        site.server.put("/api/v1/nodes/n1", NODE)
        await all_published(site)


async def test_a_server_that_comes_and_goes(tmp_path: Path) -> None:
    """Answers that are lost, refusals, and an end: at last all is there."""
    server = ApiServer()
    server.failures.append(InjectedFailure("PATCH *", times=2, lose_response=True))
    server.failures.append(InjectedFailure("PATCH *", times=2, code=500, message="busy"))
    async with publishing(tmp_path, server=server) as site:
        await all_published(site)
        await site.server.stop()
        site.node.apply(DRAIN)
        await site.becomes(lambda: site.status().state == "failing")
        await site.server.start()
        await site.becomes(lambda: site.taints("gpu-1") and site.status().state == "ok")
        site.server.expire_history()
        site.node.apply(RESTORE)
        await site.becomes(lambda: not site.taints("gpu-1"))


async def test_a_slice_that_is_refused_keeps_no_other_back(tmp_path: Path) -> None:
    """The others are published all the same, and an Event tells of it once."""
    server = ApiServer()
    server.failures.append(InjectedFailure(f"PATCH {PATH}/n1-gpu.nvidia.com-gpu-2", times=2, code=422, message="no"))
    async with publishing(tmp_path, server=server) as site:
        await site.becomes(lambda: len(site.ours()) == 3)
        await site.becomes(lambda: len(site.ours()) == 4)
        await site.rest()
        events = [each["reason"] for path, each in server.objects._objects.items() if path.plural == "events"]
        assert events == ["ResourceSlicesNotPublished", "ResourceSlicesPublished"]


async def test_sixteen_gpus_are_published_soon_after_the_look(tmp_path: Path) -> None:
    """The budget is 200 ms on an idle machine (`make bench`); here it may be busy."""
    machine = machinefile.read_machine(find_machine_file("big-16").read_bytes(), "big-16")
    async with ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        server.put("/api/v1/nodes/n1", NODE)
        node = Node(Snapshot())
        node.apply(ConfigLoaded(DRA))
        node.apply(AllocationsListed((), 0.0))
        site = Site(server, node)
        task = asyncio.create_task(publish_slices(node, "n1", kubeconfig))
        await site.becomes(lambda: server.watchers)
        began = time.monotonic()
        node.apply(MachineObserved(machine))
        await site.becomes(lambda: len(site.ours()) == 16)
        took = time.monotonic() - began
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        print(f"{took * 1000:.0f} ms")
        assert took < 5


def test_the_stream_is_long_lived() -> None:
    """An idle node asks ten times an hour at the most: three requests for each stream."""
    shortest, _ = publisher.STREAM_LIFETIME
    assert shortest >= 1800
    assert 3 * 3600 / shortest <= 10


def test_dra_is_off_by_default() -> None:
    assert not resolve_settings(b"", "empty.yaml").dra.enabled
