"""The device-plugin server of one resource: kubelet's requests, answered from the snapshot.

No answer waits for the driver, and none depends on another. Each open ListAndWatch stream follows the snapshots by
itself: a stream that nobody reads delays nothing, and skips what has changed twice meanwhile. Every stream gets every
change: after a second Register kubelet reads the old stream and the new one (observed on kubelet 1.36.2). When the
resource is no longer offered each stream gets an empty list and ends.

The same list is sent again only to make kubelet write its checkpoint, as it does after each list: `podresources` asks
for that while the checkpoint may name pods that have ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeAlias

import grpc

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.text import clip
from gpuplane.node.core.advertising import offer, offered_devices_by_id
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.choice.preference import preferred_ids
from gpuplane.node.core.serving import may_serve
from gpuplane.node.core.shares import MAX_SHARES_PER_NODE
from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginServicer
from gpuplane.node.model.facts import AllocateAnswered
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import ContainerAllocateResponse, OfferedDevice, RequestRefused

LONGEST_REFUSAL = 1000  # characters of a refusal: gRPC loses the whole status where its headers get too large
MOST_CONTAINERS = 16
"""Containers of one request; each grant takes some 2 ms of the event loop at 1,024 ids, and 60 ms at `MOST_IDS`.
Kubelet asks for one at a time (pkg/kubelet/cm/devicemanager/endpoint.go)."""
log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Plugin(DevicePluginServicer):
    """Serves one resource name.

    `open_streams` counts the ListAndWatch streams; `changed` is set when one opens or ends. While `is_paused` streams
    stay open and send nothing.
    """

    def __init__(self, node: Node, resource: str) -> None:
        self.node, self.resource = node, resource
        self.open_streams, self.changed, self.is_paused = 0, asyncio.Event(), False
        self._last_list: tuple[tuple[OfferedDevice, ...], pb.ListAndWatchResponse] = (), pb.ListAndWatchResponse()

    def options(self) -> pb.DevicePluginOptions:
        """What kubelet may call: the same in Register and in the answer to GetDevicePluginOptions."""
        return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        sent, written = None, 0
        with self._count_stream():
            async for snapshot in self.node.changes(self.devices, may_serve, attrgetter("checkpoint_rewrite")):
                if not may_serve(snapshot):
                    return  # without an empty list: kubelet keeps the capacity for our successor
                devices = self.devices(snapshot)
                if devices is None or self.is_paused:
                    continue
                message, wanted = self._list_response(devices), snapshot.checkpoint_rewrite
                if message is not sent or (wanted and wanted != written):
                    sent, written = message, wanted
                    yield message
                if not devices:
                    return

    def _list_response(self, devices: tuple[OfferedDevice, ...]) -> pb.ListAndWatchResponse:
        """The message of a list: built once for all streams, and the same object while it says the same."""
        listed, message = self._last_list
        if listed != devices:
            built = _list_response(devices)
            self._last_list = devices, message if built == message else built
        return self._last_list[1]

    @contextmanager
    def _count_stream(self) -> Iterator[None]:
        self.open_streams += 1
        self.changed.set()
        try:
            yield
        finally:
            self.open_streams -= 1
            self.changed.set()

    def devices(self, snapshot: Snapshot) -> tuple[OfferedDevice, ...] | None:
        """The list for kubelet; empty if the resource is no longer offered, None if it is not known yet what is."""
        offered = offer(snapshot)
        if offered.waiting_reason:
            return None
        resource = offered.resource(self.resource)
        return resource.devices if resource else ()

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        snapshot = self.node.snapshot
        try:
            _check_size(self.resource, [len(each.devices_ids) for each in request.container_requests])
            gets = [allocate(snapshot, self.resource, each.devices_ids) for each in request.container_requests]
        except RequestRefused as refusal:
            reason = clip(str(refusal), LONGEST_REFUSAL)
            log.warning("Allocate refused: %s", reason, extra=self._log_subject(snapshot, request.container_requests))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        granted = [tuple(each.devices_ids) for each in request.container_requests]
        asyncio.get_running_loop().call_soon(self._report_answered, granted)
        return pb.AllocateResponse(container_responses=map(_container_response, gets))

    def _report_answered(self, granted: Iterable[tuple[str, ...]]) -> None:
        """Report what was granted, as soon as the answer is on its way: kubelet need not wait for what follows of it.

        No request is answered in between but those that came with this one.
        """
        for ids in granted:
            self.node.apply(AllocateAnswered(self.resource, ids))

    def _log_subject(self, snapshot: Snapshot, requests: Iterable[pb.ContainerAllocateRequest]) -> dict[str, object]:
        """The subject of a log line: the requested devices that this resource has."""
        ours = offered_devices_by_id.of(snapshot, offer(snapshot)).get(self.resource, {})
        asked = (id for each in requests for id in each.devices_ids if id in ours)
        devices = tuple(dict.fromkeys(ours[id].unit.id for id in asked))
        return LogSubject(devices=devices, resources=(self.resource,)).extra

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        snapshot, answer = self.node.snapshot, pb.PreferredAllocationResponse()
        try:
            _check_size(self.resource, [len(each.available_deviceIDs) for each in request.container_requests])
            _check_size(self.resource, [len(each.must_include_deviceIDs) for each in request.container_requests])
        except RequestRefused as refusal:
            log.warning("no preferred allocation: %s", refusal, extra=LogSubject(resources=(self.resource,)).extra)
            return answer
        for each in request.container_requests:
            ids: tuple[str, ...] = ()
            try:
                ids = preferred_ids(
                    snapshot,
                    self.resource,
                    each.available_deviceIDs,
                    each.must_include_deviceIDs,
                    each.allocation_size,
                )
            except Exception:  # an error would make kubelet reject the pod, an empty answer does not
                log.exception(
                    "%s: no preferred allocation", self.resource, extra=LogSubject(resources=(self.resource,)).extra
                )
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def _check_size(resource: str, counts: Sequence[int]) -> None:
    """Raises RequestRefused for a request with more containers or ids than any node has. `counts`: ids of each
    container.

    It is called before anything else is done with a request, so that every request is answered soon.
    """
    if len(counts) > MOST_CONTAINERS:
        raise RequestRefused(f"{resource}: the request has {len(counts)} containers; {MOST_CONTAINERS} are allowed")
    if sum(counts) > MAX_SHARES_PER_NODE:
        raise RequestRefused(f"{resource}: the request names {sum(counts)} devices; {MAX_SHARES_PER_NODE} are allowed")


def _list_response(devices: tuple[OfferedDevice, ...]) -> pb.ListAndWatchResponse:
    message = pb.ListAndWatchResponse()
    for device in devices:
        numa = device.unit.numa
        message.devices.add(
            ID=device.id,
            health="Unhealthy" if device.reasons else "Healthy",
            topology=None if numa is None else pb.TopologyInfo(nodes=(pb.NUMANode(ID=numa),)),
        )
    return message


def _container_response(edits: ContainerAllocateResponse) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            pb.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=n.container_path, host_path=n.host_path, permissions=n.permissions)
            for n in edits.device_specs
        ],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )
