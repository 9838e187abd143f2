"""What containers hold stays theirs, whatever the configuration calls it now.

Kubelet counts use per resource name and device id. When a live change gives a GPU another name, another layout or other
shares, kubelet believes the new ids free while a container still works on the old one. So every id that overlaps with
a held one that is no longer offered is withheld, and the pod is the reason.
"""

from collections.abc import Iterable, Mapping

from gpuplane.model.snapshot import Allocation
from gpuplane.model.views import Resource, Unit


def withheld(resources: Iterable[Resource], allocations: Iterable[Allocation]) -> Mapping[tuple[str, str], str]:
    """(resource, id) → why it must wait, for each offered id that overlaps what a container holds otherwise."""
    offered = {(resource.name, device.id): device.unit for resource in resources for device in resource.devices}
    reasons: dict[tuple[str, str], str] = {}
    for allocation in allocations:
        for held in allocation.devices:
            if (allocation.resource, held) in offered:
                continue  # the same id under the same name: kubelet knows that it is in use
            who = f"pod {allocation.pod} ({allocation.container})" if allocation.pod else "a pod that is being admitted"
            for key, unit in offered.items():
                if _overlaps(unit, held):
                    reasons.setdefault(key, f"held by {who} as {allocation.resource} until that ends")
    return reasons


def _overlaps(unit: Unit, held: str) -> bool:
    base = held.split("::", 1)[0]
    return base in (unit.id, unit.gpu)
