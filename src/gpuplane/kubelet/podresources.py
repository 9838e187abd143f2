"""What containers hold, asked of kubelet: the pod-resources API (v1 List)."""

import asyncio
from pathlib import Path

import grpc

from gpuplane.kubelet.protocols import podresources_pb2 as pb
from gpuplane.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerStub
from gpuplane.model.facts import Listed, Stood
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Allocation, Condition

DEADLINE = 5.0


async def allocations(node: Node, socket: Path, every: float = 1.0) -> None:
    """Ask for ever; each answer is a fact, and so is each silence."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        lister = PodResourcesListerStub(channel)
        while True:
            asked = node.now()
            try:
                answer = await lister.List(pb.ListPodResourcesRequest(), timeout=DEADLINE)
            except grpc.aio.AioRpcError as error:
                node.tell(Stood("pod-resources", Condition(standing="failing", reason=f"{socket}: {error.details()}")))
            else:
                node.tell(Stood("pod-resources", Condition(standing="ok")))
                node.tell(Listed(tuple(_held(answer)), asked))
            await asyncio.sleep(every)


def _held(answer: pb.ListPodResourcesResponse) -> list[Allocation]:
    return [
        Allocation(
            resource=devices.resource_name,
            devices=tuple(sorted(devices.device_ids)),
            pod=f"{pod.namespace}/{pod.name}",
            container=container.name,
        )
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
    ]
