"""What an observation of the machine changes. Not seen is not gone: see `merge_observation`."""

from collections.abc import Iterator
from typing import TypeVar

from gpuplane.node.model.machine import DeviceList, Fault, Gpu, Machine, Mig, MigDevice

DeviceT = TypeVar("DeviceT", Gpu, MigDevice)

GPU_WITH_NOTHING_KNOWN = Gpu(index=-1)
MIG_DEVICE_WITH_NOTHING_KNOWN = MigDevice(uuid="", profile="", gpu_instance=0, mig_index=-1)
"""A GPU and a MIG device of which nothing is known."""

NOT_OBSERVED_FAULT = Fault(
    code="not-looked", message="the driver was released, and the machine has not been observed since"
)


def mark_not_observed_since_release(machine: Machine) -> Machine:
    """A machine whose driver was released: until the next observation that counts the GPUs, it may be another one."""
    return machine.but(faults=(*(fault for fault in machine.faults if fault != NOT_OBSERVED_FAULT), NOT_OBSERVED_FAULT))


def replace_gpu_of_same_uuid(machine: Machine | None, gpu: Gpu) -> Machine | None:
    """A machine after a newer observation of one GPU of it."""
    if machine is None or machine.gpus is None:
        return machine
    return machine.but(
        gpus=tuple(_keep_known_distances(old, gpu) if old.uuid == gpu.uuid else old for old in machine.gpus)
    )


def _keep_known_distances(old: Gpu, gpu: Gpu) -> Gpu:
    """The newer GPU; an observation of one GPU alone may not tell its distances to the others."""
    return gpu.but(index=old.index, distances=gpu.distances or old.distances)


def merge_observation(before: Machine | None, observed: Machine) -> Machine:
    """The machine after an observation.

    If the GPUs could not be counted, those observed before stay, with the machine's faults. If the driver did not
    describe all of a GPU or MIG device, the rest is filled in from before. The numbers of its device nodes stay too.
    """
    if before is None or before.gpus is None:
        return observed
    seen = _merge_gpus(before, before.gpus, observed)
    names = {node for gpu in seen.gpus or () for node in _device_nodes(gpu) if node not in observed.device_node_stats}
    numbers = {node: before.device_node_stats[node] for node in names if node in before.device_node_stats}
    return seen.but(device_node_stats={**observed.device_node_stats, **numbers}) if numbers else seen


def merge_devices(before: DeviceList | None, observed: DeviceList) -> DeviceList:
    """The devices of a plain kind after an observation. If they could not be counted, those from before stay."""
    return observed if before is None or observed.devices is not None else observed.but(devices=before.devices)


def _device_nodes(gpu: Gpu) -> Iterator[str]:
    """The device nodes of a GPU and of its MIG devices."""
    yield from (*gpu.device_nodes, *gpu.dri)
    for device in gpu.mig_devices:
        yield from device.device_nodes


def _merge_gpus(before: Machine, gpus: tuple[Gpu, ...], observed: Machine) -> Machine:
    """The machine, without the numbers of device nodes."""
    if observed.gpus is None:
        faults = (*observed.faults, *(fault for fault in before.faults if fault == NOT_OBSERVED_FAULT))
        return observed.but(gpus=gpus, driver=observed.driver or before.driver, faults=faults)
    uuids = {gpu.uuid for gpu in observed.gpus}
    missing = tuple(old for old in gpus if old.uuid not in {"", *uuids})
    return observed.but(gpus=tuple(_fill_gaps_of_gpu(gpu, gpus, missing) for gpu in observed.gpus))


def _fill_gaps_of_gpu(gpu: Gpu, before: tuple[Gpu, ...], gpus_not_observed: tuple[Gpu, ...]) -> Gpu:
    """A GPU, filled in with what the driver told about it before and not this time.

    One without a UUID can only be one of the `gpus_not_observed`: those whose UUIDs were not observed this time.
    """
    old = next((old for old in (before if gpu.uuid else gpus_not_observed) if _is_same_gpu(old, gpu)), None)
    if old is None:
        return gpu
    if gpu.faults or not gpu.uuid:
        gpu = _fill_missing(gpu, old, GPU_WITH_NOTHING_KNOWN)
    if gpu.mig and old.mig:
        known = {device.uuid: device for device in old.mig.devices}
        devices = (_fill_mig_device(device, known.get(device.uuid), gpu) for device in gpu.mig.devices)
        gpu = gpu.but(mig=_fill_partitions(gpu.mig.but(devices=tuple(devices)), old.mig))
    return gpu


def _fill_partitions(mig: Mig, old: Mig) -> Mig:
    """A GPU's partitioning with what does not change about the card; its instances where the devices are the same."""
    profiles, needs_reset = mig.profiles or old.profiles, mig.needs_reset
    instances, devices = mig.instances, {device.uuid for device in mig.devices}
    if instances is None and mig.enabled and devices == {device.uuid for device in old.devices}:
        instances = old.instances
    needs_reset = old.needs_reset if needs_reset is None else needs_reset
    return mig.but(profiles=profiles, needs_reset=needs_reset, instances=instances)


def _fill_mig_device(device: MigDevice, old: MigDevice | None, gpu: Gpu) -> MigDevice:
    """A MIG device, in the same way; a fault of its GPU may be why the driver did not describe all of it."""
    return (
        device
        if old is None or not (device.faults or gpu.faults)
        else _fill_missing(device, old, MIG_DEVICE_WITH_NOTHING_KNOWN)
    )


def _is_same_gpu(old: Gpu, gpu: Gpu) -> bool:
    """Whether this GPU was observed before: by its UUID, else by its PCI address, else by its index."""
    if gpu.uuid:
        return old.uuid == gpu.uuid
    return old.pci == gpu.pci if gpu.pci else old.index == gpu.index


def _fill_missing(device: DeviceT, old: DeviceT, empty: DeviceT) -> DeviceT:
    """A GPU or MIG device; fields that are as in `empty` are filled in from `old`, but not its faults."""
    fields = device.__struct_fields__
    known = {field: value for field in fields if (value := getattr(device, field)) != getattr(empty, field)}
    return old.but(**{**known, "faults": device.faults})
