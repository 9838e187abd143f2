"""Kubelet's pod-resources server, v1 (pkg/kubelet/apis/podresources): who holds what.

Init containers are listed only where they last; one entry for each device id, as kubelet writes them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from gpuplane.kubelet.protocols import podresources_pb2 as pb
from gpuplane.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerServicer
from gpuplane.sandbox.kubelet.pods import Running

if TYPE_CHECKING:
    from gpuplane.sandbox.kubelet.server import Kubelet

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PodResources(PodResourcesListerServicer):
    """Answers from the embedded kubelet's books."""

    def __init__(self, kubelet: "Kubelet") -> None:
        self.kubelet = kubelet

    async def List(self, request: pb.ListPodResourcesRequest, context: Context) -> pb.ListPodResourcesResponse:
        await self._mind(context)
        return pb.ListPodResourcesResponse(pod_resources=map(self._pod, self.kubelet.pods.values()))

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Context
    ) -> pb.AllocatableResourcesResponse:
        await self._mind(context)
        return pb.AllocatableResourcesResponse(
            devices=[
                _device(name, id, numa)
                for name, known in self.kubelet.devices.resources.items()
                for id, numa in known.healthy.items()
            ]
        )

    async def Get(self, request: pb.GetPodResourcesRequest, context: Context) -> pb.GetPodResourcesResponse:
        await self._mind(context)
        running = self.kubelet.pods.get(f"{request.pod_namespace}/{request.pod_name}")
        if running is None:
            missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, missing)
        return pb.GetPodResourcesResponse(pod_resources=self._pod(running))

    async def _mind(self, context: Context) -> None:
        if not self.kubelet.mood.lists:
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
        books = self.kubelet.devices
        for resource, ids in books.held(uid, container).items():
            known = books.resources.get(resource)
            nodes = known.healthy | known.unhealthy if known else {}
            for id in ids:
                yield _device(resource, id, nodes.get(id, ()))


def _device(resource: str, id: str, numa: tuple[int, ...]) -> pb.ContainerDevices:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in numa]) if numa else None
    return pb.ContainerDevices(resource_name=resource, device_ids=[id], topology=topology)
