"""What a Node says of its GPUs: the values of the annotation `gpuplane.io/gpus`, as whoever reads a Node gets them.

A device is named by its index: "0" is a GPU, "0:1" the MIG device 1 of GPU 0. `nodeannotation.py` beside this page
reads and writes the text of the annotation.
"""

from typing import Literal

from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodRef

State = Literal["healthy", "suspect", "degraded", "unhealthy", "probing", "drained", "withheld"]
"""How a device stands: a state of docs/faults.md."""

SharingStrategy = Literal["", "time-slicing", "mps", "memory"]
"""How the ids of a resource share a device; "" where each id is a device."""

CutPart = Literal["containers", "pods", "held", "mig", "gpus"]
"""What an annotation leaves out because it would be too long: the names of containers; those of some pods; what is
held; the MIG devices; the GPUs. Each is left out only where that before it was not enough."""


class OfferedResource(Value):
    """A resource whose ids stand for devices of this node, or that a container holds. `share_mib`: memory that each id
    stands for; 0: it does not stand for memory."""

    name: str
    strategy: SharingStrategy = ""
    share_mib: int = 0


class NodeMigDevice(Value):
    """A MIG device. `resource`: by which it is offered, None: by none; `ids`: how many ids stand for it."""

    index: str
    profile: str
    gpu_instance: int
    compute_instance: int = 0
    resource: OfferedResource | None = None
    ids: int = 0
    state: State = "healthy"
    code: str = ""  # of the fault, or of the reason why it is not given out; "" for none


class NodeGpu(Value):
    """A GPU. The fields of a `NodeMigDevice` mean the same. A GPU whose MIG devices are offered has no resource."""

    index: str
    uuid: str = ""
    model: str = ""
    memory_mib: int = 0
    resource: OfferedResource | None = None
    ids: int = 0
    state: State = "healthy"
    code: str = ""
    mig: tuple[NodeMigDevice, ...] = ()


class Holding(Value):
    """So many ids of one device that one container holds. `holder` says nothing where its name is left out, and while
    kubelet admits the pod. `device`: an index; the id of a device that is no longer there."""

    holder: PodRef
    resource: OfferedResource
    device: str
    ids: int = 1

    @property
    def memory_mib(self) -> int:
        """The memory that these ids stand for; 0 where they do not stand for memory."""
        return self.ids * self.resource.share_mib


class NodeGpus(Value):
    """The GPUs of a node, and who holds them. `state`, `code`: of the node, where something is wrong with the driver.

    `cut`: what is left out. Nothing follows from the absence of that.
    """

    gpus: tuple[NodeGpu, ...] = ()
    holdings: tuple[Holding, ...] = ()
    state: State = "healthy"
    code: str = ""
    cut: tuple[CutPart, ...] = ()
