"""What views return: what Kubernetes sees, derived from one snapshot."""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.value import Value


class Unit(Value):
    """A physical thing that can be given out: a whole GPU, or a MIG device of one."""

    id: str  # GPU-… or MIG-…
    gpu: str  # UUID of the GPU that it is or lies in
    index: str  # "0", or "0:1" for MIG device 1 of GPU 0
    model: str
    profile: str = ""  # the MIG profile; "" for a whole GPU
    numa: int | None = None
    pci: str = ""
    nodes: tuple[str, ...] = ()
    memory_mib: int = 0  # 0: the driver does not tell
    compute_capability: str = ""  # of the GPU, "9.0"


class Offered(Value):
    """One device id as kubelet sees it. It is healthy while `trouble` is empty."""

    id: str
    unit: Unit
    trouble: str = ""


class Resource(Value):
    """One resource name with its devices, in the order of their ids' units."""

    name: str
    devices: tuple[Offered, ...]
    shared: bool = False
    one_share_only: bool = False  # a request for more than one share is refused
    distinct: bool = False  # a container's ids are all of different GPUs
    grain_mib: int = 0  # memory that each id stands for; a container's ids are then all of one unit. 0: not memory
    mps: bool = False  # its containers are clients of MPS daemons


class Left(Value):
    """A unit that is not offered under any name, and why."""

    unit: str
    reason: str


class Offer(Value):
    """What this node advertises. While `waiting` says why, nothing may be registered yet."""

    waiting: str = ""
    resources: tuple[Resource, ...] = ()
    left: tuple[Left, ...] = ()

    def resource(self, name: str) -> Resource | None:
        """The resource of that name, or None."""
        return next((each for each in self.resources if each.name == name), None)


class Mount(Value):
    """A host path seen inside a container."""

    container: str
    host: str
    read_only: bool = False


class Node(Value):
    """A device node for a container."""

    container: str
    host: str
    permissions: str = "rw"


class Edits(Value):
    """What a container gets."""

    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    nodes: tuple[Node, ...] = ()
    annotations: Mapping[str, str] = {}
    cdi: tuple[str, ...] = ()


class News(Value):
    """One thing worth saying once: a log line, later an Event and a counter."""

    level: str  # info, warning or error
    about: str  # a GPU's UUID, a resource, a part
    text: str


class NodeCondition(Value):
    """What a condition of our Node object says; `status` "True" where there is a problem."""

    status: Literal["True", "False", "Unknown"]
    reason: str  # one word, for machines
    message: str


class NodeEvent(Value):
    """What an Event about our Node object says. `device`: UUID of the device that it is about; "" for the node."""

    device: str
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Metric(Value):
    """One metric: its series are (labels, value). A counter only grows, until the agent's memory of a boot ends."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    series: tuple[tuple[Mapping[str, str], float], ...] = ()


class Refused(Exception):
    """A request that is answered by an error: what was wrong, of which device, and what to do."""
