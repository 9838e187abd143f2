"""What the annotation `gpuplane.io/gpus` of our Node is to say: a pure view.

`kubernetes/contracts/nodeannotation.py` has its text.

What is over in a moment is not said: an agent that starts again writes what the one before it wrote.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpuplane.base.text import clip
from gpuplane.kubernetes.contracts.nodeannotation import GIVEN_OUT_STATES, holding_sort_key
from gpuplane.kubernetes.contracts.nodegpus import (
    Holding,
    NodeGpu,
    NodeGpus,
    NodeMigDevice,
    OfferedResource,
    SharingStrategy,
    State,
)
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import missing_information_reason, offer
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.availability import availability
from gpuplane.node.core.health.devicehealth import health_with_parents
from gpuplane.node.core.kinds.table import is_plain_unit
from gpuplane.node.core.serving import standby_reason
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.view import part_view
from gpuplane.node.model import sharelayout
from gpuplane.node.model.health import NODE_RECORD_KEY, DeviceHealth
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.views import Availability, Resource

MAX_NAME_CHARACTERS = 96  # characters of a model, a profile or a code; NVML's names are not longer


def node_gpus(snapshot: Snapshot) -> NodeGpus | None:
    """What the annotation is to say; None while it cannot be said, so that what was said last stays."""
    missing = missing_information_reason(snapshot)
    allocations = held_allocations(snapshot)
    if standby_reason(snapshot) or allocations is None or (missing is not None and missing.kind == "waiting"):
        return None
    return _derive_node_gpus.of(
        snapshot,
        snapshot.machine,
        health_with_parents(snapshot),
        availability(snapshot),
        offer(snapshot).resources,
        allocations,
    )


@part_view
def _derive_node_gpus(
    machine: Machine | None,
    health: tuple[DeviceHealth, ...],
    units: tuple[Availability, ...],
    resources: tuple[Resource, ...],
    allocations: tuple[Allocation, ...],
) -> NodeGpus:
    gpus = (machine.gpus if machine is not None else None) or ()
    offered = {each.name: OfferedResource(each.name, _strategy(each), each.share_mib) for each in resources}
    health_by_index = {each.index: each for each in health if each.index}
    unit_by_index = {each.index: each for each in units if each.index}

    def facts(index: str) -> dict[str, Any]:
        unit = unit_by_index.get(index, Availability(device="", index=index))
        state, code = _state_and_code(health_by_index.get(index), unit)
        return {
            "index": index,
            "resource": offered.get(unit.resource),
            "ids": unit.id_count,
            "state": state,
            "code": code,
        }

    node = next((each for each in health if each.device == NODE_RECORD_KEY), None)
    return NodeGpus(
        gpus=tuple(_describe_gpu(gpu, facts) for gpu in sorted(gpus, key=lambda each: each.index)),
        holdings=_holdings(gpus, offered, allocations),
        state=node.state if node is not None else "healthy",
        code=clip(node.code, MAX_NAME_CHARACTERS) if node is not None else "",
    )


def _strategy(resource: Resource) -> SharingStrategy:
    if resource.share_mib:
        return "memory"
    if not resource.shared:
        return ""
    return "mps" if resource.uses_mps else "time-slicing"


def _describe_gpu(gpu: Gpu, facts: Callable[[str], dict[str, Any]]) -> NodeGpu:
    return NodeGpu(
        uuid=gpu.uuid,
        model=clip(gpu.model, MAX_NAME_CHARACTERS),
        memory_mib=gpu.memory_mib,
        mig=tuple(
            NodeMigDevice(
                profile=clip(each.profile, MAX_NAME_CHARACTERS),
                gpu_instance=each.gpu_instance,
                compute_instance=each.compute_instance,
                **facts(f"{gpu.index}:{each.mig_index}"),
            )
            for each in sorted(gpu.mig_devices, key=lambda each: each.mig_index)
        ),
        **facts(str(gpu.index)),
    )


def _state_and_code(health: DeviceHealth | None, unit: Availability) -> tuple[State, str]:
    """How a device stands. A reason that is over in a moment, as that a plugin registers, does not count."""
    state, code = (health.state, health.code) if health is not None else ("healthy", "")
    reasons = [each for each in unit.reasons if each.kind != "waiting"]
    if state in GIVEN_OUT_STATES and any(each.kind != "degraded" for each in reasons):
        state = "withheld"
    return state, clip(next(filter(None, (code, *(each.code for each in reasons))), ""), MAX_NAME_CHARACTERS)


def _holdings(
    gpus: Sequence[Gpu], offered: Mapping[str, OfferedResource], allocations: Iterable[Allocation]
) -> tuple[Holding, ...]:
    """What containers hold of GPUs, in one order."""
    index_by_id = {gpu.uuid: str(gpu.index) for gpu in gpus if gpu.uuid}
    index_by_id |= {each.uuid: f"{gpu.index}:{each.mig_index}" for gpu in gpus for each in gpu.mig_devices if each.uuid}
    counts: Counter[tuple[PodRef, OfferedResource, str]] = Counter()
    for allocation in allocations:
        holder, resource = _named_holder(allocation.holder), _held_resource(allocation, offered)
        for id in allocation.devices:
            unit = unit_of(id)
            if unit in index_by_id or not is_plain_unit(unit):
                counts[holder, resource, index_by_id.get(unit, unit)] += 1
    found = (Holding(holder, resource, device, ids) for (holder, resource, device), ids in counts.items())
    return tuple(sorted(found, key=holding_sort_key))


def _named_holder(holder: PodRef) -> PodRef:
    """The holder by its name, or by its UID where that is all that is known."""
    return (
        holder.but(uid="") if holder.namespace and holder.name else PodRef(uid=holder.uid, container=holder.container)
    )


def _held_resource(allocation: Allocation, offered: Mapping[str, OfferedResource]) -> OfferedResource:
    """The resource as the container got it: of shares that are offered otherwise by now, as they were."""
    layout = sharelayout.decode(allocation.share_layout) if allocation.share_layout else None
    if layout is not None and layout.kind == "memory":
        return OfferedResource(allocation.resource, "memory", layout.share_mib)
    return offered.get(allocation.resource, OfferedResource(allocation.resource))
