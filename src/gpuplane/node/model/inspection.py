"""What `gpuplane inspect --json` prints. docs/inspect.md says of each key what programs may rely on.

`VERSION` is raised where a key goes away or comes to mean something else; a key may be added at any time. Every key is
always there. Times are in UTC; reasons are sentences for people.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.contracts.nodegpus import State
from gpuplane.node.model.machine import NVIDIA_GPU
from gpuplane.node.model.views import ReasonKind

VERSION = 2

DeviceState = State | Literal["absent"]


class Shown(Value, omit_defaults=False, forbid_unknown_fields=False):
    """A part of what is printed, with all its keys."""


class Agent(Shown):
    """Which agent this is from. `waits_for`: the agent that it waits for, in standby. `generation`: how
    often its snapshot has changed since it started."""

    version: str
    mode: Literal["serving", "standby"]
    waits_for: Text
    started: datetime | None
    generation: int


class Node(Shown):
    """What concerns every device: see `Device` for the fields from `state` on."""

    name: str  # "" where the agent was given none
    state: DeviceState = "healthy"
    code: str = ""
    reason: Text = ""
    since: datetime | None = None
    until: datetime | None = None
    clear_when_text: Text = ""
    advice: Text = ""
    fault_counts: Mapping[str, int] = {}


class Driver(Shown):
    """The GPU driver that was seen last: its version, "580.95.05", and the newest CUDA that it speaks, "13.0"."""

    version: str
    cuda: str


class Release(Shown):
    """The driver is released. `until` None: as long as the Node object requests it. `withdraw`: what ends that, for
    people."""

    reason: Text
    until: datetime | None
    withdraw: Text


class RequestedLayouts(Shown):
    """The MIG configuration that is requested, and how that stands. `withdraw`: what ends the request, for people."""

    config: str
    requested_by: Literal["label", "command"]
    state: Literal["pending", "success", "failed"]
    reason: Text
    withdraw: Text


class Strategy(Shown):
    """How containers are told of their devices. `reason` is "" where the configuration says so.

    `stand_ins`: whether they get /dev/null by the name of each device node.
    """

    strategies: tuple[str, ...]
    reason: Text
    stand_ins: bool


class Kind(Shown):
    """A kind of devices, and how many of its devices the last look counted.

    `counted`: whether that look could count them. If not, `reason` says why, and those that were seen before stay.
    """

    name: str  # "nvidia-gpu", "device-node"
    devices: int
    counted: bool
    code: str
    reason: Text


class Resource(Shown):
    """One resource, with the counts that kubelet is told.

    `held`: how many ids of it containers hold; None while kubelet has not said. `share_memory_bytes`: the memory that
    one id stands for; None where it is not memory that is shared.
    """

    name: str
    devices: int
    healthy: int
    unhealthy: int
    held: int | None
    sharing: Literal["none", "time-slicing", "mps", "memory"]
    share_memory_bytes: int | None


class Id(Shown):
    """One id as kubelet is told it."""

    id: str
    healthy: bool
    reason: Text


class Holder(Shown):
    """Who holds which ids of a device. `since` None: from before this agent.

    `pod`: its name; its UID while only that is known; "" while kubelet admits it. `pod_uid`: "" where it is not known.
    `claim`: "namespace/name" of the claim by which it has them; `resource` is its driver's name then; "" for none.
    """

    namespace: str
    pod: str
    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    since: datetime | None
    claim: str = ""


class Reason(Shown):
    """One thing that keeps a device from being given out. `code`: of a fault, or of docs/inspect.md.

    `part`: which part of the agent knows more.
    """

    kind: ReasonKind
    code: str
    part: str
    reason: Text


class Device(Shown):
    """A GPU, a MIG device, or a device of another kind: that has its id as `uuid`, and no index.

    `state`: a state of docs/faults.md; `absent` where a container holds it and the driver does not count it. `code`:
    the fault of the catalogue that decides; "" for none. `until`: when time alone ends it; `fault_counts`: how often
    each fault has occurred on it since the node's boot.
    """

    index: str  # as commands take it: "0", "0:1"; "" where the driver does not count it
    uuid: str
    gpu: str  # UUID of the GPU that it is or lies in; "" where that is unknown
    model: str
    mig_profile: str  # "" for a whole GPU
    pci: str
    numa: int | None
    memory_bytes: int | None
    resource: str  # "" where it is offered by no name
    not_offered: Text  # why it is not
    ids: tuple[Id, ...]
    reasons: tuple[Reason, ...]  # why it is not given out
    holders: tuple[Holder, ...] | None  # None while kubelet has not said
    state: DeviceState = "healthy"
    code: str = ""
    reason: Text = ""
    since: datetime | None = None
    until: datetime | None = None
    clear_when_text: Text = ""
    advice: Text = ""
    fault_counts: Mapping[str, int] = {}
    kind: str = NVIDIA_GPU
    last_seen: datetime | None = None  # when the driver last listed a GPU that it does not list; else None


class NotOffered(Shown):
    """A device that is offered by no name. `uuid` is "" where the driver does not tell it."""

    index: str
    uuid: str
    reason_kind: ReasonKind
    code: str
    reason: Text


class PartStatus(Shown):
    """The status of one part of the agent, or of something outside that it deals with."""

    name: str
    state: Literal["ok", "waiting", "failing"]
    code: str
    reason: Text
    since: datetime


class HealthInspection(Shown):
    """`gpuplane inspect health --json`."""

    version: int
    time: datetime
    node: Node
    waiting_reason: Text
    devices: tuple[Device, ...]


class Inspection(Shown):
    """`gpuplane inspect --json`. `waiting_reason`: why nothing is offered yet."""

    version: int
    time: datetime
    agent: Agent
    node: Node
    ready: bool
    not_ready_reason: Text
    not_ready_code: str
    waiting_reason: Text
    waiting_code: str
    release: Release | None
    layouts: RequestedLayouts | None
    driver: Driver | None
    unlisted: Mapping[str, str]  # address of a GPU that the driver does not have → the kernel driver that has it, or ""
    device_list_strategy: Strategy | None
    kinds: tuple[Kind, ...]
    resources: tuple[Resource, ...]
    devices: tuple[Device, ...]
    not_offered: tuple[NotOffered, ...]
    offered_twice: tuple[str, ...]  # UUIDs of devices that the device plugin offers and ResourceSlices publish
    parts: tuple[PartStatus, ...]


class ClaimDevice(Shown):
    """A device of a claim. `index`: "" where the driver does not show it now. `time_slice`: "" for the usual one."""

    request: str
    pool: str
    device: str
    uuid: str
    index: str
    admin_access: bool
    cdi_device: str
    time_slice: str


class ClaimShown(Shown):
    """A claim of Dynamic Resource Allocation on this node.

    `state`: prepared: its containers can start; waiting: its promise or file is being written; failing: it cannot be
    written; refused: it was not prepared. `pods`: those for which it was reserved when it was prepared. `containers`:
    those that use it, as kubelet lists them.
    """

    namespace: str
    name: str
    uid: str
    state: Literal["prepared", "waiting", "failing", "refused"]
    code: str = ""
    reason: Text = ""
    devices: tuple[ClaimDevice, ...] = ()
    pods: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()


class ClaimsShown(Shown):
    """What `gpuplane claims --json` prints."""

    version: int
    claims: tuple[ClaimShown, ...]


SliceState = Literal["published", "incomplete", "withdrawn", "waiting", "described"]


class TaintShown(Shown):
    """A taint of a device."""

    key: str
    value: str
    effect: str


class SliceShown(Shown):
    """A ResourceSlice of this node, with its one device.

    `state`: published: the API server has it as it shall be; incomplete: it did not keep the fields of `differing`;
    withdrawn: it is published without its device, because a taint was not kept; waiting: it is not published yet;
    described: no agent publishes it. `allocated`: a claim has the device. `index`: "" of a GPU that is gone.
    """

    name: str
    pool: str
    device: str
    uuid: str
    index: str
    state: SliceState
    allocated: bool
    taints: tuple[TaintShown, ...]
    differing: tuple[str, ...]


class SlicesShown(Shown):
    """What `gpuplane slices --json` prints. `state`, `code`, `reason`: the status of the part `slices`; "" of a machine
    that is described."""

    version: int
    node: str
    driver: str
    state: str
    code: str
    reason: Text
    slices: tuple[SliceShown, ...]
