"""Units: the physical things of a machine that can be given out. A whole GPU is one, and so is each MIG device."""

from collections.abc import Iterable, Iterator

from gpuplane.model.machine import Fault, Gpu, Machine, MigDevice
from gpuplane.model.status import DRIVER
from gpuplane.model.text import join
from gpuplane.model.views import Reason, Unit


def units(machine: Machine, *, mig: bool, whole: bool = False) -> Iterator[tuple[Unit, Reason | None]]:
    """Every unit in the order of the driver, and why it cannot be given out by any name, or None.

    `mig`: whether MIG devices are looked at. Without it a GPU in MIG mode is one unit, which cannot be given out unless
    `whole` says that it can.
    """
    for gpu in machine.gpus or ():
        if not gpu.uuid:
            yield _whole(gpu), _untold("UUID", gpu.faults)
        elif not gpu.mig_enabled:
            yield _whole(gpu), None
        elif not mig:
            yield _whole(gpu), None if whole else _configured("it is in MIG mode, and migStrategy is none")
        elif not gpu.mig_devices:
            yield _whole(gpu), _configured("it is in MIG mode and has no MIG devices")
        else:
            yield from ((_part(gpu, device), _unknown(device)) for device in gpu.mig_devices)


def _whole(gpu: Gpu) -> Unit:
    return Unit(
        id=gpu.uuid,
        gpu=gpu.uuid,
        index=str(gpu.index),
        model=gpu.model,
        numa=gpu.numa,
        pci=gpu.pci,
        nodes=gpu.nodes,
        memory_mib=gpu.memory_mib,
        compute_capability=gpu.compute_capability,
    )


def _part(gpu: Gpu, device: MigDevice) -> Unit:
    """A MIG device: it is reached through its GPU's node and the two of its own (internal/rm/nvml_devices.go)."""
    return Unit(
        id=device.uuid,
        gpu=gpu.uuid,
        index=f"{gpu.index}:{device.slot}",
        model=gpu.model,
        profile=device.profile,
        numa=gpu.numa,
        pci=gpu.pci,
        nodes=(*gpu.nodes, *device.nodes),
        memory_mib=device.memory_mib,
        compute_capability=gpu.compute_capability,
    )


def _unknown(device: MigDevice) -> Reason | None:
    if device.uuid and device.profile:
        return None
    return _untold("profile" if device.uuid else "UUID", device.faults)


def _untold(what: str, faults: Iterable[Fault]) -> Reason:
    why = join("; ", (fault.message for fault in faults))
    text = f"the driver does not tell its {what}{': ' if why else ''}{why}"
    return Reason(kind="problem", text=text, part=DRIVER.name)


def _configured(text: str) -> Reason:
    return Reason(kind="configured", text=text)
