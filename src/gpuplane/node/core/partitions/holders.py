"""Who holds which part of a GPU, by what kubelet shows and by what we have just granted."""

from collections.abc import Iterable, Mapping

from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import ADMITTED_TEXT
from gpuplane.node.core.partitions.layouts import Placement
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.snapshot import Allocation

Names = tuple[str, ...]
"""Pods, as "namespace/name", for people."""


class HeldParts(Value):
    """Who holds parts of one GPU. `compute_instances`: (placement of the GPU instance, id) → who.

    `whole`: who holds the GPU itself, or a MIG device of it that no longer exists: its container has the GPU's node.
    """

    instances: Mapping[Placement, Names] = {}
    compute_instances: Mapping[tuple[Placement, int], Names] = {}
    whole: Names = ()

    @property
    def anyone(self) -> Names:
        """Who holds anything of it."""
        return tuple(dict.fromkeys((*self.whole, *(name for names in self.instances.values() for name in names))))


def held_parts(gpu: Gpu, allocations: Iterable[Allocation], mig_parents: Mapping[str, str]) -> HeldParts:
    """Who holds what of this GPU. `mig_parents`: MIG device → its GPU, also of those that no longer exist."""
    devices = {each.uuid: each for each in gpu.mig_devices}
    places = {each.id: each.placement for each in gpu.gpu_instances}
    instances: dict[Placement, list[str]] = {}
    compute: dict[tuple[Placement, int], list[str]] = {}
    whole: list[str] = []
    for allocation in allocations:
        pod = allocation.holder
        name = pod.pod_name_or_uid or ADMITTED_TEXT
        for unit in dict.fromkeys(map(unit_of, allocation.devices)):
            if (device := devices.get(unit)) is not None and device.gpu_instance in places:
                place = places[device.gpu_instance]
                instances.setdefault(place, []).append(name)
                compute.setdefault((place, device.compute_instance), []).append(name)
            elif unit in devices or unit == gpu.uuid or mig_parents.get(unit) == gpu.uuid:
                whole.append(name)
    return HeldParts(
        instances={place: tuple(dict.fromkeys(names)) for place, names in instances.items()},
        compute_instances={key: tuple(dict.fromkeys(names)) for key, names in compute.items()},
        whole=tuple(dict.fromkeys(whole)),
    )
