"""Kubelet's restart, its checkpoint and pod-resources, as observed on 1.36.2, on real sockets; and its moods here.

What was not observed follows kubelet's source (pkg/kubelet/cm/devicemanager) and says so.
"""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols import podresources_pb2
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerStub
from gpuplane.sandbox.kubelet import Call, Container, Kubelet, Pod, PodRejected

from .plugin import CHECKPOINT, DEV, SIX, Plugin, calls, device, entries, given, node, wants

if TYPE_CHECKING:
    from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerAsyncStub


@asynccontextmanager
async def lister(root: Path) -> AsyncIterator["PodResourcesListerAsyncStub"]:
    """A client of pod-resources."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{root}/pod-resources/kubelet.sock", alone) as channel:
        yield PodResourcesListerStub(channel)


async def held(stub: "PodResourcesListerAsyncStub") -> dict[str, int]:
    """container → how many devices it holds, of all pods that are listed."""
    answer = await stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=10)
    return {each.name: len(each.devices) for pod in answer.pod_resources for each in pod.containers}


# kubelet's restart


async def test_at_its_start_kubelet_removes_all_but_its_checkpoint(root: Path) -> None:
    """Every plugin's socket is gone; a plugin has to make a new one, and then to register."""
    async with node(root, *SIX) as (kubelet, plugin):
        (plugin.path.parent / "left-over").write_text("")
        before = (plugin.path.parent / "kubelet.sock").stat().st_ctime_ns
        await kubelet.stop()
        assert "ListAndWatch ended" in calls(kubelet)
        await kubelet.start()

        assert {each.name for each in plugin.path.parent.iterdir()} == {"kubelet.sock", CHECKPOINT}
        assert (plugin.path.parent / "kubelet.sock").stat().st_ctime_ns != before

        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.until_capacity(DEV, 6, 6)


async def test_pods_keep_their_devices_through_a_restart(root: Path) -> None:
    """Capacity is 0 until the plugin registers; allocations come from the checkpoint, without another Allocate."""
    async with node(root, *SIX) as (kubelet, plugin):
        pod = wants("a", 4)
        await kubelet.run(pod)
        held = given(kubelet, pod)
        await kubelet.restart()

        assert kubelet.capacity(DEV) == (0, 0)
        assert kubelet.node_capacities() == {DEV: (0, 0)}
        assert given(kubelet, pod) == held
        with pytest.raises(PodRejected, match="no healthy devices present; cannot allocate unhealthy devices lab"):
            await kubelet.run(wants("early"))

        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.until_capacity(DEV, 6, 6)
        assert len(plugin.asked("Allocate")) == 1
        with pytest.raises(PodRejected, match="Requested: 3, Available: 2"):
            await kubelet.run(wants("b", 3))
        assert list(kubelet.pods) == ["default/a"]


async def test_a_kubelet_of_another_process_finds_the_same(root: Path) -> None:
    """What it knows is in the checkpoint, not in memory; pods it does not know lose theirs at the next allocation."""
    async with node(root, *SIX) as (kubelet, _):
        pod = wants("a", 2)
        await kubelet.run(pod)
        held = given(kubelet, pod)
    async with Kubelet(root) as other:
        assert given(other, pod) == held
        assert other.capacity(DEV) == (0, 0)


async def test_a_container_that_waits_is_rejected_by_a_restart(root: Path) -> None:
    """By the source: kubelet admits every pod again, and passes those whose containers run; for the others no device is
    healthy before the plugin registers."""
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        await kubelet.run(wants("runs"))
        await kubelet.until(lambda: kubelet.pods["default/runs"].started == {"main"})
        plugin.errors["PreStartContainer"] = "not yet"
        running = await kubelet.run(wants("waits"))
        await kubelet.until(lambda: bool(running.waiting_reasons))
        await kubelet.restart()
        assert list(kubelet.pods) == ["default/runs"]
        assert kubelet.rejected_pods["default/waits"].reason == "UnexpectedAdmissionError"
        assert "no healthy devices present" in kubelet.rejected_pods["default/waits"].message


async def test_a_kubelet_that_is_killed_leaves_sockets_that_refuse(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, plugin):
        await kubelet.kill()
        assert (root / "device-plugins/kubelet.sock").exists()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await plugin.register()
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert plugin.path.exists()
        await kubelet.start()
        assert not plugin.path.exists()


async def test_a_second_kubelet_is_refused(root: Path) -> None:
    async with Kubelet(root):
        with pytest.raises(FileExistsError, match="another kubelet already runs there, process"):
            await Kubelet(root).start()


async def test_a_directory_whose_socket_would_be_too_long_is_refused(root: Path) -> None:
    with pytest.raises(OSError, match="too long for a unix socket"):
        await Kubelet(root / ("x" * 90)).start()
    assert not list(root.iterdir())


async def test_a_directory_that_takes_no_socket_is_refused(root: Path) -> None:
    """One that belongs to another user. Root may write everywhere, so root is nobody here for a moment."""
    user = os.geteuid()
    root.chmod(0o755)
    (root / "device-plugins").mkdir()
    (root / "pod-resources").mkdir()
    for path in (root / "device-plugins", root / "pod-resources"):
        path.chmod(0o555)
    try:
        if user == 0:
            os.seteuid(65534)
        with pytest.raises(OSError, match="cannot create a socket in this directory"):
            await Kubelet(root).start()
    finally:
        os.seteuid(user)
        for path in (root / "device-plugins", root / "pod-resources"):
            path.chmod(0o755)


# the checkpoint


async def test_the_shape_of_the_checkpoint(root: Path) -> None:
    """As kubelet writes it: ids by NUMA node, -1 for none; the whole answer; null where there are no entries."""
    async with node(root, "d1") as (kubelet, plugin):
        path = root / "device-plugins" / CHECKPOINT
        assert json.loads(path.read_bytes())["Data"] == {"PodDeviceEntries": None, "RegisteredDevices": {DEV: ["d1"]}}

        plugin.send(device("d1"), device("d2", "Healthy", 0, 1), device("d3", "Unhealthy"))
        await kubelet.until_capacity(DEV, 3, 2)
        pod = wants("a", 2)
        await kubelet.run(pod)
        file = json.loads(path.read_bytes())
        (entry,) = file["Data"]["PodDeviceEntries"]
        answer = pb.ContainerAllocateResponse.FromString(base64.b64decode(entry.pop("AllocResp")))

        assert set(file) == {"Data", "Checksum"}
        assert isinstance(file["Checksum"], int)
        assert file["Data"]["RegisteredDevices"] == {DEV: ["d1", "d2"]}
        assert entry == {
            "PodUID": pod.uid,
            "ContainerName": "main",
            "ResourceName": DEV,
            "DeviceIDs": {"-1": ["d1"], "0": ["d2"], "1": ["d2"]},
        }
        assert answer == kubelet.pods[pod.key].response()


async def test_an_entry_is_written_between_allocate_and_pre_start_container(root: Path) -> None:
    async with node(root, *SIX, starts=True) as (kubelet, plugin):
        pod = wants("a")
        await kubelet.run(pod)
        await plugin.until_asked("PreStartContainer")
        seen = dict(plugin.seen)
        assert seen["Allocate"] == []
        assert [entry["PodUID"] for entry in seen["PreStartContainer"]] == [pod.uid]


async def test_the_entry_of_a_pod_that_is_gone_stays_until_the_next_allocation(root: Path) -> None:
    async with node(root, *SIX) as (kubelet, plugin):
        old, new = wants("old", 6), wants("new", 6)
        await kubelet.run(old)
        await kubelet.end(old.key)
        plugin.send(*map(device, SIX))
        await kubelet.restart()
        assert [entry["PodUID"] for entry in entries(root / "device-plugins")] == [old.uid]
        assert kubelet.devices.held_ids(DEV) == set(SIX)

        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.until_capacity(DEV, 6, 6)
        await kubelet.run(new)
        assert [entry["PodUID"] for entry in entries(root / "device-plugins")] == [new.uid]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff", b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}']
)
async def test_a_checkpoint_that_cannot_be_read_costs_the_memory_alone(root: Path, content: bytes) -> None:
    (root / "device-plugins").mkdir()
    (root / "device-plugins" / CHECKPOINT).write_bytes(content)
    async with node(root, *SIX) as (kubelet, _):
        assert kubelet.capacity(DEV) == (6, 6)


# pod-resources


async def test_who_holds_what(root: Path) -> None:
    """An entry for each id, with its NUMA nodes; of init containers the side-cars alone; an unknown pod is an error."""
    async with node(root, *SIX) as (kubelet, plugin):
        plugin.send(device("d1", "Healthy", 1), device("d2"), device("d3", "Unhealthy"))
        await kubelet.until_capacity(DEV, 3, 2)
        init = Container("first", {DEV: 1}), Container("side-car", {DEV: 1})
        pod = Pod("a", (Container("main", {DEV: 1}),), init=init, sidecars=frozenset({"side-car"}), namespace="ns")
        await kubelet.run(pod)
        async with grpc.aio.insecure_channel(f"unix:{root}/pod-resources/kubelet.sock") as channel:
            stub = PodResourcesListerStub(channel)
            listed = await stub.List(podresources_pb2.ListPodResourcesRequest())
            one = await stub.Get(podresources_pb2.GetPodResourcesRequest(pod_name="a", pod_namespace="ns"))
            every = await stub.GetAllocatableResources(podresources_pb2.AllocatableResourcesRequest())
            with pytest.raises(grpc.aio.AioRpcError, match="pod b in namespace ns not found"):
                await stub.Get(podresources_pb2.GetPodResourcesRequest(pod_name="b", pod_namespace="ns"))

        (found,) = listed.pod_resources
        assert found == one.pod_resources
        assert (found.namespace, found.name) == ("ns", "a")
        assert [each.name for each in found.containers] == ["side-car", "main"]
        held = {tuple(d.device_ids): [n.ID for n in d.topology.nodes] for c in found.containers for d in c.devices}
        assert held == {("d1",): [1], ("d2",): []}
        assert sorted(tuple(each.device_ids) for each in every.devices) == [("d1",), ("d2",)]


async def test_a_pod_is_listed_from_the_beginning_of_its_admission(root: Path) -> None:
    """By the source: with what its containers have got so far."""
    async with node(root, *SIX) as (kubelet, plugin), lister(root) as stub:
        gate = plugin.gates["Allocate"] = asyncio.Event()
        pod = Pod("a", (Container("x", {DEV: 1}), Container("y", {DEV: 1})))
        admission = asyncio.create_task(kubelet.run(pod))
        await plugin.until_asked("Allocate")
        assert await held(stub) == {"x": 0, "y": 0}
        del plugin.gates["Allocate"]
        gate.set()
        await admission
        assert await held(stub) == {"x": 1, "y": 1}


async def test_a_kubelet_that_has_just_started_lists_what_it_has_heard_of(root: Path) -> None:
    """By the source: until the API server has told it its pods it lists none, and frees nothing."""
    async with node(root, *SIX) as (kubelet, _), lister(root) as stub:
        pod = wants("a", 2)
        await kubelet.run(pod)
        kubelet.inject(knows_pods=False)
        await kubelet.restart()
        assert await held(stub) == {}
        assert len(given(kubelet, pod)) == 2
        kubelet.inject(knows_pods=True)
        assert await held(stub) == {"main": 2}


async def test_who_asks_too_often_is_refused(root: Path) -> None:
    """By the source: a hundred questions a second, ten of them at once."""
    time = [0.0]
    async with Kubelet(root, now=lambda: time[0]), lister(root) as stub:
        for _ in range(10):
            await held(stub)
        with pytest.raises(grpc.aio.AioRpcError, match="rejected by rate limit") as error:
            await held(stub)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        time[0] = 0.015
        await held(stub)


# its moods


async def test_it_can_be_slow(root: Path) -> None:
    """A caller that is less patient gives up; a registration is carried out nevertheless."""
    async with Kubelet(root) as kubelet, lister(root) as stub:
        plugin = Plugin(root / "device-plugins", *SIX)
        await plugin.serve()
        kubelet.inject(response_delay=0.3)
        for impatient in (
            plugin.register(timeout=0.05),
            stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=0.05),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await impatient
            assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await kubelet.until_capacity(DEV, 6, 6)
        await plugin.stop()


async def test_it_can_misbehave(root: Path) -> None:
    """It refuses, opens no stream, does not read, does not list, loses its streams; and does well again."""
    async with Kubelet(root) as kubelet:
        plugin = Plugin(root / "device-plugins", *SIX)
        await plugin.serve()
        kubelet.inject(register_error="not today")
        with pytest.raises(grpc.aio.AioRpcError, match="not today"):
            await plugin.register()
        kubelet.inject(register_error="", opens_streams=False)
        await plugin.register()
        assert not plugin.asked("ListAndWatch")
        kubelet.inject(opens_streams=True, reads_lists=False)
        await plugin.register()
        await plugin.until_asked("ListAndWatch")
        assert kubelet.device_health() == {}
        kubelet.inject(reads_lists=True, serves_pod_resources=False)
        await kubelet.until_capacity(DEV, 6, 6)
        async with grpc.aio.insecure_channel(f"unix:{root}/pod-resources/kubelet.sock") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="does not list"):
                await PodResourcesListerStub(channel).List(podresources_pb2.ListPodResourcesRequest())
        await kubelet.drop_streams()
        await kubelet.until_capacity(DEV, 6, 0)
        assert kubelet.trace[-1] == Call("ListAndWatch ended", DEV)
        await plugin.stop()
