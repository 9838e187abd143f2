"""Units and their names: which GPU is offered as which resource (field guide: NVIDIA's plugin, api/config/v1)."""

import re

from gpuplane.model.config import Naming, Settings
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.views import Left, Offered, Resource, Unit

GPU = "nvidia.com/gpu"


def named(machine: Machine, settings: Settings) -> tuple[tuple[Resource, ...], tuple[Left, ...]]:
    """The resources of a machine, all devices without trouble, and the units that no name takes."""
    resources: dict[str, list[Offered]] = {}
    left: list[Left] = []
    for gpu in machine.gpus or ():
        name, reason = _name(gpu, settings)
        if name is None:
            left.append(Left(unit=gpu.uuid or f"GPU {gpu.index}", reason=reason))
        else:
            resources.setdefault(name, []).append(Offered(id=gpu.uuid, unit=_unit(gpu)))
    return tuple(Resource(name=name, devices=tuple(devices)) for name, devices in resources.items()), tuple(left)


def _name(gpu: Gpu, settings: Settings) -> tuple[str | None, str]:
    if not gpu.uuid:
        return None, "the driver does not tell its UUID: " + "; ".join(fault.message for fault in gpu.faults)
    if gpu.mig is not None and gpu.mig.enabled:
        return None, "it is in MIG mode, and migStrategy is none"
    for naming in settings.gpus or (Naming(pattern="*", name=GPU),):
        if matches(naming.pattern, gpu.model):
            return naming.name, ""
    return None, f"no pattern of resources.gpus matches its model {gpu.model!r}"


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches: `*` stands for any run of characters, all else for itself."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def _unit(gpu: Gpu) -> Unit:
    return Unit(
        id=gpu.uuid,
        gpu=gpu.uuid,
        index=str(gpu.index),
        model=gpu.model,
        numa=gpu.numa,
        pci=gpu.pci,
        nodes=gpu.nodes,
    )
