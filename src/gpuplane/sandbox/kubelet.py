"""An embedded kubelet: the device manager and the pod-resources server of kubelet 1.36, on the same sockets."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
import msgspec

from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols import podresources_pb2 as pods
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from gpuplane.kubelet.protocols.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)

if TYPE_CHECKING:
    from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginAsyncStub

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Rejected(Exception):
    """UnexpectedAdmissionError, with kubelet's message."""


class Endpoint(msgspec.Struct):
    """One registered plugin: its connection and the last list that it sent."""

    channel: grpc.aio.Channel
    plugin: "DevicePluginAsyncStub"
    options: pb.DevicePluginOptions
    devices: dict[str, pb.Device] = {}
    stopped: bool = False


class Kubelet(RegistrationServicer, PodResourcesListerServicer):
    """Start it with `async with`; everything it knows is in `endpoints` and `pods` (pod → resource → ids)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.endpoints: dict[str, Endpoint] = {}
        self.pods: dict[str, dict[str, list[str]]] = {}
        self.changed = asyncio.Condition()
        self._readers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Kubelet":
        plugins, resources = self.root / "device-plugins", self.root / "pod-resources"
        for directory in (plugins, resources):
            directory.mkdir(parents=True, exist_ok=True)
            for left in directory.iterdir():
                left.unlink()
        self._server = grpc.aio.server()
        add_RegistrationServicer_to_server(self, self._server)
        add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{resources}/kubelet.sock")
        self._server.add_insecure_port(f"unix:{plugins}/kubelet.sock")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._server.stop(None)
        self.endpoints.clear()

    async def Register(self, request: pb.RegisterRequest, context: Context) -> pb.Empty:
        channel = grpc.aio.insecure_channel(f"unix:{self.root}/device-plugins/{request.endpoint}")
        plugin = DevicePluginStub(channel)
        options = await plugin.GetDevicePluginOptions(pb.Empty())
        endpoint = self.endpoints[request.resource_name] = Endpoint(channel, plugin, options)
        reader = asyncio.create_task(self._read(endpoint))
        self._readers.add(reader)
        return pb.Empty()

    async def _read(self, endpoint: Endpoint) -> None:
        try:
            async for response in endpoint.plugin.ListAndWatch(pb.Empty()):
                endpoint.devices = {device.ID: device for device in response.devices}
                await self._notify()
        except grpc.aio.AioRpcError:
            pass
        finally:
            endpoint.stopped = True
            await endpoint.channel.close()
        await self._notify()

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def capacity(self, resource: str) -> tuple[int, int]:
        """(capacity, allocatable) as the Node object would show them."""
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            return 0, 0
        healthy = [d for d in endpoint.devices.values() if d.health == "Healthy" and not endpoint.stopped]
        return len(endpoint.devices), len(healthy)

    async def until_capacity(self, resource: str, capacity: int, allocatable: int, deadline: float = 10) -> None:
        """Wait until the node would show these figures. Raises TimeoutError."""
        async with asyncio.timeout(deadline), self.changed:
            await self.changed.wait_for(lambda: self.capacity(resource) == (capacity, allocatable))

    async def admit(self, pod: str, resource: str, count: int) -> pb.ContainerAllocateResponse:
        """Give a pod its devices. Raises Rejected as kubelet would say it."""
        endpoint = self.endpoints[resource]
        used = {each for held in self.pods.values() for each in held.get(resource, ())}
        free = [id for id, device in endpoint.devices.items() if device.health == "Healthy" and id not in used]
        if endpoint.stopped or len(free) < count:
            raise Rejected(
                f"requested number of devices unavailable for {resource}. Requested: {count}, Available: {len(free)}"
            )
        ids = free[:count]
        try:
            answer = await endpoint.plugin.Allocate(
                pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
            )
        except grpc.aio.AioRpcError as error:
            raise Rejected(f"Allocate failed due to {error.details()}, which is unexpected") from None
        self.pods[pod] = {resource: ids}
        return answer.container_responses[0]

    async def List(self, request: pods.ListPodResourcesRequest, context: Context) -> pods.ListPodResourcesResponse:
        return pods.ListPodResourcesResponse(
            pod_resources=[
                pods.PodResources(
                    name=pod.partition("/")[2],
                    namespace=pod.partition("/")[0],
                    containers=[
                        pods.ContainerResources(
                            name="main",
                            devices=[pods.ContainerDevices(resource_name=r, device_ids=ids) for r, ids in held.items()],
                        )
                    ],
                )
                for pod, held in self.pods.items()
            ]
        )

    async def GetAllocatableResources(
        self, request: pods.AllocatableResourcesRequest, context: Context
    ) -> pods.AllocatableResourcesResponse:
        devices = [
            pods.ContainerDevices(resource_name=name, device_ids=list(endpoint.devices))
            for name, endpoint in self.endpoints.items()
        ]
        return pods.AllocatableResourcesResponse(devices=devices)

    async def Get(self, request: pods.GetPodResourcesRequest, context: Context) -> pods.GetPodResourcesResponse:
        for pod in (await self.List(pods.ListPodResourcesRequest(), context)).pod_resources:
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pods.GetPodResourcesResponse(pod_resources=pod)
        await context.abort(grpc.StatusCode.NOT_FOUND, f"pod {request.pod_namespace}/{request.pod_name} not found")
