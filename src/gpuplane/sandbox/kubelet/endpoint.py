"""One registered plugin: the connection to it, and what kubelet calls (devicemanager/endpoint.go, plugin/v1beta1)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import msgspec

from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginStub
from gpuplane.sandbox.kubelet.devices import Refusal

R = TypeVar("R")

PRE_START = 30.0
"""Seconds that kubelet gives PreStartContainer. Allocate and GetPreferredAllocation have no deadline."""


class Call(msgspec.Struct, frozen=True):
    """One call between kubelet and a plugin, in the order of the trace."""

    method: str
    resource: str
    ids: tuple[str, ...] = ()
    must: tuple[str, ...] = ()
    size: int = 0


class Endpoint:
    """A plugin's server as kubelet sees it. Every call is entered in the trace."""

    def __init__(self, resource: str, socket: Path, trace: list[Call]) -> None:
        self.resource, self.trace = resource, trace
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)])
        self.plugin = DevicePluginStub(self.channel)
        self.options = pb.DevicePluginOptions()

    async def connect(self, deadline: float) -> None:
        """Dial, and ask for the options. Raises Refusal."""
        try:
            async with asyncio.timeout(deadline):
                await self.channel.channel_ready()
        except TimeoutError:
            await self.channel.close()
            raise Refusal("failed to dial device plugin: context deadline exceeded") from None
        self._enter("GetDevicePluginOptions")
        self.options = await self._call(lambda: self.plugin.GetDevicePluginOptions(pb.Empty(), timeout=deadline))

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """The plugin's advice; no advice where it gives none. Raises Refusal."""
        if not self.options.get_preferred_allocation_available:
            return []
        self._enter("GetPreferredAllocation", available, must, size)
        one = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        try:
            answer = await self._call(lambda: self.plugin.GetPreferredAllocation(request))
        except Refusal as refusal:
            raise Refusal(f"device plugin GetPreferredAllocation rpc failed with err: {refusal}") from None
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """One container's devices, given out. Raises Refusal."""
        self._enter("Allocate", ids)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = await self._call(lambda: self.plugin.Allocate(request))
        if not answer.container_responses:
            raise Refusal(f"no containers return in allocation response {answer}")
        return answer.container_responses[0]

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Right before a container is created, where the plugin wants it. Raises Refusal."""
        if self.options.pre_start_required:
            self._enter("PreStartContainer", ids)
            request = pb.PreStartContainerRequest(devices_ids=ids)
            try:
                await self._call(lambda: self.plugin.PreStartContainer(request, timeout=PRE_START))
            except Refusal as refusal:
                raise Refusal(f"device plugin PreStartContainer rpc failed with err: {refusal}") from None

    def _enter(self, method: str, ids: Sequence[str] = (), must: Sequence[str] = (), size: int = 0) -> None:
        self.trace.append(Call(method, self.resource, tuple(ids), tuple(must), size))

    async def _call(self, call: Callable[[], Awaitable[R]]) -> R:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            code = error.code().name.title().replace("_", "")
            raise Refusal(f"rpc error: code = {code} desc = {error.details()}") from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if asyncio.current_task() and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            raise Refusal(f"rpc error: code = Canceled desc = the connection to {self.resource} was closed") from None
