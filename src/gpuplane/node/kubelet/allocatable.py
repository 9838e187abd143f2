"""What kubelet could give out: asked only while a device waits to be withdrawn, by GetAllocatableResources.

Kubelet's answer follows our list within 0.1 s (measured on 1.36). A device that it does not have any more is in no new
container: what it has granted before is in its list of pods. A kubelet before 1.23 has no such call: then the time
counts in which it lists what it has granted.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from gpuplane.node.kubelet.podresources import ANSWER_TIMEOUT, LARGEST_ANSWER, SOCKET
from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerStub
from gpuplane.node.kubelet.sockets import SocketUnavailable, check_length, error_details, grpc_target
from gpuplane.node.model.facts import AllocatableListed, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import ALLOCATABLE_PART, Status

if TYPE_CHECKING:
    from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerAsyncStub

INTERVAL, LONGEST_INTERVAL = 0.05, 5.0
"""Seconds between two questions while kubelet has not followed yet: the first, and the longest."""
LISTING_DELAY = 10.0
"""Seconds after which a kubelet that has no such call lists what it has granted."""


async def follow_allocatable(node: Node, root: Path, is_wanted: Callable[[Snapshot], bool]) -> None:
    """Ask kubelet while a change of the node waits for that, for ever; each answer is a fact. `root`: its directory."""
    socket = root / SOCKET
    while True:
        await node.wait_until(is_wanted, None)
        try:
            check_length(socket)
            options = [("grpc.max_receive_message_length", LARGEST_ANSWER), ("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(grpc_target(socket), options) as channel:
                await _ask_while_wanted(node, PodResourcesListerStub(channel), is_wanted)
        except (grpc.aio.AioRpcError, OSError, SocketUnavailable) as error:
            why = error_details(error) if isinstance(error, grpc.aio.AioRpcError) else error
            node.apply(StatusChanged(ALLOCATABLE_PART, Status("failing", f"{socket}: {why}")))
            await asyncio.sleep(LONGEST_INTERVAL)
            if not is_wanted(node.snapshot):
                node.apply(StatusChanged(ALLOCATABLE_PART, None))


async def _ask_while_wanted(
    node: Node, lister: "PodResourcesListerAsyncStub", is_wanted: Callable[[Snapshot], bool]
) -> None:
    """Raises grpc.aio.AioRpcError."""
    interval = INTERVAL
    while is_wanted(node.snapshot):
        asked_at = node.now()
        try:
            answer = await lister.GetAllocatableResources(pb.AllocatableResourcesRequest(), timeout=ANSWER_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            await asyncio.sleep(LISTING_DELAY)
            answer = pb.AllocatableResourcesResponse()
        ids: dict[str, set[str]] = {}
        for device in answer.devices if answer is not None else ():
            ids.setdefault(device.resource_name, set()).update(device.device_ids)
        if answer is not None:  # else gRPC could not decode it
            node.apply(AllocatableListed({name: frozenset(found) for name, found in ids.items()}, asked_at))
            node.apply(StatusChanged(ALLOCATABLE_PART, None))
        await asyncio.sleep(interval)
        interval = min(1.5 * interval, LONGEST_INTERVAL)
