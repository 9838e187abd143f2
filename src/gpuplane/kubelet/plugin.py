"""The device-plugin server of one resource: kubelet's requests, answered from the snapshot.

No answer waits for the driver. Every open ListAndWatch stream gets every change: kubelet reads the old stream and the
new one after a second Register, and both must be told. When the resource goes away each stream gets an empty list.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from gpuplane.core.containers.allocate import allocate
from gpuplane.core.resources.offer import offer
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginServicer
from gpuplane.model.facts import Granted
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import Edits, Offered, Refused

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Plugin(DevicePluginServicer):
    """Serves one resource name. `streams` counts the open ListAndWatch streams."""

    def __init__(self, node: Node, resource: str) -> None:
        self.node, self.resource, self.streams = node, resource, 0

    def options(self) -> pb.DevicePluginOptions:
        """What kubelet may call: told at Register and by GetDevicePluginOptions alike."""
        return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        sent = None
        try:
            async for snapshot in self.node.changes():
                devices = self.devices(snapshot)
                if devices is not None and devices != sent:
                    sent = devices
                    yield pb.ListAndWatchResponse(devices=map(_device, devices))
                if devices == ():
                    return
        finally:
            self.streams -= 1

    def devices(self, snapshot: Snapshot) -> tuple[Offered, ...] | None:
        """The list that kubelet should have; empty where the resource is gone, None where nothing may be said yet."""
        offered = offer(snapshot)
        if offered.waiting:
            return None
        resource = offered.resource(self.resource)
        return resource.devices if resource else ()

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        answer = pb.AllocateResponse()
        snapshot = self.node.snapshot
        try:
            for each in request.container_requests:
                answer.container_responses.append(_container(allocate(snapshot, self.resource, each.devices_ids)))
        except Refused as refusal:
            log.warning("Allocate refused: %s", refusal)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        for each in request.container_requests:
            self.node.tell(Granted(self.resource, tuple(each.devices_ids)))
        return answer

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        return pb.PreferredAllocationResponse()

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def _device(device: Offered) -> pb.Device:
    numa = device.unit.numa
    topology = None if numa is None else pb.TopologyInfo(nodes=[pb.NUMANode(ID=numa)])
    return pb.Device(ID=device.id, health="Unhealthy" if device.trouble else "Healthy", topology=topology)


def _container(edits: Edits) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[pb.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only) for m in edits.mounts],
        devices=[
            pb.DeviceSpec(container_path=n.container, host_path=n.host, permissions=n.permissions) for n in edits.nodes
        ],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi],
    )
