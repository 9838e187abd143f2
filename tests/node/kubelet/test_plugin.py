"""What kubelet is answered: lists that follow the node, devices for containers, advice. A real server and client."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.core.shares import MAX_SHARES_PER_NODE
from gpuplane.node.kubelet import plugin as module
from gpuplane.node.kubelet.plugin import MOST_CONTAINERS, Plugin
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginStub, add_DevicePluginServicer_to_server
from gpuplane.node.model.config import ListStrategy, NamingRule, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import OfferedDevice

if TYPE_CHECKING:
    from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginAsyncStub

GPU = "nvidia.com/gpu"
LOST = Fault(code="gpu-lost", message="fell off the bus")
HOT = Fault(code="too-hot", message="101 °C")
GONE = Settings(gpus=(NamingRule(pattern="*", name="nvidia.com/other"),))


def look(*faults: tuple[Fault, ...], count: int = 0) -> MachineObserved:
    """One GPU for each tuple of faults; their NUMA nodes are 0, 1 and none."""
    gpus = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", model="T4", numa=(0, 1, None)[i % 3], faults=each)
        for i, each in enumerate(faults or ((),) * count)
    )
    return MachineObserved(Machine(gpus=gpus))


def node(*gpus: tuple[Fault, ...], count: int = 0) -> Node:
    node = Node(Snapshot())
    node.apply(look(*gpus, count=count))
    node.apply(ConfigLoaded(Settings()))
    node.apply(AllocationsListed((), node.now()))
    return node


@asynccontextmanager
async def served(node: Node, path: Path) -> AsyncIterator[tuple[Plugin, "DevicePluginAsyncStub"]]:
    plugin, server = Plugin(node, GPU), grpc.aio.server()
    add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{path}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{path}/s") as channel:
        yield plugin, DevicePluginStub(channel)
    await server.stop(None)


async def following(stream: Any) -> list[tuple[str, str]]:
    """The next list of a stream."""
    async with asyncio.timeout(60):
        answer = await stream.read()
    return [(device.ID, device.health) for device in answer.devices]


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details() or ""


def ask(*containers: tuple[str, ...]) -> pb.AllocateRequest:
    return pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers])


async def test_the_list_has_health_and_numa_node(tmp_path: Path) -> None:
    async with served(node((), (LOST,), ()), tmp_path) as (_, kubelet):
        first: Any = await kubelet.ListAndWatch(pb.Empty()).read()
    numa = [[each.ID for each in device.topology.nodes] for device in first.devices]
    assert [(device.ID, device.health) for device in first.devices] == [
        ("GPU-0", "Healthy"),
        ("GPU-1", "Unhealthy"),
        ("GPU-2", "Healthy"),
    ]
    assert numa == [[0], [1], []]
    assert not first.devices[2].HasField("topology")


async def test_every_stream_gets_every_change_and_no_list_twice(tmp_path: Path) -> None:
    """A change of the reason alone is none that kubelet could see."""
    world = node((), ())
    async with served(world, tmp_path) as (plugin, kubelet):
        streams = [kubelet.ListAndWatch(pb.Empty()) for _ in range(3)]
        for stream in streams:
            assert await following(stream) == [("GPU-0", "Healthy"), ("GPU-1", "Healthy")]
        assert plugin.open_streams == 3
        world.apply(look((), (LOST,)))
        for stream in streams:
            assert await following(stream) == [("GPU-0", "Healthy"), ("GPU-1", "Unhealthy")]
        world.apply(look((), (HOT,)))
        await kubelet.GetDevicePluginOptions(pb.Empty())  # every stream has had its turn
        world.apply(look((LOST,), (HOT,)))
        for stream in streams:
            assert await following(stream) == [("GPU-0", "Unhealthy"), ("GPU-1", "Unhealthy")]


async def test_a_list_is_sent_again_where_kubelet_is_to_write_its_checkpoint(tmp_path: Path) -> None:
    """Once each time that it is asked for."""
    world = node(())
    async with served(world, tmp_path) as (_, kubelet):
        stream = kubelet.ListAndWatch(pb.Empty())
        assert await following(stream) == [("GPU-0", "Healthy")]
        for number in (1, 2):
            world.apply(AllocationsListed((), 0.0, checkpoint_rewrite=number))
            assert await following(stream) == [("GPU-0", "Healthy")]
        world.apply(AllocationsListed((), 0.0))
        await kubelet.GetDevicePluginOptions(pb.Empty())  # the stream has had its turn
        world.apply(look((LOST,)))
        assert await following(stream) == [("GPU-0", "Unhealthy")]


async def test_a_list_is_built_once_for_all_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    build = module._list_response

    def count(devices: tuple[OfferedDevice, ...]) -> pb.ListAndWatchResponse:
        built.append(len(devices))
        return build(devices)

    monkeypatch.setattr(module, "_list_response", count)
    world = node((), ())
    async with served(world, tmp_path) as (_, kubelet):
        streams = [kubelet.ListAndWatch(pb.Empty()) for _ in range(4)]
        for stream in streams:
            await following(stream)
        world.apply(look((), (), ()))
        for stream in streams:
            await following(stream)
    assert built == [2, 3]


async def test_a_resource_that_goes_gives_an_empty_list_and_an_end(tmp_path: Path) -> None:
    world = node(())
    async with served(world, tmp_path) as (plugin, kubelet):
        streams = [kubelet.ListAndWatch(pb.Empty()) for _ in range(2)]
        for stream in streams:
            await following(stream)
        world.apply(ConfigLoaded(GONE))
        for stream in streams:
            assert await following(stream) == []
            assert await stream.read() is grpc.aio.EOF
        assert plugin.open_streams == 0
        late = kubelet.ListAndWatch(pb.Empty())
        assert await following(late) == []
        assert await late.read() is grpc.aio.EOF


async def test_before_anything_is_known_a_stream_waits(tmp_path: Path) -> None:
    world = Node(Snapshot())
    async with served(world, tmp_path) as (_, kubelet):
        stream = kubelet.ListAndWatch(pb.Empty())
        code, details = await refused(kubelet.Allocate(ask(("GPU-0",))))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "not observed the machine" in details
        for fact in (look(()), ConfigLoaded(Settings()), AllocationsListed((), 0.0)):
            world.apply(fact)
        assert await following(stream) == [("GPU-0", "Healthy")]


async def test_a_stream_that_nobody_reads_holds_up_nothing(tmp_path: Path) -> None:
    """The other stream has every newest list of 1,024 ids; for the unread one no more is kept than its window takes."""
    gpus = 16
    world = node(count=gpus)
    world.apply(ConfigLoaded(Settings(sharing=Sharing((ReplicatedResource(GPU, 1024 // gpus),)))))
    window = [("grpc.http2.bdp_probe", 0)]
    async with (
        served(world, tmp_path) as (_, kubelet),
        grpc.aio.insecure_channel(f"unix:{tmp_path}/s", window) as channel,
    ):
        unread, read = DevicePluginStub(channel).ListAndWatch(pb.Empty()), kubelet.ListAndWatch(pb.Empty())
        await following(unread)
        await following(read)
        for lost in range(gpus):
            world.apply(look(*(((LOST,) if i == lost else ()) for i in range(gpus))))
            newest = dict(await following(read))
            assert len(newest) == 1024
            assert newest[f"GPU-{lost}::0"] == "Unhealthy"
        late = 0
        while dict(await following(unread)) != newest:
            late += 1
        assert late < gpus / 2


async def test_a_stream_that_is_cancelled_is_forgotten(tmp_path: Path) -> None:
    async with served(node(()), tmp_path) as (plugin, kubelet):
        stream = kubelet.ListAndWatch(pb.Empty())
        await following(stream)
        plugin.changed.clear()
        stream.cancel()
        async with asyncio.timeout(60):
            await plugin.changed.wait()
        assert plugin.open_streams == 0


async def test_allocate_answers_container_by_container(tmp_path: Path) -> None:
    world = node((), (), ())
    async with served(world, tmp_path) as (_, kubelet):
        answer = await kubelet.Allocate(ask(("GPU-2", "GPU-0"), ("GPU-1",)))
    assert [dict(each.envs) for each in answer.container_responses] == [
        {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0"},
        {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
    ]
    assert [each.devices for each in world.snapshot.allocations or ()] == [("GPU-2", "GPU-0"), ("GPU-1",)]


async def test_one_refusal_refuses_the_request_and_grants_nothing(tmp_path: Path) -> None:
    world = node((), (LOST,))
    async with served(world, tmp_path) as (_, kubelet):
        code, details = await refused(kubelet.Allocate(ask(("GPU-0",), ("GPU-1",))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "GPU-1" in details
    assert "fell off the bus" in details
    assert world.snapshot.allocations == ()


async def test_a_refusal_is_one_short_line_whatever_its_reason(tmp_path: Path) -> None:
    """Reasons come from people, and a status must fit into gRPC's headers."""
    world = node((Fault(code="lost", message="so\nlong " * 20_000),))
    async with served(world, tmp_path) as (_, kubelet):
        code, details = await refused(kubelet.Allocate(ask(("GPU-0",))))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "lost: so long so long" in details
    assert len(details) == 1000
    assert "\n" not in details


async def test_every_field_of_an_answer_reaches_kubelet(tmp_path: Path) -> None:
    world = node(())
    machine = world.snapshot.machine
    assert machine is not None
    assert machine.gpus is not None
    world.apply(MachineObserved(machine.but(gpus=(machine.gpus[0].but(device_nodes=("/dev/nvidia0",)),))))
    strategies: tuple[ListStrategy, ...] = ("volume-mounts", "cdi-annotations", "cdi-cri")
    world.apply(ConfigLoaded(Settings(device_list_strategy=strategies, pass_device_specs=True, dev_root="/run/driver")))
    async with served(world, tmp_path) as (_, kubelet):
        (got,) = (await kubelet.Allocate(ask(("GPU-0",)))).container_responses
    assert dict(got.envs) == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
    assert list(got.mounts) == [
        pb.Mount(container_path="/var/run/nvidia-container-devices/GPU-0", host_path="/dev/null", read_only=False)
    ]
    assert list(got.devices) == [
        pb.DeviceSpec(container_path="/dev/nvidia0", host_path="/run/driver/dev/nvidia0", permissions="rw")
    ]
    assert list(got.annotations.values()) == ["k8s.device-plugin.nvidia.com/gpu=GPU-0"]
    assert [each.name for each in got.cdi_devices] == ["k8s.device-plugin.nvidia.com/gpu=GPU-0"]


def advise(available: list[str], size: int, must: tuple[str, ...] = ()) -> pb.ContainerPreferredAllocationRequest:
    return pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
    )


async def test_advice_is_given_container_by_container_and_never_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [advise(["GPU-3", "GPU-0", "GPU-1"], 2), advise(["GPU-9"], 2), advise([], -1, ("GPU-8",))]
    request = pb.PreferredAllocationRequest(container_requests=questions)
    async with served(node(count=4), tmp_path) as (_, kubelet):
        answer = await kubelet.GetPreferredAllocation(request)
        assert [list(each.deviceIDs) for each in answer.container_responses] == [["GPU-0", "GPU-3"], [], []]

        def defect(*_: object) -> tuple[str, ...]:
            raise ZeroDivisionError

        monkeypatch.setattr(module, "preferred_ids", defect)
        answer = await kubelet.GetPreferredAllocation(request)
        assert [list(each.deviceIDs) for each in answer.container_responses] == [[], [], []]
    assert [each.exc_info[0] for each in caplog.records if each.exc_info] == [ZeroDivisionError] * 3


async def test_what_kubelet_may_call(tmp_path: Path) -> None:
    """PreStartContainer is not asked for, and answered all the same."""
    async with served(node(()), tmp_path) as (_, kubelet):
        options = await kubelet.GetDevicePluginOptions(pb.Empty())
        assert options == pb.DevicePluginOptions(get_preferred_allocation_available=True)
        assert (
            await kubelet.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["GPU-0"]))
            == pb.PreStartContainerResponse()
        )


@pytest.mark.parametrize(
    ("containers", "requested", "allowed"),
    [
        ([["GPU-0"]] * 60_000, 60_000, MOST_CONTAINERS),
        ([["GPU-0"]] * (MOST_CONTAINERS + 1), MOST_CONTAINERS + 1, MOST_CONTAINERS),
        ([["GPU-0"] * 100_000], 100_000, MAX_SHARES_PER_NODE),
        ([["GPU-0"], ["GPU-1"] * 40_000], 40_001, MAX_SHARES_PER_NODE),
    ],
)
async def test_a_request_that_is_larger_than_any_can_be_is_refused_at_once(
    tmp_path: Path, containers: list[list[str]], requested: int, allowed: int
) -> None:
    """Nothing is granted, the bound is said, and advice is empty: an error there would reject the pod."""
    world = node(count=2)
    before = world.snapshot
    async with served(world, tmp_path) as (_, kubelet):
        code, details = await refused(kubelet.Allocate(ask(*map(tuple, containers))))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert [int(number) for number in re.findall(r"\d+", details)] == [requested, allowed]
        wanted = [pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids) for ids in containers]
        advice = await kubelet.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=wanted))
        assert not any(each.deviceIDs for each in advice.container_responses)
    assert world.snapshot is before
