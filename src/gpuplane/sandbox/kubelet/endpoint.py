"""One registered plugin: the connection to it, and what kubelet calls (devicemanager/endpoint.go, plugin/v1beta1)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc
import msgspec

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginStub
from gpuplane.node.kubelet.sockets import grpc_target
from gpuplane.sandbox.kubelet.devices import KubeletError

R = TypeVar("R")

PRE_START_TIMEOUT = 30.0
"""Seconds that kubelet gives PreStartContainer. No other call to a plugin has a deadline."""


class Call(msgspec.Struct, frozen=True):
    """One call between kubelet and a plugin, in the order of the trace; "… failed" and "… ended" say how it ended."""

    method: str
    resource: str
    ids: tuple[str, ...] = ()
    must_include: tuple[str, ...] = ()
    size: int = 0
    error: str = ""


class Endpoint:
    """A plugin's server as kubelet sees it. `trace` is told every call."""

    def __init__(
        self, resource: str, socket: Path, trace: Callable[[Call], None], pre_start: float = PRE_START_TIMEOUT
    ) -> None:
        self.resource, self.socket, self._trace, self._pre_start = resource, socket, trace, pre_start
        self._channel = grpc.aio.insecure_channel(grpc_target(socket), [("grpc.use_local_subchannel_pool", 1)])
        self._plugin = DevicePluginStub(self._channel)
        self.options = pb.DevicePluginOptions()

    async def connect(self, deadline: float) -> None:
        """Dial, and ask for the options. Raises KubeletError."""
        try:
            async with asyncio.timeout(deadline):
                await self._channel.channel_ready()
        except TimeoutError:
            raise KubeletError("failed to dial device plugin: context deadline exceeded") from None
        self._record_call("GetDevicePluginOptions")
        try:
            self.options = await self._call(lambda: self._plugin.GetDevicePluginOptions(pb.Empty()))
        except KubeletError as refusal:
            raise KubeletError(f"failed to get device plugin options: {refusal}") from None

    async def close(self) -> None:
        """End the connection, and what is under way on it."""
        await self._channel.close()

    async def list_and_watch(self) -> AsyncGenerator[pb.ListAndWatchResponse, None]:
        """What the plugin lists, until the stream ends, whatever ends it."""
        self._record_call("ListAndWatch")
        stream = self._plugin.ListAndWatch(pb.Empty())
        try:
            async for response in stream:
                yield response
        except grpc.aio.AioRpcError:
            pass
        finally:
            stream.cancel()
            self._record_call("ListAndWatch ended")

    async def get_preferred_allocation(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> list[str]:
        """The plugin's advice; no advice where it gives none. Raises KubeletError."""
        if not self.options.get_preferred_allocation_available:
            return []
        self._record_call("GetPreferredAllocation", available, must_include, size)
        one = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        try:
            answer = await self._call(lambda: self._plugin.GetPreferredAllocation(request))
        except KubeletError as refusal:
            raise KubeletError(f"device plugin GetPreferredAllocation rpc failed with err: {refusal}") from None
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, ids: Sequence[str]) -> pb.ContainerAllocateResponse:
        """One container's devices, given out. Raises KubeletError."""
        self._record_call("Allocate", ids)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        answer = await self._call(lambda: self._plugin.Allocate(request))
        if not answer.container_responses:
            raise KubeletError(f"no containers return in allocation response {answer}")
        return answer.container_responses[0]

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Right before a container is created, where the plugin wants it. Raises KubeletError."""
        if not self.options.pre_start_required:
            return
        self._record_call("PreStartContainer", ids)
        request = pb.PreStartContainerRequest(devices_ids=ids)
        try:
            await self._call(lambda: self._plugin.PreStartContainer(request, timeout=self._pre_start))
        except KubeletError as refusal:
            raise KubeletError(f"device plugin PreStartContainer rpc failed with err: {refusal}") from None

    def _record_call(
        self, method: str, ids: Sequence[str] = (), must_include: Sequence[str] = (), size: int = 0
    ) -> None:
        self._trace(Call(method, self.resource, tuple(ids), tuple(must_include), size))

    async def _call(self, call: Callable[[], Awaitable[R]]) -> R:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            raise KubeletError(go_error_text(error)) from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise KubeletError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None


def go_error_text(error: grpc.aio.AioRpcError) -> str:
    """The error of a call, as gRPC for Go prints it."""
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    name = "Canceled" if code is grpc.StatusCode.CANCELLED else code.name.title().replace("_", "")
    return f"rpc error: code = {name} desc = {error.details()}"
