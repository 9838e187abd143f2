"""The GPUs and MIG devices of a machine in a CDI specification: their names and nodes, or why they are omitted.

A MIG device needs the nodes of its GPU, its GPU instance and its compute instance; also DRM nodes if its profile has
graphics. A GPU in MIG mode is not a device (nvidia-container-toolkit 1.20, internal/platform-support/dgpu,
pkg/nvcdi/{full-gpu,mig-device}-nvml.go). A broken device is omitted, with the reason, and changes no other.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from gpuplane.base.text import Text, join
from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi import links
from gpuplane.node.core.containers.cdi.links import Link
from gpuplane.node.core.containers.cdi.specrequest import ALL_NAME, NamingStrategy
from gpuplane.node.core.lookup import find_device
from gpuplane.node.model.machine import Fault, Gpu, Machine, MigDevice
from gpuplane.node.model.snapshot import Snapshot

DEVICE_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
"""The pattern of valid device names (CNCF container-device-interface 1.1.0, pkg/parser)."""

MIG_CAPABILITY_NODE_COUNT = 2
"""The number of a MIG device's own nodes: of its GPU instance and of its compute instance."""


class SpecDevice(Value):
    """A GPU or MIG device of a specification. With an `omission_reason` it is omitted."""

    uuid: str
    gpu_uuid: str  # UUID of the GPU that it is or lies in
    index: str  # "0", or "0:1" for MIG device 1 of GPU 0
    nodes: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()  # to its DRM nodes
    omission_reason: Text = ""


def list_spec_devices(machine: Machine) -> Iterator[SpecDevice]:
    """Every GPU and MIG device, in an order that does not depend on the order of the observation."""
    for gpu in sorted(machine.gpus or (), key=lambda gpu: (gpu.index, gpu.pci, gpu.uuid)):
        whole = SpecDevice(uuid=gpu.uuid, gpu_uuid=gpu.uuid, index=str(gpu.index), nodes=gpu.device_nodes)
        if gpu_problem := _gpu_omission_reason(gpu):
            yield whole.but(omission_reason=gpu_problem)
        elif not gpu.mig_enabled:
            yield whole.but(nodes=(*gpu.device_nodes, *gpu.dri), links=tuple(links.drm_links(gpu)))
        else:
            instead = "its MIG devices are listed instead" if gpu.mig_devices else "it has no MIG devices"
            yield whole.but(omission_reason=f"it is in MIG mode, and {instead}")
        yield from (_mig_spec_device(gpu, each, gpu_problem) for each in _sorted_mig_devices(gpu))


def _sorted_mig_devices(gpu: Gpu) -> Sequence[MigDevice]:
    devices = gpu.mig_devices if gpu.mig_enabled else ()
    return sorted(devices, key=lambda each: (each.mig_index, each.gpu_instance, each.compute_instance, each.uuid))


def _mig_spec_device(gpu: Gpu, device: MigDevice, gpu_omission: Text) -> SpecDevice:
    has_graphics = "+gfx" in device.profile
    own = describe_missing_nodes(device.faults)
    if not own and len(device.device_nodes) < MIG_CAPABILITY_NODE_COUNT:
        own = "the agent does not know the device nodes of its GPU instance and compute instance"
    return SpecDevice(
        uuid=device.uuid,
        gpu_uuid=gpu.uuid,
        index=f"{gpu.index}:{device.mig_index}",
        nodes=(*gpu.device_nodes, *device.device_nodes, *(gpu.dri if has_graphics else ())),
        links=tuple(links.drm_links(gpu)) if has_graphics else (),
        omission_reason=gpu_omission or ("" if device.uuid else "the driver does not report its UUID") or own,
    )


def _gpu_omission_reason(gpu: Gpu) -> Text:
    """Why no container can use a GPU or a MIG device of it; "" if containers can."""
    if not gpu.uuid:
        return _with_fault_messages("the driver does not report its UUID", gpu.faults)
    if not gpu.device_nodes:
        return _with_fault_messages("the agent does not know its device node", gpu.faults)
    return describe_missing_nodes(gpu.faults)


def describe_missing_nodes(faults: Iterable[Fault]) -> Text:
    """Which nodes of a device do not exist; "" if all do."""
    return join("; ", (fault.message for fault in faults if fault.code == "node-missing"))


def _with_fault_messages(reason: Text, faults: Iterable[Fault]) -> Text:
    why = join("; ", (fault.message for fault in faults))
    return f"{reason}: {why}" if why else reason


def select_devices(machine: Machine, ids: Iterable[str]) -> Sequence[SpecDevice]:
    """The devices with these ids; all for (). A GPU's id selects its MIG devices too.

    Raises ValueError for an id that no device of this machine has.
    """
    every, wanted = list(list_spec_devices(machine)), list(ids)
    if not wanted or ALL_NAME in wanted:
        return every
    known = Snapshot(machine=machine)
    meant = {id: find_device(known, id) or id for id in wanted}
    there = {name for part in every for name in _identifiers_of_device(part)}
    if unknown := [id for id, name in meant.items() if name not in there]:
        indices = ", ".join(part.index for part in every) or "none"
        raise ValueError(
            f"no such device: {', '.join(map(repr, unknown))}; the devices are: {indices}; you can also use a UUID"
        )
    return [part for part in every if not _identifiers_of_device(part).isdisjoint(meant.values())]


def _identifiers_of_device(device: SpecDevice) -> Set[str]:
    return {device.uuid, device.gpu_uuid, device.index} - {""}


def assign_device_names(
    found: Iterable[SpecDevice], naming_strategies: Sequence[NamingStrategy]
) -> tuple[Mapping[str, SpecDevice], Mapping[str, Text]]:
    """(name → device, key → reason of each omitted device). Of two devices with one name the first gets it."""
    given: dict[str, SpecDevice] = {}
    left: dict[str, Text] = {}
    for part in found:
        own = [_device_name(part, each) for each in naming_strategies]
        if reason := part.omission_reason or next(
            (why for name in own if (why := _device_name_problem(name, given))), ""
        ):
            left[_unique_key_of_omitted_device(part, {*left, *(each.uuid for each in given.values())})] = reason
        else:
            given |= dict.fromkeys(own, part)
    return given, left


def _unique_key_of_omitted_device(part: SpecDevice, used_keys: Set[str]) -> str:
    """A key for an omitted device: its UUID, or else its node."""
    keys = (part.uuid, *part.nodes[:1], f"device {part.index}")
    return next(key for key in keys if key and key not in used_keys)


def _device_name(part: SpecDevice, naming: NamingStrategy) -> str:
    """The device's name by a strategy (pkg/nvcdi/namer.go)."""
    kind = "mig" if ":" in part.index else "gpu"
    return {"index": part.index, "type-index": f"{kind}{part.index}", "uuid": part.uuid}[naming]


def _device_name_problem(name: str, given: Mapping[str, SpecDevice]) -> Text:
    if not DEVICE_NAME_PATTERN.fullmatch(name):
        return f"{name!r} is not a valid name of a CDI device"
    return f"device {given[name].index} has the same name, {name}" if name in given else ""
