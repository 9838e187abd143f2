"""Which containers held a device when a fault occurred on it."""

from collections.abc import Iterable
from itertools import chain

from gpuplane.kubernetes.podref import PodRef, find_same_container, may_be_same_container, merge_all_pod_refs
from gpuplane.node.core.health.context import holders_of
from gpuplane.node.core.health.records import without_empty_records
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.health import HealthRecords
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Allocation

UNLISTED_HOLDER = PodRef()
"""Who held a device when kubelet had not listed yet who holds what: whoever it lists then."""


def holders_of_units(units: set[str], allocations: Iterable[Allocation] | None) -> tuple[PodRef, ...]:
    """The containers that hold one of these units, or a share of it, sorted."""
    if allocations is None:
        return (UNLISTED_HOLDER,)
    found = holders_of(each for each in allocations if not units.isdisjoint(map(unit_of, each.devices)))
    return tuple(sorted(found, key=str))


def unit_ids(gpu: Gpu) -> set[str]:
    """UUIDs of a GPU and, in MIG mode, of its MIG devices: what of it a container can hold."""
    return {gpu.uuid, *(device.uuid for device in (gpu.mig_devices if gpu.mig_enabled else ()))}


def apply_kubelet_allocations(
    health: HealthRecords, machine: Machine | None, allocations: Iterable[Allocation]
) -> HealthRecords:
    """The records after kubelet has listed who holds what.

    Findings then name those holders too that were not listed yet, and those that kubelet now names in another way: its
    list tells a pod's name, its checkpoint the UID. A holder that is named in another way has not ended.
    """
    gpus, devices = {gpu.uuid: gpu for gpu in (machine.gpus if machine else None) or ()}, dict(health.devices)
    everywhere = holders_of(allocations)
    for key, record in devices.items():
        if any(not everywhere.issuperset(each.holders) for each in record.findings):
            on_device = holders_of_units(unit_ids(gpus[key]) if key in gpus else {key}, allocations)
            findings = (
                each.but(holders=_replace_unlisted_holders(each.holders, on_device, everywhere))
                for each in record.findings
            )
            devices[key] = record.but(findings=tuple(findings))
    return without_empty_records(health, devices)


def _replace_unlisted_holders(
    holders: tuple[PodRef, ...], device_holders: tuple[PodRef, ...], node_holders: frozenset[PodRef]
) -> tuple[PodRef, ...]:
    """The holders of a finding as kubelet lists them: `device_holders` of its device, `node_holders` of the node."""
    return merge_all_pod_refs(
        chain.from_iterable(_possible_listed_holders(each, device_holders, node_holders) for each in holders)
    )


def _possible_listed_holders(
    holder: PodRef, device_holders: tuple[PodRef, ...], node_holders: frozenset[PodRef]
) -> tuple[PodRef, ...]:
    """The listed containers that a holder may be. One that is not listed any more stays as it is."""
    if holder == UNLISTED_HOLDER:
        return device_holders
    if holder in node_holders or find_same_container(holder, node_holders) is not None:
        return (holder,)
    return tuple(each for each in device_holders if may_be_same_container(holder, each)) or (holder,)
