"""What containers hold: kubelet's pod-resources API, and until that has answered for the first time, its checkpoint.

Nothing is offered before this is known, and a device that is released is offered under its new name no sooner than an
answer shows that its pod has gone. So the questions come quickly while something waits for an answer, and slowly
otherwise: what we grant we know at once, and what others release matters only where something is withheld for it.

Three ways in which a silence must not be taken for "nothing is held":
- Kubelet does not list (it has not started yet, it is too old, its socket is not mounted). Then its checkpoint is read.
  That names pods by their UID, and it may still name pods that have gone: a safe superset. Once kubelet has listed, its
  last word stays in force while it is silent.
- Kubelet has just started: it lists the pods that it has heard of, and hears of them from the API server. So at first
  its answers only add to what was held before, until one shows all of that. Once it has had the time to hear, what it
  does not show counts no longer, unless its checkpoint still has it: a kubelet that cannot reach its API server hears
  of no pod, and forgets none. A kubelet that has heard forgets pods that have gone when it lists, but writes that down
  only with the next device list or allocation (pkg/kubelet/cm/devicemanager/manager.go); so its plugins are asked
  (`Snapshot.checkpoint_rewrite`) to send their lists again now and then.
- Another agent served kubelet until a moment ago. What it granted last kubelet may not list yet, so its checkpoint,
  which it writes when an allocation is done, counts beside each answer for a while.

An answer counts only for the kubelet that was asked: that the same socket stands at the path before the connection and
after the answer. Its age counts from when we saw its socket change; only that of the first one is told by the wall
clock, which may be set meanwhile.
"""

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import msgspec
from google.protobuf.message import DecodeError

from gpuplane import files
from gpuplane.core.health.reasons import awaits_end_of_container
from gpuplane.core.withholding import layout_from_environment, withheld
from gpuplane.kubelet.protocols import podresources_pb2 as pb
from gpuplane.kubelet.protocols.deviceplugin_pb2 import ContainerAllocateResponse
from gpuplane.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerStub
from gpuplane.kubelet.sockets import Identity, Taken, address, check_length, complaint, identity
from gpuplane.model.facts import AllocationsListed, StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.pod import PodRef
from gpuplane.model.sharelayout import EncodedLayout
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.status import POD_RESOURCES, State, Status

if TYPE_CHECKING:
    from gpuplane.kubelet.protocols.podresources_pb2_grpc import PodResourcesListerAsyncStub

DEADLINE = 5.0  # seconds that an answer may take
PATIENCE = 2.0  # seconds without a first answer after which the checkpoint is read
START = 0.1  # seconds between two tries before the first answer
SOON, IDLE = 1.0, 10.0  # seconds between two questions
SETTLING = 10.0  # seconds in which kubelet may still come to tell what an agent before us granted last
HEARING = 30.0  # seconds in which a kubelet that has started hears of its pods
LARGEST = 64 * 1024 * 1024  # bytes of an answer; gRPC's own limit is 4 MiB

SOCKET, CHECKPOINT = "pod-resources/kubelet.sock", "device-plugins/kubelet_internal_checkpoint"
OURS = ("GPU-", "MIG-")
"""How ids begin that can overlap with a unit of ours. Other plugins' are dropped: a node may have a thousand of them
(kvm, network functions), and none could ever withhold a GPU. The resource's name says nothing: it may be an old one."""

Held = tuple[Allocation, ...]
Shares = tuple[str, str, tuple[str, ...]]
"""A container's name, a resource and ids."""


async def allocations(node: Node, root: Path) -> None:
    """Ask for ever; each answer is a fact, and so is each silence. `root` is kubelet's directory."""
    inquiry = Inquiry(node, root)
    while True:
        try:
            await inquiry.ask()
        except grpc.aio.AioRpcError as error:
            inquiry.silent(f"{inquiry.socket}: {complaint(error)}")
        except OSError as error:
            inquiry.silent(f"{inquiry.socket}: {error.strerror or error}")
        except Taken as error:
            inquiry.silent(str(error))
        if node.snapshot.allocations is None:
            await asyncio.sleep(START)
        else:
            await node.until(_forgotten, SOON)


def urgent(snapshot: Snapshot) -> bool:
    """Whether somebody waits for the next answer: a device that is withheld for what a container holds under another
    name, a grant that kubelet has not listed yet, a fault that the end of a pod ends, or a resource that another plugin
    may be giving out."""
    return (
        snapshot.allocations is None
        or bool(withheld(snapshot))
        or awaits_end_of_container(snapshot)
        or any(each.granted_at for each in snapshot.allocations or ())
        or any(status.state != "ok" for _, status in snapshot.status.of_kind("plugin"))
    )


def _forgotten(snapshot: Snapshot) -> bool:
    """Whether nothing is known, or no longer: another agent gave out devices until a moment ago."""
    return snapshot.allocations is None


async def listed(root: Path) -> Held | None:
    """What containers hold, asked once; of a kubelet that is silent its checkpoint is asked. `root`: its directory.

    None where neither can be asked: both are elsewhere, perhaps, and nothing is known.
    """
    try:
        check_length(socket := root / SOCKET)
        async with _channel(socket) as channel:
            answer = await PodResourcesListerStub(channel).List(pb.ListPodResourcesRequest(), timeout=DEADLINE)
            if answer is not None:
                return _listed(answer)
    except (grpc.aio.AioRpcError, OSError):
        pass
    try:
        return _checkpointed(files.read(root / CHECKPOINT))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _channel(socket: Path) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", LARGEST), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address(socket), options)


class Inquiry:
    """What was asked of kubelet. It reports the status of pod-resources, with the source that is in use."""

    def __init__(self, node: Node, root: Path) -> None:
        self.node = node
        self.socket = root / SOCKET
        self.checkpoint = root / CHECKPOINT
        self.began = node.now()
        self.kubelet: Identity | None = None  # the one that answered last
        self.started = 0.0  # when it did, as far as we know
        self.unheard: Held = ()  # what was held before it started and it has not shown
        self.share_layouts: dict[Shares, EncodedLayout] = {}  # by the environment of their containers
        self.anew = -SETTLING  # when another agent had given out devices until a moment ago

    async def ask(self) -> None:
        """Ask the kubelet that is there until it goes: raises what came instead of an answer."""
        check_length(self.socket)
        there = identity(self.socket)
        if there is None:
            raise OSError("kubelet is not there")
        async with _channel(self.socket) as channel:
            while await self._ask(PodResourcesListerStub(channel), there):
                if not await self.node.until(_forgotten, SOON) and self.node.now() - self.anew > SETTLING:
                    await self.node.until(urgent, IDLE - SOON)

    async def _ask(self, lister: "PodResourcesListerAsyncStub", there: Identity) -> bool:
        """Ask once; whether it still was this kubelet that answered."""
        asked, anew = self.node.now(), _forgotten(self.node.snapshot)
        answer = await lister.List(pb.ListPodResourcesRequest(), timeout=DEADLINE)
        if answer is None:  # gRPC's way to say that it cannot be decoded
            raise OSError("an answer that is no list of pod resources")
        if identity(self.socket) != there:
            return False
        if _forgotten(self.node.snapshot) and not anew:
            return True  # asked while another agent could still give out devices
        if anew and self.kubelet is not None:
            self.anew = asked
        held = _listed(answer)
        if there != self.kubelet:
            self.started = asked - (_age(there) if self.kubelet is None else 0)
            self.kubelet, self.unheard = there, self._before()
        elif asked - self.anew < SETTLING:
            self.unheard = self._before()
        self.unheard = _missing(self.unheard, held)
        young = asked - self.started <= HEARING
        if self.unheard and not young:
            self.unheard = self._remembered(self.unheard)
        rewrite = 0
        if not self.unheard:
            self._report_status("ok", "kubelet lists what containers hold")
        elif young:
            self._report_status("ok", "kubelet has just started: what containers held before counts until it lists it")
        else:
            reason = f"what kubelet does not list, but has in {self.checkpoint}, counts as held"
            rewrite = int((asked - self.started) / HEARING)
            self._report_status("ok", reason)
        self.node.apply(AllocationsListed(self._described((*held, *self.unheard)), asked, rewrite))
        return True

    def silent(self, reason: str) -> None:
        """Kubelet does not answer. Its last word stays; before its first, the checkpoint speaks."""
        anew = self.kubelet is not None and _forgotten(self.node.snapshot)
        if anew or (self.kubelet is None and self.node.now() - self.began >= PATIENCE):
            asked = self.node.now()
            held, told = self._checkpointed()
            reason = f"{reason}; {told}"
            if held is not None:
                self.node.apply(AllocationsListed(self._described(held), asked))
        self._report_status("failing", reason)

    def _described(self, held: Held) -> Held:
        """What is held, with how it is shared, as far as the checkpoint has told: a list says only ids."""
        known = self.share_layouts
        self.share_layouts = {shares: known[shares] for each in held if (shares := _shares(each)) in known}
        return tuple(each.but(share_layout=known.get(_shares(each), EncodedLayout(""))) for each in held)

    def _before(self) -> Held:
        """What containers held before this kubelet answered: by the last list, and by the checkpoint, which has what
        was granted since."""
        listed = tuple(each for each in self.node.snapshot.allocations or () if not each.granted_at)
        return (*listed, *_missing(self._checkpointed()[0] or (), listed))

    def _remembered(self, unheard: Held) -> Held:
        """What of it kubelet's checkpoint has, too; all of it where that cannot be known."""
        held = self._checkpointed()[0]
        return unheard if held is None else _missing(unheard, _missing(unheard, held))

    def _checkpointed(self) -> tuple[Held | None, str]:
        """What kubelet's checkpoint says, or None where it cannot be known; in words, what came of it."""
        try:
            held = _checkpointed(files.read(self.checkpoint))
            self.share_layouts |= {_shares(each): each.share_layout for each in held if each.share_layout}
        except FileNotFoundError:
            return (), f"there is no {self.checkpoint} either, so nothing is held"
        except OSError as error:
            return None, f"nor can {self.checkpoint} be read: {error.strerror}"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, f"nor can {self.checkpoint} be understood: {error}"
        return held, f"until then {self.checkpoint} says what containers hold"

    def _report_status(self, state: State, reason: str) -> None:
        self.node.apply(StatusChanged(POD_RESOURCES, Status(state, reason)))


def _age(socket: Identity) -> float:
    """Seconds since it was made, by the wall clock. That may have been set back meanwhile: then it counts as new."""
    return max(0.0, time.time() - socket[2] / 1e9)


def _missing(before: Held, held: Held) -> Held:
    """What of the one the other does not show."""
    shown = set(map(_shares, held))
    return tuple(each for each in before if _shares(each) not in shown)


def _shares(held: Allocation) -> Shares:
    """What a list and the checkpoint have in common: they name pods otherwise."""
    return held.holder.container, held.resource, held.devices


def _listed(answer: pb.ListPodResourcesResponse) -> Held:
    """Kubelet lists each device by itself."""
    return _merged(
        (
            PodRef(namespace=pod.namespace, name=pod.name, container=container.name),
            devices.resource_name,
            devices.device_ids,
        )
        for pod in answer.pod_resources
        for container in pod.containers
        for devices in container.devices
    )


def _checkpointed(content: bytes) -> Held:
    entries = msgspec.json.decode(content, type=_Checkpoint).data.entries or ()
    layouts = {(entry.holder, entry.resource): _share_layout(entry) for entry in entries}
    held = _merged((entry.holder, entry.resource, ids) for entry in entries for ids in entry.devices.values())
    return tuple(each.but(share_layout=layouts[each.holder, each.resource]) for each in held)


def _share_layout(entry: "_Entry") -> EncodedLayout:
    """The layout of the unit that an entry has shares of, by its container's environment; "" where it has none."""
    ids = [id for ids in entry.devices.values() for id in ids if id.startswith(OURS)]
    if not ids or not all("::" in id for id in ids) or not entry.response:
        return EncodedLayout("")
    try:
        told = ContainerAllocateResponse.FromString(entry.response)
    except DecodeError:
        return EncodedLayout("")
    layout = layout_from_environment(dict(told.envs), len(ids))
    return layout.encoded if layout is not None else EncodedLayout("")


def _merged(entries: Iterable[tuple[PodRef, str, Iterable[str]]]) -> Held:
    """One allocation for each (container, resource), and always in the same order. One source names them all alike."""
    held: dict[tuple[PodRef, str], set[str]] = {}
    for holder, resource, ids in entries:
        held.setdefault((holder, resource), set()).update(id for id in ids if id.startswith(OURS))
    return tuple(
        Allocation(resource=resource, devices=tuple(sorted(ids)), holder=holder)
        for (holder, resource), ids in sorted(held.items(), key=lambda each: (str(each[0][0]), each[0][1]))
        if ids
    )


class _Entry(msgspec.Struct):
    """What one container holds (kubelet: pkg/kubelet/cm/devicemanager/checkpoint)."""

    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(name="ContainerName")
    resource: str = msgspec.field(name="ResourceName")
    devices: dict[str, list[str]] = msgspec.field(name="DeviceIDs")  # NUMA node → ids
    response: bytes | None = msgspec.field(name="AllocResp", default=None)  # the plugin's answer, for this container

    @property
    def holder(self) -> PodRef:
        return PodRef(uid=self.pod_uid, container=self.container)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")
