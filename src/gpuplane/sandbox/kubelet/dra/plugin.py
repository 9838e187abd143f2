"""One registered instance of a DRA driver: the one connection to it, its calls and its health stream
(cm/dra/plugin/dra_plugin.go)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec

from gpuplane.node.kubelet.protocols import dra_v1_pb2, dra_v1beta1_pb2, drahealth_pb2
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import DRAPluginStub as PluginV1
from gpuplane.node.kubelet.protocols.dra_v1beta1_pb2_grpc import DRAPluginStub as PluginV1Beta1
from gpuplane.node.kubelet.protocols.drahealth_pb2_grpc import DRAResourceHealthStub
from gpuplane.node.kubelet.sockets import grpc_target
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.claims import ClaimInfo, PreparedDevice
from gpuplane.sandbox.kubelet.dra.times import DraTimes
from gpuplane.sandbox.kubelet.endpoint import Call, go_error_text

PROTOCOLS: dict[str, tuple[Any, Callable[[grpc.aio.Channel], Any]]] = {
    "v1.DRAPlugin": (dra_v1_pb2, PluginV1),
    "v1beta1.DRAPlugin": (dra_v1beta1_pb2, PluginV1Beta1),
}
"""The services that kubelet knows, as a plugin's supported_versions name them."""


class PreparedClaim(NamedTuple):
    """What a plugin answered for one claim."""

    uid: str
    error: str
    devices: Sequence[PreparedDevice]


class PluginEvents(msgspec.Struct, frozen=True):
    """Who is told of a plugin: each call, another state of its connection, a list of health, the end of its stream."""

    call: Callable[[Call], None]
    connection: Callable[[str], None]
    health: Callable[[str, drahealth_pb2.NodeWatchResourcesResponse], None]
    health_end: Callable[[str], None]


class DraPlugin:
    """A plugin as kubelet sees it. `service`: one of `PROTOCOLS`. Its tasks run from `open` to `close`."""

    def __init__(self, driver: str, endpoint: Path, service: str, times: DraTimes, events: PluginEvents) -> None:
        self.driver, self.endpoint, self.service, self.times, self._events = driver, endpoint, service, times, events
        self.is_connected = False
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Connect, and watch the health of its devices."""
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", max(1, int(1000 * self.times.reconnect))),
            ("grpc.min_reconnect_backoff_ms", max(100, int(1000 * self.times.reconnect))),
            ("grpc.max_reconnect_backoff_ms", max(1, int(120_000 * self.times.reconnect))),
        ]
        self._channel = grpc.aio.insecure_channel(grpc_target(self.endpoint), options)
        self._messages, stub = PROTOCOLS[self.service]
        self._plugin = stub(self._channel)
        self._tasks = [asyncio.create_task(each) for each in (self._follow_connection(), self._follow_health())]

    async def close(self) -> None:
        """End the connection, and what is under way on it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.is_connected = False
        await self._channel.close()

    async def prepare(self, claims: Sequence[ClaimInfo]) -> list[PreparedClaim]:
        """NodePrepareResources. Raises KubeletError where the call as a whole failed."""
        request = self._messages.NodePrepareResourcesRequest(claims=map(self._claim_message, claims))
        answer = await self._call(
            "NodePrepareResources", claims, lambda **to: self._plugin.NodePrepareResources(request, **to)
        )
        return [
            PreparedClaim(uid, each.error, [self._prepared_device(device) for device in each.devices])
            for uid, each in answer.claims.items()
        ]

    async def unprepare(self, claims: Sequence[ClaimInfo]) -> dict[str, str]:
        """NodeUnprepareResources: UID → error. Raises KubeletError where the call as a whole failed."""
        request = self._messages.NodeUnprepareResourcesRequest(claims=map(self._claim_message, claims))
        answer = await self._call(
            "NodeUnprepareResources", claims, lambda **to: self._plugin.NodeUnprepareResources(request, **to)
        )
        return {uid: each.error for uid, each in answer.claims.items()}

    async def _call(self, method: str, claims: Sequence[ClaimInfo], call: Callable[..., Awaitable[Any]]) -> Any:
        self._events.call(Call(method, self.driver, tuple(f"{each.namespace}/{each.name}" for each in claims)))
        try:
            return await call(timeout=self.times.call)
        except grpc.aio.AioRpcError as error:
            problem = go_error_text(error)
        except (asyncio.CancelledError, grpc.aio.UsageError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            problem = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        self._events.call(Call(f"{method} failed", self.driver, error=problem))
        raise KubeletError(f"{method}: {problem}")

    def _claim_message(self, claim: ClaimInfo) -> Any:
        return self._messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name)

    def _prepared_device(self, device: Any) -> PreparedDevice:
        share = device.share_id if self._messages is dra_v1_pb2 and device.HasField("share_id") else None
        names, ids = tuple(device.request_names), tuple(device.cdi_device_ids)
        return PreparedDevice(device.pool_name, device.device_name, share, names, ids)

    async def _follow_connection(self) -> None:
        """A connection that is lost is asked for again at once, by no call: so kubelet hears of a plugin's return."""
        while True:
            state = self._channel.get_state(try_to_connect=True)
            if self.is_connected != (state is grpc.ChannelConnectivity.READY):
                self.is_connected = not self.is_connected
                self._events.connection(self.driver)
            await self._channel.wait_for_state_change(state)

    async def _follow_health(self) -> None:
        """Kubelet asks whether or not the plugin has said that it serves health."""
        stub = DRAResourceHealthStub(self._channel)
        while True:
            stream = stub.NodeWatchResources(drahealth_pb2.NodeWatchResourcesRequest())
            opened = False
            try:
                async for answer in stream:
                    if not opened:
                        self._events.call(Call("NodeWatchResources", self.driver))
                    opened = True
                    self._events.health(self.driver, answer)
            except grpc.aio.AioRpcError:
                pass
            finally:
                stream.cancel()
                if opened:
                    self._events.call(Call("NodeWatchResources ended", self.driver))
                    self._events.health_end(self.driver)
            await asyncio.sleep(self.times.health_retry)
