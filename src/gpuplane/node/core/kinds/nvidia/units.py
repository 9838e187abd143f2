"""Units: what of a machine can be allocated. A whole GPU is one, and so is each MIG device."""

from collections.abc import Iterable, Iterator

from gpuplane.base.text import Text, join
from gpuplane.node.model.machine import Fault, Gpu, Machine, MigDevice
from gpuplane.node.model.reasons import ReasonCode
from gpuplane.node.model.status import DRIVER_PART
from gpuplane.node.model.views import Reason, Unit


def list_units(
    machine: Machine, *, with_mig_devices: bool, whole_mig_gpus: bool = False
) -> Iterator[tuple[Unit, Reason | None]]:
    """Every unit in the order of the driver, and why it cannot be offered under any name, or None.

    Without `with_mig_devices` a GPU in MIG mode is one unit; it can be offered only with `whole_mig_gpus`.
    """
    for gpu in machine.gpus or ():
        if not gpu.uuid:
            yield _gpu_unit(gpu), _not_reported_reason("UUID", gpu.faults)
        elif not gpu.mig_enabled:
            yield _gpu_unit(gpu), None
        elif not with_mig_devices:
            excluded = _excluded_by_config("mig-mode", "it is in MIG mode, and migStrategy is none")
            yield _gpu_unit(gpu), None if whole_mig_gpus else excluded
        elif not gpu.mig_devices:
            yield _gpu_unit(gpu), _excluded_by_config("mig-without-devices", "it is in MIG mode and has no MIG devices")
        else:
            yield from ((_mig_unit(gpu, device), _reason_if_not_reported(device)) for device in gpu.mig_devices)


def _gpu_unit(gpu: Gpu) -> Unit:
    return Unit(
        id=gpu.uuid,
        gpu=gpu.uuid,
        index=str(gpu.index),
        model=gpu.model,
        numa=gpu.numa,
        pci=gpu.pci,
        device_nodes=gpu.device_nodes,
        memory_mib=gpu.memory_mib,
        compute_capability=gpu.compute_capability,
    )


def _mig_unit(gpu: Gpu, device: MigDevice) -> Unit:
    """A MIG device: it is reached through its GPU's node and the two of its own (internal/rm/nvml_devices.go)."""
    return Unit(
        id=device.uuid,
        gpu=gpu.uuid,
        index=f"{gpu.index}:{device.mig_index}",
        model=gpu.model,
        profile=device.profile,
        numa=gpu.numa,
        pci=gpu.pci,
        device_nodes=(*gpu.device_nodes, *device.device_nodes),
        memory_mib=device.memory_mib,
        compute_capability=gpu.compute_capability,
    )


def _reason_if_not_reported(device: MigDevice) -> Reason | None:
    if device.uuid and device.profile:
        return None
    return _not_reported_reason("profile" if device.uuid else "UUID", device.faults)


def _not_reported_reason(property_name: str, faults: Iterable[Fault]) -> Reason:
    why = join("; ", (fault.message for fault in faults))
    text = f"the driver does not report its {property_name}{': ' if why else ''}{why}"
    return Reason(kind="problem", text=text, part=DRIVER_PART.name, code="not-described")


def _excluded_by_config(code: ReasonCode, text: Text) -> Reason:
    return Reason(kind="configured", text=text, code=code)
