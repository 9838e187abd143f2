"""Kubelet's pod-resources server, v1 (pkg/kubelet/apis/podresources): who holds what.

Init containers are listed only where they last; one entry for each device id, as kubelet writes them. A pod is listed
from the beginning of its admission, with what its containers have got so far. A kubelet that has just started lists
the pods that it has heard of. Who asks too often is refused (podresources/grpc/ratelimit.go).
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import grpc

from gpuplane.kubelet.protocols import podresources_pb2 as pb
from gpuplane.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerServicer
from gpuplane.sandbox.kubelet.manager import DeviceManager
from gpuplane.sandbox.kubelet.pods import Pod
from gpuplane.sandbox.kubelet.registration import Registration

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

RATE, BURST = 100.0, 10.0
"""Requests a second that are answered, and how many of them at once."""


class PodResources(PodResourcesListerServicer):
    """Answers from the device manager's books. `active` tells the pods that run or are being admitted."""

    def __init__(
        self, manager: DeviceManager, registration: Registration, active: Callable[[], Collection[Pod]]
    ) -> None:
        self.manager, self.registration, self._active = manager, registration, active
        self._left, self._seen = BURST, manager.policy.now()

    async def List(self, request: pb.ListPodResourcesRequest, context: Context) -> pb.ListPodResourcesResponse:
        await self._mind(context)
        if self.registration.mood.knows:
            self.manager.free_the_gone()
        answer = pb.ListPodResourcesResponse(pod_resources=map(self._pod, self._pods()))
        self.manager.lists += 1
        self.manager.changes.notify()
        return answer

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
        key = f"{request.pod_namespace}/{request.pod_name}"
        pod = next((pod for pod in self._pods() if pod.key == key), None)
        if pod is None:
            missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, missing)
        return pb.GetPodResourcesResponse(pod_resources=self._pod(pod))

    async def _mind(self, context: Context) -> None:
        await asyncio.sleep(self.registration.mood.delay)
        if not self.registration.mood.lists:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this kubelet does not list")
        now = self.manager.policy.now()
        self._left, self._seen = min(BURST, self._left + (now - self._seen) * RATE), now
        if self._left < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._left -= 1

    def _pods(self) -> Collection[Pod]:
        return self._active() if self.registration.mood.knows else ()

    def _pod(self, pod: Pod) -> pb.PodResources:
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
