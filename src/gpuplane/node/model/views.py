"""What views return: what Kubernetes sees, derived from one snapshot."""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.text import Text, join
from gpuplane.base.value import Value
from gpuplane.node.model.machine import NVIDIA_GPU
from gpuplane.node.model.reasons import Reason as Reason
from gpuplane.node.model.reasons import ReasonKind as ReasonKind


class Unit(Value):
    """A physical thing that can be given out: a whole GPU, a MIG device of one, or a device of another kind."""

    id: str  # GPU-…, MIG-…, or that of another kind: "device-node:kvm"
    gpu: str  # UUID of the GPU that it is or lies in; its own id where it is no GPU
    index: str  # "0", or "0:1" for MIG device 1 of GPU 0; "" for no GPU
    model: str
    profile: str = ""  # the MIG profile; "" for a whole GPU
    numa: int | None = None
    pci: str = ""
    device_nodes: tuple[str, ...] = ()
    memory_mib: int = 0  # 0: the driver does not tell
    compute_capability: str = ""  # of the GPU, "9.0"
    kind: str = NVIDIA_GPU
    attributes: tuple[tuple[str, str], ...] = ()  # of a device of another kind: (name, value)


class OfferedDevice(Value):
    """One device id as kubelet sees it, and the unit that it stands for. It is healthy while there are no `reasons`."""

    id: str
    unit: Unit
    is_share: bool = False  # other ids stand for the same unit, or may do so
    reasons: tuple[Reason, ...] = ()

    @property
    def unavailable_reason(self) -> Text:
        """Why it is not given out, for people; "" if it is."""
        return join("; ", (each.text for each in self.reasons))


class Resource(Value):
    """One resource name with its devices, in the order of their ids' units."""

    name: str
    devices: tuple[OfferedDevice, ...]
    shared: bool = False
    one_share_only: bool = False  # a request for more than one share is refused
    requires_distinct_gpus: bool = False  # a container's ids are all of different GPUs
    share_mib: int = 0  # memory that each id stands for; a container's ids are then all of one unit. 0: not memory
    uses_mps: bool = False  # its containers are clients of MPS daemons


class NotOffered(Value):
    """A unit that is not offered under any name, and why. `unit`: what a person may call it."""

    unit: str
    reason: Text
    device: str = ""  # its UUID; "" where the driver does not tell it
    index: str = ""
    kind: ReasonKind = "configured"
    code: str = ""


class Availability(Value):
    """How one GPU or MIG device stands for kubelet: each one of the machine that could be given out has one."""

    device: str  # UUID; "" where the driver does not tell it
    index: str  # "0", or "0:1" for MIG device 1 of GPU 0
    resource: str = ""  # the name by which it is offered; "" for none
    id_count: int = 0  # that kubelet is told of it: one, or its shares
    unhealthy_id_count: int = 0  # of these, as kubelet is told
    reasons: tuple[Reason, ...] = ()  # why it is not given out; () where it is


class Offer(Value):
    """What this node advertises. While `waiting` says why, nothing may be registered yet."""

    waiting_reason: Text = ""
    waiting_code: str = ""
    resources: tuple[Resource, ...] = ()
    not_offered: tuple[NotOffered, ...] = ()

    def resource(self, name: str) -> Resource | None:
        """The resource of that name, or None."""
        return next((each for each in self.resources if each.name == name), None)


class Mount(Value):
    """A path of the host, mounted into a container: the device-plugin API's Mount."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceSpec(Value):
    """A device node for a container: the device-plugin API's DeviceSpec."""

    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerAllocateResponse(Value):
    """What a container gets: the device-plugin API's ContainerAllocateResponse."""

    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_specs: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = {}
    cdi_devices: tuple[str, ...] = ()


class News(Value):
    """One thing worth saying once, as a log line."""

    level: str  # info, warning or error
    about: str  # what it is about, for people: a GPU's UUID, "8 GPUs (0 to 7)", a resource, a part
    text: Text
    subject: LogSubject = LogSubject()


class NodeCondition(Value):
    """What a condition of our Node object says. `grace`: seconds for which that has to last before it is written."""

    status: Literal["True", "False", "Unknown"]
    reason: str  # one word, for machines
    message: Text
    reason_keys: frozenset[tuple[str, ...]] = frozenset()  # what the message says, whatever the words
    grace: float = 0.0

    def same_as(self, other: "NodeCondition") -> bool:
        """Whether it says the same, if in other words."""
        return (self.status, self.reason, self.reason_keys) == (other.status, other.reason, other.reason_keys)


class NodeEvent(Value):
    """What an Event about our Node object says. `devices`: UUIDs of those that it is about; "" for the node."""

    devices: tuple[str, ...]
    type: Literal["Normal", "Warning"]
    reason: str
    message: Text


class RequestRefused(Exception):
    """A request that is answered by an error: what was wrong, of which device, and what to do."""


class FeatureLabel(Value):
    """What a label of our Node object says of its GPUs. `source`: where that is known from, for people."""

    value: str  # a legal label value; may be ""
    source: Text
