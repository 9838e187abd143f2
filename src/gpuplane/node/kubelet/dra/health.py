"""The health of our devices, as a stream for kubelet: DRAResourceHealth v1alpha1.

Each message lists all devices. Each stream follows the snapshots by itself: one that nobody reads delays nothing. What
has changed is sent at once, and the list is sent again before kubelet takes it for outdated.
"""

import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from gpuplane.node.core.dra.healthlist import ClaimDeviceHealth, claim_device_health
from gpuplane.node.core.serving import may_serve
from gpuplane.node.kubelet.protocols import drahealth_pb2 as pb
from gpuplane.node.kubelet.protocols.drahealth_pb2_grpc import (
    DRAResourceHealthServicer,
    add_DRAResourceHealthServicer_to_server,
)
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot

KEEP_ALIVE = 10.0  # seconds between two messages of a stream
TIMEOUT = 30  # seconds after which kubelet takes an entry for unknown
STATES = {"healthy": pb.HEALTHY, "unhealthy": pb.UNHEALTHY, "unknown": pb.UNKNOWN}


class HealthServer(DRAResourceHealthServicer):
    """Serves the health of the devices of a node. `node_name`: its name, which is part of those of pools."""

    def __init__(self, node: Node, node_name: str, keep_alive: float = KEEP_ALIVE) -> None:
        self.node, self.node_name, self.keep_alive = node, node_name, keep_alive

    async def NodeWatchResources(
        self, request: pb.NodeWatchResourcesRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        sent: tuple[ClaimDeviceHealth, ...] | None = None

        def is_new(snapshot: Snapshot) -> bool:
            found = claim_device_health(snapshot, self.node_name)
            return not may_serve(snapshot) or (found is not None and found != sent)

        while True:
            await self.node.wait_until(is_new, None if sent is None else self.keep_alive)
            if not may_serve(self.node.snapshot):
                return
            found = claim_device_health(self.node.snapshot, self.node_name)
            sent = sent if found is None else found
            yield _message(sent or (), int(time.time()))


def add_health(health: HealthServer, server: grpc.aio.Server) -> None:
    """Serve the health of devices."""
    add_DRAResourceHealthServicer_to_server(health, server)


def _message(devices: tuple[ClaimDeviceHealth, ...], now: int) -> pb.NodeWatchResourcesResponse:
    """The list, as known at `now`, seconds since 1970."""
    message = pb.NodeWatchResourcesResponse()
    for each in devices:
        message.devices.add(
            device=pb.DeviceIdentifier(pool_name=each.pool, device_name=each.device),
            health=STATES[each.state],
            last_updated_time=now,
            health_check_timeout_seconds=TIMEOUT,
            message=each.message,
        )
    return message
