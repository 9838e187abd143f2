"""What a pod asks of a node and its GPUs, as values that can be compared: equal requests are placed alike.

CPU in milli-CPU, a node's memory in bytes and a GPU's in MiB, a GPU's time and place in milli-GPU: 1000 is a whole one.
"""

from typing import Any, Literal, NamedTuple

from gpuplane.base.value import Value
from gpuplane.cluster.model.nodes import Gpu
from gpuplane.kubernetes.selectors import NodeSelector, Toleration

MILLI_PER_GPU = 1000
"""Milli-GPU of a GPU."""

Linked = Literal["any", "preferred", "required"]
"""Whether several GPUs have to be of one link group (NVLink, or one NVSwitch fabric)."""


class GpuRequest(Value):
    """GPUs of one container; `count` different ones, each with the rest.

    What is asked of each GPU is one of these, or `milli`, memory and `units` together:

    - `milli`: so much of it; 1000 asks for it alone. 0: as much as its part of the GPU's memory.
    - `memory_mib`, or `memory_percent` of the GPU's memory. 0: as much as its part of `milli`.
    - `units`: that many ids of what the node offers for it (1 for a whole GPU, one of its replicas where it is shared);
      with `milli` or `memory_mib`, where these are so much of it at least.
    - `profile`: a MIG device of this profile ("1g.10gb").

    `models`, `ids`: only GPUs of these models, or with these UUIDs; empty: any. `resource`: only GPUs that the node
    offers by this resource name; "": by any.
    """

    count: int = 1
    milli: int = 0
    memory_mib: int = 0
    memory_percent: int = 0
    units: int = 0
    profile: str = ""
    models: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    resource: str = ""
    linked: Linked = "preferred"

    @property
    def asks_milli_alone(self) -> bool:
        """Whether its part of a GPU's memory follows from `milli`."""
        return bool(self.milli) and not (self.memory_mib or self.memory_percent or self.units or self.profile)

    @property
    def wants_links(self) -> bool:
        """Whether it matters that its GPUs are linked: not to MIG devices, which have no NVLink (NVIDIA's MIG User
        Guide, "Application Considerations")."""
        return self.count > 1 and self.linked != "any" and not self.profile


class NodeRules(Value):
    """Which nodes a pod may go to, whatever they have: those with these labels, that its affinity matches, and all of
    whose taints it tolerates."""

    labels: tuple[tuple[str, str], ...] = ()
    affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] = ()


NO_NODE_RULES = NodeRules()
"""To every node without taints."""


class Request(Value):
    """A pod's CPU and memory, the GPUs of each of its containers, and the nodes that it may go to. `others`: what it
    takes of other resources of its node, as kube-scheduler counts them ("pods", "nvidia.com/gpu"), each once."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: tuple[GpuRequest, ...] = ()
    nodes: NodeRules = NO_NODE_RULES
    others: tuple[tuple[str, int], ...] = ()

    @property
    def kinds_of_gpus(self) -> tuple[GpuRequest, ...]:
        """What its containers ask for, each once: a pod may ask for a thousand MIG devices alike."""
        return tuple(dict.fromkeys(self.gpus))

    @property
    def asks_for_mig(self) -> bool:
        """Whether a part of it is a MIG device."""
        return any(each.profile for each in self.gpus)

    @property
    def size(self) -> tuple[int, int, int]:
        """To compare requests by: milli-GPU, MiB of GPUs, milli-CPU. A GPU of which no part is named counts whole, and
        one of which only MiB are named by these."""
        milli = sum(
            each.count * (each.milli or each.memory_percent * 10 or (0 if each.memory_mib else MILLI_PER_GPU))
            for each in self.gpus
        )
        return milli, sum(each.count * each.memory_mib for each in self.gpus), self.cpu_milli


class Share(Value):
    """What a pod gets of one GPU. `gpu`: its place on the node. `profile`: of the MIG device; "" for none. `units`: so
    many of the ids that the node offers for it."""

    gpu: int
    milli: int
    memory_mib: int = 0
    profile: str = ""
    units: int = 0


class Placement(Value):
    """Where a pod goes: a node, and for each of the request's `gpus` its shares."""

    node: str
    shares: tuple[tuple[Share, ...], ...] = ()

    @property
    def all_shares(self) -> tuple[Share, ...]:
        """Of all containers."""
        return tuple(share for part in self.shares for share in part)

    @property
    def gpu_milli(self) -> int:
        """Milli-GPU of all GPUs together."""
        return sum(share.milli for share in self.all_shares)


class TakenOfGpu(NamedTuple):
    """What a request takes of a GPU: numbers, or arrays of them for many GPUs. The fields are those of a `Share`."""

    milli: Any
    memory_mib: Any
    profile: str = ""
    units: int = 0


def needed_of_gpu(wanted: GpuRequest, memory_mib: Any, units: Any) -> TakenOfGpu:
    """What a request takes of a GPU with so much memory and so many ids, 1 at least; or of many.

    A part that is not asked for follows from the other, rounded down, so that shares that fill a GPU fit. Of a MIG
    device nothing is taken but the device.
    """
    if wanted.profile:
        return TakenOfGpu(0, 0, wanted.profile)
    if wanted.units:
        milli, memory = MILLI_PER_GPU // units * wanted.units, memory_mib // units * wanted.units
        return TakenOfGpu(milli, memory, units=wanted.units)
    nothing, is_unknown = memory_mib * 0, memory_mib == 0
    memory = memory_mib * wanted.memory_percent // 100 if wanted.memory_percent else nothing + wanted.memory_mib
    milli = nothing + wanted.milli
    if not wanted.milli:
        milli = memory * MILLI_PER_GPU // (memory_mib + is_unknown) * (memory_mib > 0) + MILLI_PER_GPU * is_unknown
    if not wanted.memory_mib and not wanted.memory_percent:
        memory = memory_mib * milli // MILLI_PER_GPU
    return TakenOfGpu(milli, memory)


def share_of(gpu: Gpu, place: int, wanted: GpuRequest) -> Share:
    """What a request takes of the GPU at this place of a node."""
    return Share(place, **needed_of_gpu(wanted, gpu.memory_mib, max(gpu.units, 1))._asdict())
