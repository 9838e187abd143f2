"""A device plugin by script, and a kubelet that it is registered with."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod

DEV = "lab.io/dev"
DEADLINE = 60.0
SIX = ("d1", "d2", "d3", "d4", "d5", "d6")
CHECKPOINT = "kubelet_internal_checkpoint"


class Plugin(DevicePluginServicer):
    """A plugin that does as it is told. `calls` are what it was asked: (method, request, seconds that were left)."""

    def __init__(self, directory: Path, *devices: str, prefers: bool = True, starts: bool = False) -> None:
        self.path = directory / "lab.sock"
        self.options = pb.DevicePluginOptions(get_preferred_allocation_available=prefers, pre_start_required=starts)
        self.devices = [device(each) for each in devices]
        self.calls: list[tuple[str, Any, float | None]] = []
        self.streams: list[asyncio.Queue[pb.ListAndWatchResponse | None]] = []
        self.advice: list[str] = []
        self.gives = pb.ContainerAllocateResponse()  # beside the environment
        self.errors: dict[str, str] = {}  # method → what it fails with
        self.gates: dict[str, asyncio.Event] = {}  # method → what it waits for
        self.seen: list[tuple[str, Any]] = []  # the checkpoint's entries as Allocate and PreStartContainer found them
        self.changed = asyncio.Event()

    async def serve(self) -> None:
        """Serve, in the place of whatever stands there."""
        self.path.unlink(missing_ok=True)
        self.server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.path}")
        await self.server.start()

    async def stop(self) -> None:
        """Cut every stream and go."""
        await self.server.stop(None)

    async def register(self, timeout: float = DEADLINE, **request: Any) -> None:
        """Register with kubelet. Raises AioRpcError."""
        said: Any = {"version": "v1beta1", "endpoint": self.path.name, "resource_name": DEV} | request
        options = [("grpc.use_local_subchannel_pool", 1)]  # not the connection to a kubelet before this one
        async with grpc.aio.insecure_channel(f"unix:{self.path.parent}/kubelet.sock", options) as channel:
            await RegistrationStub(channel).Register(pb.RegisterRequest(**said), timeout=timeout)

    def send(self, *devices: pb.Device) -> None:
        """Send a list on every open stream."""
        self.devices = list(devices)
        for stream in self.streams:
            stream.put_nowait(pb.ListAndWatchResponse(devices=self.devices))

    def asked(self, method: str) -> list[Any]:
        """The requests of one method."""
        return [request for name, request, _ in self.calls if name == method]

    async def until_asked(self, method: str, times: int = 1) -> None:
        """Until a method was called so often."""
        async with asyncio.timeout(DEADLINE):
            while len(self.asked(method)) < times:
                await self.changed.wait()

    async def _called(self, method: str, request: Any, context: Any) -> None:
        self.calls.append((method, request, context.time_remaining()))
        if method in ("Allocate", "PreStartContainer"):
            self.seen.append((method, entries(self.path.parent)))
        event, self.changed = self.changed, asyncio.Event()
        event.set()
        if method in self.gates:
            await self.gates[method].wait()
        if method in self.errors:
            await context.abort(grpc.StatusCode.INTERNAL, self.errors[method])

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        await self._called("GetDevicePluginOptions", request, context)
        return self.options

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        stream: asyncio.Queue[pb.ListAndWatchResponse | None] = asyncio.Queue()
        self.streams.append(stream)
        await self._called("ListAndWatch", request, context)
        yield pb.ListAndWatchResponse(devices=self.devices)
        while (response := await stream.get()) is not None:
            yield response

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        await self._called("GetPreferredAllocation", request, context)
        one = pb.ContainerPreferredAllocationResponse(deviceIDs=self.advice)
        return pb.PreferredAllocationResponse(container_responses=[one] if self.advice else [])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        await self._called("Allocate", request, context)
        ids = ",".join(request.container_requests[0].devices_ids)
        answer = pb.ContainerAllocateResponse(envs={"DEVICES": ids})
        answer.MergeFrom(self.gives)
        return pb.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        await self._called("PreStartContainer", request, context)
        return pb.PreStartContainerResponse()


def device(id: str, health: str = "Healthy", *nodes: int) -> pb.Device:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in nodes]) if nodes else None
    return pb.Device(ID=id, health=health, topology=topology)


def entries(directory: Path) -> list[dict[str, Any]]:
    """PodDeviceEntries of the checkpoint."""
    path = directory / CHECKPOINT
    return (json.loads(path.read_bytes())["Data"]["PodDeviceEntries"] or []) if path.exists() else []


def wants(name: str, count: int = 1) -> Pod:
    """A pod with one container that asks for so many."""
    return Pod(name, (Container("main", {DEV: count}),))


@asynccontextmanager
async def node(
    root: Path, *devices: str, prefers: bool = True, starts: bool = False, **kubelet: Any
) -> AsyncIterator[tuple[Kubelet, Plugin]]:
    """A kubelet, and a plugin that is registered with it and whose list it has read."""
    async with Kubelet(root, **kubelet) as running:
        plugin = Plugin(root / "device-plugins", *devices, prefers=prefers, starts=starts)
        await plugin.serve()
        try:
            await plugin.register()
            await running.until_capacity(DEV, len(devices), len(devices))
            yield running, plugin
        finally:
            await plugin.stop()


def calls(kubelet: Kubelet, *but: str) -> list[str]:
    return [call.method for call in kubelet.trace if call.method not in but]


def given(kubelet: Kubelet, pod: Pod, container: str = "main") -> set[str]:
    return set(kubelet.devices.held_by(pod.uid, container)[DEV])
