"""Kubelet's pod-resources server, v1 (pkg/kubelet/apis/podresources): who holds what.

Init containers are listed only where they last; one entry for each device id, as kubelet writes them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import grpc

from gpuplane.kubelet.protocols import podresources_pb2 as pb
from gpuplane.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerServicer
from gpuplane.sandbox.kubelet.manager import DeviceManager
from gpuplane.sandbox.kubelet.pods import Running
from gpuplane.sandbox.kubelet.registration import Registration

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PodResources(PodResourcesListerServicer):
    """Answers from the device manager's books."""

    def __init__(self, manager: DeviceManager, registration: Registration, pods: Mapping[str, Running]) -> None:
        self.manager, self.registration, self.pods = manager, registration, pods

    async def List(self, request: pb.ListPodResourcesRequest, context: Context) -> pb.ListPodResourcesResponse:
        await self._mind(context)
        self.manager.free_the_gone()
        return pb.ListPodResourcesResponse(pod_resources=map(self._pod, self.pods.values()))

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Context
    ) -> pb.AllocatableResourcesResponse:
        await self._mind(context)
        return pb.AllocatableResourcesResponse(
            devices=[
                _device(name, id, known.nodes[id])
                for name, known in self.manager.devices.resources.items()
                for id in known.said
                if id in known.healthy
            ]
        )

    async def Get(self, request: pb.GetPodResourcesRequest, context: Context) -> pb.GetPodResourcesResponse:
        await self._mind(context)
        running = self.pods.get(f"{request.pod_namespace}/{request.pod_name}")
        if running is None:
            missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, missing)
        return pb.GetPodResourcesResponse(pod_resources=self._pod(running))

    async def _mind(self, context: Context) -> None:
        if not self.registration.mood.lists:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this kubelet does not list")

    def _pod(self, running: Running) -> pb.PodResources:
        pod = running.pod
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pb.ContainerResources(name=each.name, devices=self._devices(pod.uid, each.name))
                for each in pod.lasting()
            ],
        )

    def _devices(self, uid: str, container: str) -> Iterator[pb.ContainerDevices]:
        for place, held in self.manager.devices.allocated.items():
            if (place.uid, place.container) == (uid, container):
                yield from (_device(place.resource, id, nodes) for id, nodes in held.ids.items())


def _device(resource: str, id: str, numa: tuple[int, ...]) -> pb.ContainerDevices:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in numa]) if numa else None
    return pb.ContainerDevices(resource_name=resource, device_ids=[id], topology=topology)
