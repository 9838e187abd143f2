"""A pod, as placement knows it: what it asks for, and where it is."""

from collections.abc import Iterable, Sequence

from gpuplane.base.value import Value
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import GpuRequest, Placement, Request, Share
from gpuplane.kubernetes.contracts.podplacement import PlacedContainer, PlacedGpu, PodPlacement

UnknownParts = tuple[tuple[int, GpuRequest], ...]
"""Of the parts of a pod's request: its place among them, and what it asks for of GPUs that nobody names."""


class Pod(Value):
    """A pod, and its place once it has one.

    `name`: "namespace/name". `containers`: the names of those that `request.gpus` is for, in its order.
    `can_move`: whether it would start again elsewhere if it were ended here. `can_end`: whether Kubernetes can end it
    for others, a static pod it cannot. `comes_back`: whether it starts again on its node at once, as those of a
    DaemonSet. `may_preempt`: whether pods of a lower priority may end for it. `budgets`: which budgets of disruption
    it has. `is_assumed`: nobody says which GPUs it has; its place is a guess. `unknown`: what of its GPUs nobody says,
    and is not in its place yet.
    """

    uid: str
    name: str
    request: Request
    containers: tuple[str, ...] = ()
    priority: int = 0
    placement: Placement | None = None
    can_move: bool = True
    can_end: bool = True
    comes_back: bool = False
    may_preempt: bool = True
    budgets: tuple[str, ...] = ()
    is_assumed: bool = False
    unknown: UnknownParts = ()

    @property
    def has_gpus(self) -> bool:
        """Whether it has some of a GPU."""
        return self.placement is not None and any(self.placement.shares)

    @property
    def gpu_milli(self) -> int:
        """Milli-GPU that it has; 0 without a place."""
        return self.placement.gpu_milli if self.placement is not None else 0

    def with_shares(self, shares: Iterable[Sequence[Share]]) -> "Pod":
        """The same pod, which is assumed to have these shares of what is unknown."""
        assert self.placement is not None
        parts = [*self.placement.shares]
        for (part, _), more in zip(self.unknown, shares, strict=True):
            parts[part] = (*parts[part], *more)
        return self.but(placement=self.placement.but(shares=tuple(parts)), is_assumed=True, unknown=())


def tell_placement(pod: Pod, node: Node) -> PodPlacement:
    """The place of a pod as its node's agent is told of it: by the names of containers and the UUIDs of GPUs."""
    gpus = dict[str, list[PlacedGpu]]()
    placement = pod.placement
    assert placement is not None and placement.node == node.name
    for name, part in zip(pod.containers, placement.shares, strict=True):
        gpus.setdefault(name, []).extend(
            PlacedGpu(node.gpus[share.gpu].id, share.milli, share.memory_mib, share.profile)
            if not share.profile
            else PlacedGpu(node.gpus[share.gpu].id, profile=share.profile)
            for share in part
        )
    return PodPlacement(pod.uid, node.name, tuple(PlacedContainer(name, tuple(each)) for name, each in gpus.items()))
