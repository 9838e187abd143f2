"""The node agent: start, latency, memory, CPU, change; on a described machine unless the row says otherwise."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from bench.reference import bare_start, in_loops
from bench.rig import EIGHT, GPU, SIXTEEN, Driven, described, driven, running
from bench.row import Measure, Row
from gpuplane.node.agent.node import Node
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginStub
from gpuplane.node.kubelet.registration import register_plugins
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import InjectedFailure, Machine, MachineFile
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet

SHARES = 64
SHARED = f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {SHARES}}}]}}}}\n"
STARTS, CALLS, CHANGES = 10, 2000, 50


async def start() -> list[Row]:
    """starting"""
    rows = []
    for profile, count, config in ((EIGHT, 8, "version: v1\n"), (SIXTEEN, 16 * SHARES, SHARED)):
        times, bare = list[float](), list[float]()
        for _ in range(STARTS):
            times.append(await _start(profile, count, config=config))
            bare.append(await bare_start(count))
        ours, reference = statistics.median(times), statistics.median(bare)
        what = f"process start to registered and read, {count} ids / that of a bare grpcio server"
        how = f"{ours:.3f} s over {reference:.3f} s, medians of {STARTS} starts in turns, max {max(times):.2f} s"
        rows.append(Row(what, ours / reference, 4.0, "×", how))
    described, driver = list[float](), list[float]()
    with driven() as rig:
        for _ in range(STARTS):
            described.append(await _start(EIGHT, 8))
            driver.append(await _start("nvml", 8, *rig.flags))
    ours, reference = statistics.median(driver), statistics.median(described)
    how = f"{ours:.3f} s over {reference:.3f} s, medians of {STARTS} starts in turns"
    what = "the same with the driver's library (stand-in) / with a described machine"
    rows.append(Row(what, ours / reference, 1.25, "×", how))
    return rows


async def _start(machine: str, count: int, *more: object, config: str = "version: v1\n") -> float:
    """Seconds from the start of an agent until kubelet has so many devices."""
    async with running(machine, count, *more, config=config) as (_, _, seconds):
        return seconds


async def answers() -> list[Row]:
    """calls over the unix socket"""
    rows = []
    async with running(EIGHT, 8) as (kubelet, _, _):
        two = sorted(kubelet.device_health()[GPU])[:2]
        empty, allocate, admit = await asyncio.to_thread(latencies, kubelet, sorted(kubelet.device_health()[GPU]), two)
        how = f"p50 of {CALLS}, {allocate * 1e6:.0f} µs over {empty * 1e6:.0f} µs"
        rows.append(Row("Allocate of 2 GPUs / an empty call", allocate / empty, 1.15, "×", how))
        how = f"p50 of {CALLS}, {admit * 1e6:.0f} µs"
        rows.append(Row("GetPreferredAllocation + Allocate, 8 ids / an empty call", admit / empty, 2.3, "×", how))
    async with running(SIXTEEN, 16 * SHARES, config=SHARED) as (kubelet, _, _):
        ids = sorted(kubelet.device_health()[GPU])
        empty, _, admit = await asyncio.to_thread(latencies, kubelet, ids, ids[:2])
        how = f"p50 of {CALLS}, {admit * 1e6:.0f} µs over {empty * 1e6:.0f} µs"
        rows.append(Row("GetPreferredAllocation + Allocate, 1,024 ids / an empty call", admit / empty, 4.0, "×", how))
    return rows


def latencies(kubelet: Kubelet, ids: list[str], two: list[str], count: int = CALLS) -> tuple[float, float, float]:
    """p50 seconds of (an empty call, Allocate, GetPreferredAllocation and Allocate), in turns on one connection."""
    prefer = pb.PreferredAllocationRequest(
        container_requests=[pb.ContainerPreferredAllocationRequest(available_deviceIDs=ids, allocation_size=2)]
    )
    give = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=two)])
    with grpc.insecure_channel(f"unix:{kubelet.manager.endpoints[GPU].socket}") as channel:
        plugin = DevicePluginStub(channel)

        def admit() -> None:
            plugin.GetPreferredAllocation(prefer)
            plugin.Allocate(give)

        calls: tuple[Callable[[], object], ...] = (
            lambda: plugin.GetDevicePluginOptions(pb.Empty()),
            lambda: plugin.Allocate(give),
            admit,
        )
        times: list[list[float]] = [[] for _ in calls]
        for turn in range(count + 200):
            for call, taken in zip(calls, times, strict=True):
                began = time.perf_counter()
                call()
                if turn >= 200:
                    taken.append(time.perf_counter() - began)
    empty, allocate, admission = map(statistics.median, times)
    return empty, allocate, admission


async def on_a_driver() -> list[Row]:
    """answers while the driver's library (its stand-in) hangs, with the API client"""
    with driven() as rig:
        async with ApiServer() as server:
            server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            kubeconfig = rig.folder / "kubeconfig"
            kubeconfig.write_text(server.kubeconfig())
            more = (*rig.flags, "--node-name", "n1", "--kubeconfig", kubeconfig)
            async with running("nvml", 8, *more) as (kubelet, agent, _):
                return [await _while_hung(kubelet, agent, rig)]


async def _while_hung(kubelet: Kubelet, agent: Agent, rig: Driven) -> Row:
    """Allocate while the driver's library hangs, over the same before; the streams stay open and healthy."""
    ids = sorted(kubelet.device_health()[GPU])
    _, before, _ = await asyncio.to_thread(latencies, kubelet, ids, ids[:2])
    rig.driver.describe(rig.described.but(failures=(InjectedFailure(effect="hang"),)))
    await agent.until_says("driver: failing", deadline=30)
    _, after, _ = await asyncio.to_thread(latencies, kubelet, ids, ids[:2])
    assert kubelet.capacity(GPU) == (8, 8)
    how = f"p50 of {CALLS}, {after * 1e6:.0f} µs over {before * 1e6:.0f} µs; ListAndWatch open, 8 healthy"
    return Row("Allocate while the driver's library hangs / before", after / before, 1.25, "×", how)


async def change() -> list[Row]:
    """a change of the machine, until kubelet has the new list"""
    shared = Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(name=GPU, replicas=SHARES),)))
    rows = []
    for profile, settings, count, budget in ((EIGHT, Settings(), 8, 100), (SIXTEEN, shared, 16 * SHARES, 20)):
        times = await _changes(described(profile), settings, count)
        how = f"median of {CHANGES}, max {max(times) * 1e3:.1f} ms; step, views, encoding, socket, kubelet's books"
        what = f"a look is told until kubelet has the list, {count} ids"
        rows.append(in_loops(Row(what, statistics.median(times) * 1e3, budget, "ms", how)))
    return rows


async def _changes(machine: MachineFile, settings: Settings, count: int) -> list[float]:
    """Seconds from each told look, by which one GPU is unplugged or plugged in, to the list at kubelet."""
    gpus = machine.gpus or ()
    whole = Machine(driver=machine.driver, gpus=gpus)
    node = Node(Snapshot())
    for fact in (MachineObserved(whole), ConfigLoaded(settings), AllocationsListed((), node.now())):
        node.apply(fact)
    times = []
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        async with Kubelet(Path(directory)) as kubelet:
            serving = asyncio.create_task(register_plugins(node, Path(directory) / "device-plugins"))
            await kubelet.until_capacity(GPU, count, count)
            for turn in range(CHANGES):
                look = whole if turn % 2 else whole.but(gpus=gpus[1:])
                there = count * len(look.gpus or ()) // len(gpus)
                began = time.perf_counter()
                node.apply(MachineObserved(look))
                await kubelet.until_capacity(GPU, there, there)
                times.append(time.perf_counter() - began)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    return times


MEASURES: tuple[Measure, ...] = (start, answers, change, on_a_driver)
