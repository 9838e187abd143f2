"""Builds a CDI specification from a machine: its devices, the edits of each, and the edits common to all.

A pure and stable function: the same machine gives the same specification, in whatever order it was observed, and a
change of one device does not change the edits of others. The parts are in other modules: `devices` lists the GPUs,
`features` what is not a GPU, `devicenodes` and `driverfiles` make edits, `links` and `hooks` the tasks at a container's
start; `canonicaledits` merges them.

A device that no container could use is omitted, with the reason. Without libcuda these are all GPUs: a container would
start without a usable GPU, and nobody would learn why. The reason has to reach somebody who can repair the node.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuplane.base.text import Text, join
from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi import canonicaledits, devicenodes, devices, driverfiles, features, hooks
from gpuplane.node.core.containers.cdi.devices import SpecDevice
from gpuplane.node.core.containers.cdi.specrequest import ALL_NAME, NONE_NAME, SpecOptions
from gpuplane.node.core.containers.cdi.standins import stand_in_edits, stand_ins_by_name
from gpuplane.node.core.containers.cdi.version import lowest_version
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.node.model.machine import DriverFiles, Machine

VISIBLE_DEVICES_VOID_EDITS = ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",))
"""With this variable NVIDIA's runtime, if there is one, adds no GPUs of its own."""

PLACEHOLDER_DEVICE_EDITS = ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))
"""The edits of the device `none`: CDI does not allow a device without edits."""

REQUIRED_CONTROL_NODE_PATHS = ("/dev/nvidiactl", "/dev/nvidia-uvm")
"""CUDA does not start without these nodes."""

MISSING_NODE_TEXT = "the device node does not exist"

FEATURE_FLAGS_WITHOUT_EFFECT = {
    "enable-explicit-driver-libraries": "containers use the image's own libraries of GLVND and OpenCL",
    "enable-coherent-annotations": "GPUs with coherent memory have no separate CDI kind",
    "disable-multiple-csv-devices": "it applies to Tegra systems only",
}
"""NVIDIA's feature flags that have no effect here, and why."""


class SpecBuildResult(Value):
    """A specification, and the devices that are omitted, each with the reason. `spec`: None if all are omitted."""

    spec: Spec | None
    omission_reason_by_device: Mapping[str, Text] = {}  # by UUID, or by a node's path
    notes: tuple[Text, ...] = ()  # for people: missing files that a container may need, flags without effect


class SpecContents(Value):
    """The contents of a specification by its mode: the edits of each device by its name, and the common ones."""

    device_edits: Mapping[str, ContainerEdits]
    common_edits: ContainerEdits = ContainerEdits()
    omission_reason_by_device: Mapping[str, Text] = {}
    notes: tuple[Text, ...] = ()


def build_spec(machine: Machine, request: SpecOptions) -> SpecBuildResult:
    """The specification for a request. Raises ValueError if the machine has none of the requested devices."""
    found = _spec_contents(machine, request)
    if request.stand_ins:
        common_stand_ins = stand_in_edits(found.common_edits)
        found = found.but(device_edits=stand_ins_by_name(found.device_edits), common_edits=common_stand_ins)
    common = canonicaledits.merge_and_sort_edits((found.common_edits, VISIBLE_DEVICES_VOID_EDITS))
    given = {
        name: canonicaledits.subtract_edits(canonicaledits.merge_and_sort_edits((edits,)), common)
        for name, edits in found.device_edits.items()
    }
    empty = {
        name: ("this device would add nothing to a container")
        for name, edits in given.items()
        if edits == ContainerEdits()
    }
    given = {name: given[name] for name in sorted(given.keys() - empty.keys())}
    if request.with_all_device and given and NONE_NAME not in given:
        given.setdefault(ALL_NAME, canonicaledits.merge_and_sort_edits(given.values()))
    left = {**found.omission_reason_by_device, **empty}
    left = {name: left[name] for name in sorted(left)}
    notes = (*found.notes, *_feature_flag_notes(request))
    if not given:
        return SpecBuildResult(spec=None, omission_reason_by_device=left, notes=notes)
    made = tuple(CdiDevice(name=name, container_edits=edits) for name, edits in given.items())
    spec = Spec(cdi_version="", kind=request.kind, devices=made, container_edits=common)
    return SpecBuildResult(spec=spec.but(cdi_version=lowest_version(spec)), omission_reason_by_device=left, notes=notes)


def _feature_flag_notes(request: SpecOptions) -> Iterator[str]:
    for flag, why in FEATURE_FLAGS_WITHOUT_EFFECT.items():
        if flag in request.feature_flags:
            yield f"the feature flag {flag} has no effect: {why}"


def _spec_contents(machine: Machine, request: SpecOptions) -> SpecContents:
    match request.mode:
        case "gpu":
            return _gpu_contents(machine, request)
        case "imex":
            return _imex_contents(machine, request)
        case _:
            return _feature_contents(machine, request)


def _gpu_contents(machine: Machine, request: SpecOptions) -> SpecContents:
    nobody = NONE_NAME in request.ids
    if nobody and len(set(request.ids)) > 1:
        raise ValueError(f"{NONE_NAME} means no device, and cannot be requested together with others")
    chosen = () if nobody else devices.select_devices(machine, request.ids)
    given, left = devices.assign_device_names(chosen, request.naming)
    notes = tuple(_missing_file_notes(machine, request))
    if why := _unusable_reason(machine, request):
        left = {**{part.uuid: why for part in given.values()}, **left}
        return SpecContents(device_edits={}, omission_reason_by_device=left, notes=notes)
    edits = {name: _device_edits(part, machine, request) for name, part in given.items()} | (
        {NONE_NAME: PLACEHOLDER_DEVICE_EDITS} if nobody else {}
    )
    common = _common_edits(machine, request, _control_node_paths(machine), given.values())
    return SpecContents(device_edits=edits, common_edits=common, omission_reason_by_device=left, notes=notes)


def _unusable_reason(machine: Machine, request: SpecOptions) -> Text:
    """Why no program in a container could use any GPU: it would start without CUDA, and nobody would know why."""
    if driverfiles.lacks_libcuda(_driver_files(machine)):
        return f"no container could use it: {_missing_libcuda_reason(machine, request)}"
    there = _control_node_paths(machine)
    missing = [path for path in REQUIRED_CONTROL_NODE_PATHS if path not in there]
    why = join("; ", (_missing_node_text(machine, path) for path in missing))
    return f"no container could use it: {why}" if missing else ""


def _missing_node_text(machine: Machine, path: str) -> Text:
    left_out = machine.insecure_files.get(path)
    return f"{path} is left out: {left_out}" if left_out else f"{path} does not exist"


def _control_node_paths(machine: Machine) -> list[str]:
    """The control nodes that exist, and the required ones whose numbers are known: the runtime creates a container's
    nodes by their numbers."""
    made = {path for path in REQUIRED_CONTROL_NODE_PATHS if path in machine.device_node_stats}
    return [path for path in devicenodes.CONTROL_NODE_PATHS if path in machine.shared_nodes or path in made]


def _device_edits(device: SpecDevice, machine: Machine, request: SpecOptions) -> ContainerEdits:
    """The edits of a GPU or MIG device. NVIDIA's program creates every link that it gets, so DRM links are here."""
    edits = _node_edits(device.nodes, machine, request)
    if request.hook_program is None or not request.hook_program.is_nvidia:
        return edits
    return edits.but(
        hooks=hooks.nvidia_symlink_hooks(request.hook_program, device.links, hooks.disabled_hooks(request))
    )


def _common_edits(
    machine: Machine, request: SpecOptions, control_node_paths: Iterable[str], spec_devices: Iterable[SpecDevice]
) -> ContainerEdits:
    """The edits of every container: control nodes, the driver's files, and the hooks or what replaces them."""
    files, work = _driver_files(machine) or DriverFiles(), hooks.container_start_tasks(machine.driver, spec_devices)
    sockets = "disable-ipc-discoverer" not in request.feature_flags
    edits = canonicaledits.merge_and_sort_edits(
        (
            _node_edits(control_node_paths, machine, request),
            driverfiles.driver_file_edits(files, request.driver_root, with_sockets=sockets),
        )
    )
    if request.hook_program is None:
        aliases = ContainerEdits(mounts=tuple(driverfiles.library_alias_mounts(files, request.driver_root)))
        return canonicaledits.merge_and_sort_edits((edits, aliases))
    called = hooks.nvidia_hooks if request.hook_program.is_nvidia else hooks.gpuplane_hooks
    return edits.but(hooks=called(request.hook_program, work, hooks.disabled_hooks(request)))


def _node_edits(paths: Iterable[str], machine: Machine, request: SpecOptions) -> ContainerEdits:
    groups = "no-additional-gids-for-device-nodes" not in request.feature_flags
    return devicenodes.device_node_edits(paths, machine.device_node_stats, request.dev_root, with_groups=groups)


def _driver_files(machine: Machine) -> DriverFiles | None:
    return machine.driver.files if machine.driver is not None else None


def _missing_libcuda_reason(machine: Machine, request: SpecOptions) -> Text:
    """Why libcuda is missing."""
    if machine.driver is None:
        return "the machine has no driver"
    return machine.driver.files_error or f"the driver has no {driverfiles.LIBCUDA_PREFIX}* below {request.driver_root}"


def _missing_file_notes(machine: Machine, request: SpecOptions) -> Iterator[Text]:
    """A note for each missing file that a container with CUDA, or for management, may need."""
    files = _driver_files(machine)
    if files is None or driverfiles.lacks_libcuda(files):
        yield _missing_libcuda_reason(machine, request)
    else:
        if machine.driver is not None and machine.driver.files_error:
            yield machine.driver.files_error
        yield from driverfiles.omitted_file_notes(machine.insecure_files)
    if files is not None:
        yield from driverfiles.missing_file_notes(files)
    for path in REQUIRED_CONTROL_NODE_PATHS:
        if path not in machine.shared_nodes and path not in machine.insecure_files:
            yield f"{path} does not exist"


def _imex_contents(machine: Machine, request: SpecOptions) -> SpecContents:
    there, away = features.select_imex_channels(machine, request.ids)
    given = {name: _node_edits((path,), machine, request) for name, path in there.items()}
    return SpecContents(device_edits=given, omission_reason_by_device=dict.fromkeys(away, MISSING_NODE_TEXT))


def _feature_contents(machine: Machine, request: SpecOptions) -> SpecContents:
    """The contents of a mode that has one device, which is not a GPU."""
    if unknown := [id for id in request.ids if id != ALL_NAME]:
        raise ValueError(f"no such device: {', '.join(map(repr, unknown))}; {request.mode} has one device, {ALL_NAME}")
    paths = features.feature_node_paths(machine, request.mode)
    if not paths:
        return SpecContents(
            device_edits={},
            omission_reason_by_device={features.NODE_PATTERNS_BY_MODE[request.mode][1]: MISSING_NODE_TEXT},
        )
    edits = _node_edits(paths, machine, request)
    if request.mode == "management":
        notes = tuple(_missing_file_notes(machine, request))
        return SpecContents(
            device_edits={ALL_NAME: edits}, common_edits=_common_edits(machine, request, (), ()), notes=notes
        )
    files = _driver_files(machine)
    if request.mode == "gds" and files is not None:
        edits = edits.but(mounts=tuple(driverfiles.gpudirect_storage_mounts(files, request.driver_root)))
    return SpecContents(device_edits={ALL_NAME: edits})
