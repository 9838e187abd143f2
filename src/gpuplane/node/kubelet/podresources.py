"""What containers hold: by kubelet's pod-resources API, and until that has answered once, by kubelet's checkpoint.

Nothing is offered before this is known. A device that a pod held is offered under a new name only after an answer shows
that the pod has ended. So kubelet is polled often while something waits for an answer, and rarely otherwise: what we
allocate is known at once, and what ends matters only if something is withheld for it.

Three cases in which "kubelet lists nothing" does not mean "nothing is held":
- Kubelet does not answer (it has not started yet, it is too old, its socket is not mounted). Then its checkpoint is
  read. That names pods by their UID, and may still name pods that have ended: it lists too much, never too little. Once
  kubelet has listed, its last answer counts for as long as it is silent.
- Kubelet has just started: it lists only the pods that the API server has told it of. So its first answers only add to
  what was held before, until one shows all of that. After `KUBELET_START_PERIOD` what it does not list counts no more,
  unless its checkpoint still has it: a kubelet that cannot reach its API server lists no pod, and frees nothing. A
  kubelet that knows its pods frees the devices of those that have ended when it lists, but writes its checkpoint only
  at the next device list or allocation (pkg/kubelet/cm/devicemanager/manager.go); so its plugins are asked
  (`Snapshot.checkpoint_rewrite`) to send their lists again now and then.
- Another agent served kubelet until a moment ago. Kubelet may not list yet what that agent allocated last. So for a
  while kubelet's checkpoint, which it writes when an allocation is done, counts beside each answer.

An answer counts only for the kubelet that was asked: the same socket has to be at the path before the connection and
after the answer. Kubelet's age counts from when we saw its socket change. Only the age of the first kubelet comes from
the wall clock, which may be set meanwhile.
"""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import msgspec
from google.protobuf.message import DecodeError

from gpuplane.base import files
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.dra.listed import held_unit, naming
from gpuplane.node.core.health.reasons import any_device_awaits_container_end
from gpuplane.node.core.kinds.table import UNIT_ID_PREFIXES
from gpuplane.node.core.partitions.state_machine import awaits_holders
from gpuplane.node.core.withholding import layout_from_environment, withheld_reasons
from gpuplane.node.kubelet.protocols import podresources_pb2 as pb
from gpuplane.node.kubelet.protocols.deviceplugin_pb2 import ContainerAllocateResponse
from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerStub
from gpuplane.node.kubelet.sockets import (
    SocketIdentity,
    SocketUnavailable,
    check_length,
    error_details,
    grpc_target,
    socket_identity,
)
from gpuplane.node.model.facts import AllocationsListed, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.sharelayout import EncodedLayout
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import POD_RESOURCES_PART, PartState, Status

if TYPE_CHECKING:
    from gpuplane.node.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerAsyncStub

ANSWER_TIMEOUT = 5.0  # seconds that an answer may take
CHECKPOINT_AFTER = 2.0  # seconds without a first answer, after which the checkpoint is read
FIRST_INTERVAL = 0.1  # seconds between two requests before the first answer
SHORT_INTERVAL, LONG_INTERVAL = 1.0, 10.0  # seconds between two requests
TAKEOVER_PERIOD = 10.0  # seconds in which kubelet may not list yet what the agent before us allocated
KUBELET_START_PERIOD = 30.0  # seconds in which the API server tells a kubelet that has started of its pods
LARGEST_ANSWER = 64 * 1024 * 1024  # bytes of an answer; gRPC's own limit is 4 MiB

SOCKET, CHECKPOINT = "pod-resources/kubelet.sock", "device-plugins/kubelet_internal_checkpoint"
Allocations = tuple[Allocation, ...]
HeldIds = tuple[str, str, tuple[str, ...]]
"""A container's name, a resource and ids."""


async def follow_allocations(node: Node, root: Path) -> None:
    """Poll kubelet for ever; each answer is a fact, and each failure is one. `root`: kubelet's directory."""
    client = PodResourcesClient(node, root)
    while True:
        try:
            await client.poll()
        except grpc.aio.AioRpcError as error:
            client.report_silence(f"{client.socket}: {error_details(error)}")
        except OSError as error:
            client.report_silence(f"{client.socket}: {error.strerror or error}")
        except SocketUnavailable as error:
            client.report_silence(str(error))
        if node.snapshot.allocations is None:
            await asyncio.sleep(FIRST_INTERVAL)
        else:
            await node.wait_until(_is_unknown, SHORT_INTERVAL)


def is_urgent(snapshot: Snapshot) -> bool:
    """Whether something waits for the next answer: a device that is withheld because a container holds it in another
    way, an allocation of a plugin that kubelet has not listed yet, a fault or a MIG layout that waits for the end of a
    container, or a resource that another plugin may be allocating.

    The end of a claim that is prepared is not waited for: kubelet has it unprepared then.
    """
    return (
        snapshot.allocations is None
        or _awaits_end_of_pods(snapshot)
        or any_device_awaits_container_end(snapshot)
        or awaits_holders(snapshot)
        or any(each.granted_at for each in snapshot.allocations or ())
        or any(status.state != "ok" for _, status in snapshot.statuses.of_kind("plugin"))
    )


def _awaits_end_of_pods(snapshot: Snapshot) -> bool:
    """Whether a device is withheld for anything but a prepared claim."""
    prepared = {str(each.claim) for each in (snapshot.ledger.claims or {}).values()}
    holders = (reason.holder for reason in withheld_reasons(snapshot).values())
    return any(each is None or each.claim not in prepared for each in holders)


def _is_unknown(snapshot: Snapshot) -> bool:
    """Whether it is not known, or no longer, what is held: another agent allocated devices until a moment ago."""
    return snapshot.allocations is None


async def read_allocations(root: Path) -> Allocations | None:
    """What containers hold, read once: from kubelet, or from its checkpoint if kubelet does not answer.

    `root`: kubelet's directory. None if neither can be read: they may be elsewhere, and nothing is known.
    """
    try:
        check_length(socket := root / SOCKET)
        async with _channel(socket) as channel:
            answer = await PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=ANSWER_TIMEOUT)
            if answer is not None:
                return _decode_list(answer, Snapshot())
    except (grpc.aio.AioRpcError, OSError):
        pass
    try:
        return _decode_checkpoint(files.read(root / CHECKPOINT))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _channel(socket: Path) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", LARGEST_ANSWER), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(grpc_target(socket), options)


class PodResourcesClient:
    """A client of kubelet's pod-resources API. It reports the status of pod-resources, with the source in use."""

    def __init__(self, node: Node, root: Path) -> None:
        self.node = node
        self.socket = root / SOCKET
        self.checkpoint = root / CHECKPOINT
        self.started_at = node.now()
        self.kubelet_identity: SocketIdentity | None = None  # of the kubelet that answered last
        self.kubelet_started_at = 0.0  # when that kubelet started, as far as we know
        self.not_listed: Allocations = ()  # what was held before that, and it has not listed
        self.share_layouts: dict[HeldIds, EncodedLayout] = {}  # by the environment of their containers
        self.taken_over_at = -TAKEOVER_PERIOD  # when this agent took over from another
        self.named_by: object = None  # by what the devices of claims were named in the last answer; None: it had none

    async def poll(self) -> None:
        """Poll the kubelet that is there until another is. Raises the error that came instead of an answer."""
        check_length(self.socket)
        current = socket_identity(self.socket)
        if current is None:
            raise OSError("kubelet's socket does not exist: is kubelet running?")
        async with _channel(self.socket) as channel:
            while await self._list_once(PodResourcesListerStub(channel), current):
                if (
                    not await self.node.wait_until(_is_unknown, SHORT_INTERVAL)
                    and self.node.now() - self.taken_over_at > TAKEOVER_PERIOD
                ):
                    await self.node.wait_until(self._is_urgent, LONG_INTERVAL - SHORT_INTERVAL)

    def _is_urgent(self, snapshot: Snapshot) -> bool:
        return is_urgent(snapshot) or (self.named_by is not None and self.named_by != naming(snapshot))

    async def _list_once(self, lister: "PodResourcesListerAsyncStub", current: SocketIdentity) -> bool:
        """Request one list. False if another kubelet is there now."""
        asked_at, was_unknown = self.node.now(), _is_unknown(self.node.snapshot)
        answer = await lister.List(pb.ListPodResourcesRequest(), timeout=ANSWER_TIMEOUT)
        if answer is None:  # gRPC could not decode it
            raise OSError("kubelet's answer is not a list of pod resources")
        if socket_identity(self.socket) != current:
            return False
        if _is_unknown(self.node.snapshot) and not was_unknown:
            return True  # requested while another agent could still allocate devices
        if was_unknown and self.kubelet_identity is not None:
            self.taken_over_at = asked_at
        held = _decode_list(answer, self.node.snapshot)
        self.named_by = naming(self.node.snapshot) if _has_claims(answer) else None
        if current != self.kubelet_identity:
            self.kubelet_started_at = asked_at - (_socket_age(current) if self.kubelet_identity is None else 0)
            self.kubelet_identity, self.not_listed = current, self._held_before()
        elif asked_at - self.taken_over_at < TAKEOVER_PERIOD:
            self.not_listed = self._held_before()
        self.not_listed = _not_among(self.not_listed, held)
        has_just_started = asked_at - self.kubelet_started_at <= KUBELET_START_PERIOD
        if self.not_listed and not has_just_started:
            self.not_listed = self._still_in_checkpoint(self.not_listed)
        rewrite = 0
        if not self.not_listed:
            self._report_status("ok", "kubelet lists what containers hold")
        elif has_just_started:
            self._report_status(
                "ok",
                (
                    "kubelet has just started: the agent treats devices that containers held before this start as "
                    "still held, until kubelet lists them"
                ),
            )
        else:
            reason = (
                f"{self.checkpoint} has devices that kubelet does not list: the agent treats the devices of "
                "the file and of the list as held"
            )
            rewrite = int((asked_at - self.kubelet_started_at) / KUBELET_START_PERIOD)
            self._report_status("ok", reason)
        held_now = self._with_share_layouts((*held, *self.not_listed))
        self.node.apply(AllocationsListed(held_now, asked_at, rewrite))
        return True

    def report_silence(self, reason: str) -> None:
        """Report that kubelet does not answer. Its last answer counts; before its first, the checkpoint does."""
        has_taken_over = self.kubelet_identity is not None and _is_unknown(self.node.snapshot)
        if has_taken_over or (self.kubelet_identity is None and self.node.now() - self.started_at >= CHECKPOINT_AFTER):
            asked_at = self.node.now()
            held, outcome = self._read_checkpoint()
            reason = f"{reason}; {outcome}"
            if held is not None:
                self.node.apply(AllocationsListed(self._with_share_layouts(held), asked_at))
        self._report_status("failing", reason)

    def _with_share_layouts(self, allocations: Allocations) -> Allocations:
        """These allocations with their share layouts, as far as the checkpoint has them: a list has only ids."""
        known = self.share_layouts
        self.share_layouts = {shares: known[shares] for each in allocations if (shares := _held_ids(each)) in known}
        return tuple(each.but(share_layout=known.get(_held_ids(each), EncodedLayout(""))) for each in allocations)

    def _held_before(self) -> Allocations:
        """What containers held before this kubelet answered: by the last list, and by the checkpoint, which also has
        what was allocated since."""
        read_allocations = tuple(each for each in self.node.snapshot.allocations or () if not each.granted_at)
        return (*read_allocations, *_not_among(self._read_checkpoint()[0] or (), read_allocations))

    def _still_in_checkpoint(self, not_listed: Allocations) -> Allocations:
        """Those that kubelet's checkpoint has too; all of them if it cannot be read."""
        held = self._read_checkpoint()[0]
        return not_listed if held is None else _not_among(not_listed, _not_among(not_listed, held))

    def _read_checkpoint(self) -> tuple[Allocations | None, str]:
        """(what kubelet's checkpoint has, or None if it cannot be read; the outcome for people)."""
        try:
            held = _decode_checkpoint(files.read(self.checkpoint))
            self.share_layouts |= {_held_ids(each): each.share_layout for each in held if each.share_layout}
        except FileNotFoundError:
            return (), f"there is no {self.checkpoint} either, so no container holds a device"
        except OSError as error:
            return None, f"{self.checkpoint} cannot be read either: {error.strerror}"
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return None, f"{self.checkpoint} cannot be decoded either: {error}"
        return held, f"until kubelet answers, the agent reads from {self.checkpoint} what containers hold"

    def _report_status(self, state: PartState, reason: str) -> None:
        self.node.apply(StatusChanged(POD_RESOURCES_PART, Status(state, reason)))


def _socket_age(socket: SocketIdentity) -> float:
    """Seconds since a socket was made, by the wall clock. If that was set back meanwhile the socket counts as new."""
    return max(0.0, time.time() - socket[2] / 1e9)


def _not_among(allocations: Allocations, others: Allocations) -> Allocations:
    """The allocations whose ids no other one has."""
    known = set(map(_held_ids, others))
    return tuple(each for each in allocations if _held_ids(each) not in known)


def _held_ids(allocation: Allocation) -> HeldIds:
    """What a list and the checkpoint both tell: they name pods in different ways."""
    return allocation.holder.container, allocation.resource, allocation.devices


def _decode_list(answer: pb.ListPodResourcesResponse, snapshot: Snapshot) -> Allocations:
    """Kubelet lists each device by itself. `snapshot`: what tells the GPUs of claims."""
    of_plugins = _merge(
        (_holder(pod, container), devices.resource_name, devices.device_ids)
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
    )
    return (*of_plugins, *_merge_claims(answer, snapshot))


def _merge_claims(answer: pb.ListPodResourcesResponse, snapshot: Snapshot) -> Allocations:
    """One allocation for each container and claim, and always in the same order."""
    held: dict[tuple[PodRef, str, str], set[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                name = f"{claim.claim_namespace}/{claim.claim_name}"
                for each in claim.claim_resources:
                    if unit := held_unit(snapshot, name, each.driver_name, each.pool_name, each.device_name):
                        held.setdefault((_holder(pod, container), each.driver_name, name), set()).add(unit)
    return tuple(
        Allocation(resource=driver, devices=tuple(sorted(units)), holder=holder, claim=claim)
        for (holder, driver, claim), units in sorted(held.items(), key=lambda each: tuple(map(str, each[0])))
    )


def _has_claims(answer: pb.ListPodResourcesResponse) -> bool:
    return any(container.dynamic_resources for pod in answer.pod_resources for container in pod.containers)


def _holder(pod: pb.PodResources, container: pb.ContainerResources) -> PodRef:
    return PodRef(namespace=pod.namespace, name=pod.name, container=container.name)


def _decode_checkpoint(content: bytes) -> Allocations:
    entries = msgspec.json.decode(content, type=_Checkpoint).data.entries or ()
    layouts = {(entry.holder, entry.resource): _share_layout(entry) for entry in entries}
    held = _merge((entry.holder, entry.resource, ids) for entry in entries for ids in entry.devices.values())
    return tuple(each.but(share_layout=layouts[each.holder, each.resource]) for each in held)


def _share_layout(entry: "_CheckpointEntry") -> EncodedLayout:
    """The layout of the unit that an entry has shares of, by its container's environment; "" where it has none."""
    ids = [id for ids in entry.devices.values() for id in ids if id.startswith(UNIT_ID_PREFIXES)]
    if not ids or not all("::" in id for id in ids) or not entry.response:
        return EncodedLayout("")
    try:
        told = ContainerAllocateResponse.FromString(entry.response)
    except DecodeError:
        return EncodedLayout("")
    layout = layout_from_environment(dict(told.envs), len(ids))
    return layout.encoded if layout is not None else EncodedLayout("")


def _merge(entries: Iterable[tuple[PodRef, str, Iterable[str]]]) -> Allocations:
    """One allocation for each (container, resource), and always in the same order. One source names them all alike.

    Ids of other plugins are left out: a node may have a thousand, and they cannot overlap with a unit of ours. What
    tells them apart is the id: the resource may have had another name.
    """
    held: dict[tuple[PodRef, str], set[str]] = {}
    for holder, resource, ids in entries:
        held.setdefault((holder, resource), set()).update(id for id in ids if id.startswith(UNIT_ID_PREFIXES))
    return tuple(
        Allocation(resource=resource, devices=tuple(sorted(ids)), holder=holder)
        for (holder, resource), ids in sorted(held.items(), key=lambda each: (str(each[0][0]), each[0][1]))
        if ids
    )


class _CheckpointEntry(msgspec.Struct):
    """What one container holds (kubelet: pkg/kubelet/cm/devicemanager/checkpoint)."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    devices: dict[str, list[str]] = msgspec.field(name="DeviceIDs")  # NUMA node → ids
    response: bytes | None = msgspec.field(name="AllocResp", default=None)  # the plugin's answer, for this container

    @property
    def holder(self) -> PodRef:
        return PodRef(uid=self.pod_uid, container=self.container)


class _CheckpointData(msgspec.Struct):
    entries: list[_CheckpointEntry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _CheckpointData = msgspec.field(name="Data")
