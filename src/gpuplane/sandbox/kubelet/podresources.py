"""Kubelet's pod-resources server, v1 (pkg/kubelet/apis/podresources): who holds what.

Init containers are listed only where they last; one entry for each device id, as kubelet writes them. A pod is listed
from the beginning of its admission, with what its containers have got so far; a claim that is not prepared yet has no
resources, and a container with a claim that kubelet does not know shows none of its claims. A kubelet that has just
started lists the pods that it has heard of. Who asks too often is refused (podresources/grpc/ratelimit.go).
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import grpc

from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerServicer
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.claims import PreparedDevice
from gpuplane.sandbox.kubelet.dra.manager import DraManager
from gpuplane.sandbox.kubelet.manager import DeviceManager
from gpuplane.sandbox.kubelet.pods import Container, Pod
from gpuplane.sandbox.kubelet.registration import Registration

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

CALLS_PER_SECOND, CALL_BURST = 100.0, 10.0
"""Requests a second that are answered, and how many of them at once."""


class PodResources(PodResourcesListerServicer):
    """Answers from the device manager's books. `active` tells the pods that run or are being admitted."""

    def __init__(
        self, manager: DeviceManager, dra: DraManager, registration: Registration, active: Callable[[], Collection[Pod]]
    ) -> None:
        self.manager, self.dra, self.registration, self._active = manager, dra, registration, active
        self._tokens, self._refilled_at = CALL_BURST, manager.options.now()

    async def List(self, request: pb.ListPodResourcesRequest, context: Context) -> pb.ListPodResourcesResponse:
        await self._admit_request(context)
        if self.registration.failures.knows_pods:
            self.manager.free_ended_pods()
        answer = pb.ListPodResourcesResponse(pod_resources=map(self._pod_resources, self._listed_pods()))
        self.manager.list_count += 1
        self.manager.changes.notify()
        return answer

    async def GetAllocatableResources(
        self, request: pb.AllocatableResourcesRequest, context: Context
    ) -> pb.AllocatableResourcesResponse:
        await self._admit_request(context)
        return pb.AllocatableResourcesResponse(
            devices=[
                _one_device(name, id, known.numa_nodes[id])
                for name, known in self.manager.devices.resources.items()
                for id in known.last_list
                if id in known.healthy
            ]
        )

    async def Get(self, request: pb.GetPodResourcesRequest, context: Context) -> pb.GetPodResourcesResponse:
        await self._admit_request(context)
        key = f"{request.pod_namespace}/{request.pod_name}"
        pod = next((pod for pod in self._listed_pods() if pod.key == key), None)
        if pod is None:
            missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, missing)
        return pb.GetPodResourcesResponse(pod_resources=self._pod_resources(pod))

    async def _admit_request(self, context: Context) -> None:
        await asyncio.sleep(self.registration.failures.response_delay)
        if not self.registration.failures.serves_pod_resources:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this kubelet does not list pod resources")
        now = self.manager.options.now()
        self._tokens, self._refilled_at = (
            min(CALL_BURST, self._tokens + (now - self._refilled_at) * CALLS_PER_SECOND),
            now,
        )
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1

    def _listed_pods(self) -> Collection[Pod]:
        return self._active() if self.registration.failures.knows_pods else ()

    def _pod_resources(self, pod: Pod) -> pb.PodResources:
        return pb.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pb.ContainerResources(
                    name=each.name,
                    devices=self._container_devices(pod.uid, each.name),
                    dynamic_resources=self._dynamic_resources(pod, each),
                )
                for each in pod.long_running_containers()
            ],
        )

    def _container_devices(self, uid: str, container: str) -> Iterator[pb.ContainerDevices]:
        for place, held in self.manager.devices.allocated.items():
            if (place.uid, place.container) == (uid, container):
                yield from (_one_device(place.resource, id, nodes) for id, nodes in held.ids.items())

    def _dynamic_resources(self, pod: Pod, container: Container) -> list[pb.DynamicResource]:
        """Each claim with all its devices, also those of requests that the container does not name."""
        try:
            claims = self.dra.books.of_container(pod, container)
        except KubeletError:
            return []
        return [
            pb.DynamicResource(
                claim_name=claim.name,
                claim_namespace=claim.namespace,
                claim_resources=[_claim_resource(driver, each) for driver, each in claim.devices()],
            )
            for claim in claims
        ]


def _claim_resource(driver: str, device: PreparedDevice) -> pb.ClaimResource:
    return pb.ClaimResource(
        cdi_devices=[pb.CDIDevice(name=id) for id in device.cdi_ids],
        driver_name=driver,
        pool_name=device.pool,
        device_name=device.device,
        share_id=device.share_id,
    )


def _one_device(resource: str, id: str, numa: tuple[int, ...]) -> pb.ContainerDevices:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in numa]) if numa else None
    return pb.ContainerDevices(resource_name=resource, device_ids=[id], topology=topology)
