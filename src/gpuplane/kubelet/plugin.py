"""The device-plugin server of one resource: kubelet's requests, answered from the snapshot.

No answer waits for the driver, and none depends on another: each open ListAndWatch stream follows the snapshots by
itself, so one that nobody reads holds up nothing, and what came and went meanwhile is skipped. Every stream is told
every change: after a second Register kubelet reads the old stream and the new one (observed on kubelet 1.36.2). When
the resource goes away each stream gets an empty list and ends.

A list is sent twice only where kubelet's checkpoint is to be written anew, which each list makes it do: `podresources`
asks for that where the checkpoint may name pods that have gone.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from gpuplane.core.advertising import known, offer
from gpuplane.core.allocate.response import allocate
from gpuplane.core.choice.preference import preferred_ids
from gpuplane.core.serving import serves
from gpuplane.core.shares import MAX_SHARES
from gpuplane.core.text import clip
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2_grpc import DevicePluginServicer
from gpuplane.model.facts import AllocateAnswered
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.views import AllocateResponse, LogSubject, OfferedDevice, Refused

LONGEST = 1000  # characters of a refusal: gRPC loses the whole status where its headers get too large
MOST_CONTAINERS = 16
"""Containers of one request; each grant takes some 2 ms of the event loop at 1,024 ids, and 60 ms at `MOST_IDS`.
Kubelet asks for one at a time (pkg/kubelet/cm/devicemanager/endpoint.go)."""
log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class Plugin(DevicePluginServicer):
    """Serves one resource name.

    `streams` counts the open ListAndWatch streams; `stir` is set when one opens or ends. While `silent`, the streams
    stay open and say nothing.
    """

    def __init__(self, node: Node, resource: str) -> None:
        self.node, self.resource = node, resource
        self.streams, self.stir, self.silent = 0, asyncio.Event(), False
        self._list: tuple[tuple[OfferedDevice, ...], pb.ListAndWatchResponse] = (), pb.ListAndWatchResponse()

    def options(self) -> pb.DevicePluginOptions:
        """What kubelet may call: told at Register and by GetDevicePluginOptions alike."""
        return pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=True)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        sent, written = None, 0
        with self._stream():
            async for snapshot in self.node.changes():
                if not serves(snapshot):
                    return  # without an empty list: kubelet keeps the capacity for whoever comes after us
                devices = self.devices(snapshot)
                if devices is None or self.silent:
                    continue
                message, wanted = self._message(devices), snapshot.checkpoint_rewrite
                if message is not sent or (wanted and wanted != written):
                    sent, written = message, wanted
                    yield message
                if not devices:
                    return

    def _message(self, devices: tuple[OfferedDevice, ...]) -> pb.ListAndWatchResponse:
        """The message of a list: built once for all streams, and the same object while it says the same."""
        listed, message = self._list
        if listed != devices:
            built = _message(devices)
            self._list = devices, message if built == message else built
        return self._list[1]

    @contextmanager
    def _stream(self) -> Iterator[None]:
        self.streams += 1
        self.stir.set()
        try:
            yield
        finally:
            self.streams -= 1
            self.stir.set()

    def devices(self, snapshot: Snapshot) -> tuple[OfferedDevice, ...] | None:
        """The list that kubelet should have; empty where the resource is gone, None where nothing may be said yet."""
        offered = offer(snapshot)
        if offered.waiting:
            return None
        resource = offered.resource(self.resource)
        return resource.devices if resource else ()

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        snapshot = self.node.snapshot
        try:
            _check_size(self.resource, [len(each.devices_ids) for each in request.container_requests])
            gets = [allocate(snapshot, self.resource, each.devices_ids) for each in request.container_requests]
        except Refused as refusal:
            reason = clip(str(refusal), LONGEST)
            log.warning("Allocate refused: %s", reason, extra=self._about(snapshot, request.container_requests))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        for each in request.container_requests:
            self.node.apply(AllocateAnswered(self.resource, tuple(each.devices_ids)))
        return pb.AllocateResponse(container_responses=map(_container, gets))

    def _about(self, snapshot: Snapshot, requests: Iterable[pb.ContainerAllocateRequest]) -> dict[str, object]:
        """What a refusal is about: those of its devices that are ours."""
        ours = known.of(snapshot, offer(snapshot)).get(self.resource, {})
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
        except Refused as refusal:
            log.warning("no preference for %s", refusal, extra=LogSubject(resources=(self.resource,)).extra)
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
            except Exception:  # an error here rejects the pod, an empty answer costs it nothing
                log.exception("%s: no preference", self.resource, extra=LogSubject(resources=(self.resource,)).extra)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def _check_size(resource: str, counts: Sequence[int]) -> None:
    """Raises Refused for a request of so many devices for each container, if that is more than any can have.

    It is asked before anything is done with the request: what passes is answered soon.
    """
    if len(counts) > MOST_CONTAINERS:
        raise Refused(f"{resource}: the request has {len(counts)} containers, and at most {MOST_CONTAINERS} are taken")
    if sum(counts) > MAX_SHARES:
        raise Refused(f"{resource}: the request names {sum(counts)} devices, and at most {MAX_SHARES} are ever offered")


def _message(devices: tuple[OfferedDevice, ...]) -> pb.ListAndWatchResponse:
    message = pb.ListAndWatchResponse()
    for device in devices:
        numa = device.unit.numa
        message.devices.add(
            ID=device.id,
            health="Unhealthy" if device.reasons else "Healthy",
            topology=None if numa is None else pb.TopologyInfo(nodes=(pb.NUMANode(ID=numa),)),
        )
    return message


def _container(edits: AllocateResponse) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[pb.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only) for m in edits.mounts],
        devices=[
            pb.DeviceSpec(container_path=n.container, host_path=n.host, permissions=n.permissions) for n in edits.nodes
        ],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi],
    )
