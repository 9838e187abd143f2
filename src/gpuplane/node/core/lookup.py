"""Finding a device by the names that people use for it: UUID, index or PCI address of a GPU, id of another device."""

import re

from gpuplane.node.core.kinds.kind import Kind
from gpuplane.node.core.kinds.table import PLAIN_KINDS
from gpuplane.node.model.health import NODE_RECORD_KEY
from gpuplane.node.model.machine import Device, Gpu, MigDevice
from gpuplane.node.model.snapshot import Snapshot

ALL_DEVICES_NAME = "all"
"""The word for every device of the node."""

PCI_ADDRESS_PATTERN = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII | re.IGNORECASE)
"""A PCI address as people write it. The domain is 0 if they leave it out."""


def accepted_device_names(gpu: Gpu, device: MigDevice | None = None) -> tuple[str, ...]:
    """The names of a GPU, or of a MIG device of it; PCI addresses as `normalize_device_name` writes them."""
    if device is not None:
        return device.uuid, f"{gpu.index}:{device.mig_index}"
    return tuple(name for name in (gpu.uuid, str(gpu.index), normalize_device_name(gpu.pci)) if name)


def plain_device_names(kind: Kind, device: Device) -> tuple[str, ...]:
    """The names of a device of a plain kind: its id, alone and with its kind."""
    return kind.unit_id(device.id), device.id


def normalize_device_name(name: str) -> str:
    """A PCI address as sysfs writes it, 0000:3b:00.0: lspci leaves out the domain, nvidia-smi has 00000000:3B:00.0.
    Any other name is returned as it is."""
    address = PCI_ADDRESS_PATTERN.fullmatch(name)
    return name if address is None else f"{int(address[1] or '0', 16):04x}:{address[2].lower()}"


def find_device(snapshot: Snapshot, name: str) -> str | None:
    """The UUID of the device of this name, "" for all devices of the node; None where there is none.

    A device that is not there now is known by its UUID if there is a record of it.
    """
    if name == ALL_DEVICES_NAME:
        return NODE_RECORD_KEY
    normalized = normalize_device_name(name)
    for gpu in snapshot.gpus:
        if normalized in accepted_device_names(gpu):
            return gpu.uuid or None
        for device in gpu.mig_devices:
            if normalized in accepted_device_names(gpu, device):
                return device.uuid
    for kind in PLAIN_KINDS.values():
        for other in (snapshot.devices[kind.name].devices if kind.name in snapshot.devices else None) or ():
            if name in plain_device_names(kind, other):
                return kind.unit_id(other.id)
    health = snapshot.ledger.health
    return name if name and health is not None and name in health.devices else None
