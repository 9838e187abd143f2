"""The devices that series are about, and the labels by which they name them.

A series is about a GPU, or about a GPU instance of one in MIG mode: what compute instances of one GPU instance use is
not told apart by the driver. Labels are those of dcgm-exporter (internal/pkg/rendermetrics): `UUID` is always the
GPU's, and `GPU_I_ID` with `GPU_I_PROFILE` say which instance of it.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from gpuplane.base.value import Value
from gpuplane.node.core.view import part_view
from gpuplane.node.model.machine import Gpu, MigDevice
from gpuplane.node.model.telemetry import GpuSample


class DeviceKey(NamedTuple):
    """A GPU by its UUID, or a GPU instance of it."""

    gpu: str
    gpu_instance: int | None = None


class GpuIdentity(Value):
    """What names a GPU. A GPU that is lost tells none of it, so it is remembered."""

    index: int
    pci: str
    model: str


class SeriesDevice(Value):
    """A GPU or a GPU instance. `unit_ids`: the units whose holders are its holders.

    `identity`: its labels without its holder. `short_identity`: those that join it with other series.
    """

    key: DeviceKey
    unit_ids: tuple[str, ...]
    identity: Mapping[str, str]
    short_identity: Mapping[str, str]


COMPUTE_SLICES = re.compile(r"^\d+c\.")
"""What the profile of a compute instance says beyond that of its GPU instance: "1c.3g.40gb"."""


def remembered_identities(gpus: tuple[Gpu, ...] | None, known: Mapping[str, GpuIdentity]) -> Mapping[str, GpuIdentity]:
    """The identity of each GPU, as far as it was ever told. GPUs that the machine no longer has are forgotten."""
    if gpus is None:  # not counted now
        return known
    found = dict[str, GpuIdentity]()
    for gpu in gpus:
        before = known.get(gpu.uuid)
        if gpu.uuid and not (gpu.model and gpu.pci) and before is not None:
            found[gpu.uuid] = before.but(pci=gpu.pci or before.pci, model=gpu.model or before.model)
        elif gpu.uuid:
            found[gpu.uuid] = GpuIdentity(index=gpu.index, pci=gpu.pci, model=gpu.model)
    return known if found == known else found


@part_view
def series_devices(gpus: tuple[Gpu, ...], identities: Mapping[str, GpuIdentity]) -> tuple[SeriesDevice, ...]:
    """All devices in the driver's order, each GPU before its instances."""
    devices: list[SeriesDevice] = []
    for gpu in gpus:
        if not gpu.uuid:
            continue
        known = identities.get(gpu.uuid) or GpuIdentity(index=gpu.index, pci=gpu.pci, model=gpu.model)
        short = {"gpu": str(known.index), "UUID": gpu.uuid}
        identity = {
            **short,
            "pci_bus_id": _pci_bus_id(known.pci),
            "device": f"nvidia{known.index}",
            "modelName": known.model,
        }
        devices.append(_device(DeviceKey(gpu.uuid), (gpu.uuid,), identity, short))
        instances: dict[int, list[MigDevice]] = {}
        for each in gpu.mig_devices if gpu.mig_enabled else ():
            instances.setdefault(each.gpu_instance, []).append(each)
        for number, parts in instances.items():
            instance = {"GPU_I_PROFILE": COMPUTE_SLICES.sub("", parts[0].profile), "GPU_I_ID": str(number)}
            uuids = tuple(each.uuid for each in parts)
            devices.append(_device(DeviceKey(gpu.uuid, number), uuids, identity | instance, short | instance))
    return tuple(devices)


def readings_of(sample: GpuSample, device: SeriesDevice) -> Mapping[str, float]:
    """What a sample tells of a GPU, or of a GPU instance: then by the first of its MIG devices that tells."""
    if device.key.gpu_instance is None:
        return sample.readings
    return next((each.readings for each in sample.mig_devices if each.uuid in device.unit_ids and each.readings), {})


def _device(
    key: DeviceKey,
    unit_ids: tuple[str, ...],
    identity: Mapping[str, str],
    short_identity: Mapping[str, str],
) -> SeriesDevice:
    told = {name: value for name, value in identity.items() if value}
    return SeriesDevice(
        key=key,
        unit_ids=unit_ids,
        identity=told,
        short_identity={name: value for name, value in short_identity.items() if value},
    )


def _pci_bus_id(pci: str) -> str:
    """An address as DCGM writes it: `0000:1b:00.0` is `00000000:1B:00.0`."""
    domain, _, rest = pci.partition(":")
    return f"{domain.zfill(8)}:{rest}".upper() if rest else ""
