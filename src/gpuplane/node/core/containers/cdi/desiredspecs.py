"""The CDI specifications that this node should have on disk, and why a device cannot be allocated by CDI.

Rules that must not change:
- Nothing is removed for lack of knowledge. Before machine and configuration are known, and while `auto` does not know
  the runtime, the files stay as they are; before it is known what containers hold, nothing is removed from them.
- A device that a container holds stays in its file, even if it is no longer desired: kubelet names it again at every
  restart of that container. It gets the edits that it has on the machine now, or keeps the old ones if the machine no
  longer has it. Kubelet holds UUIDs; so a device with another name (an index, a channel, a feature) stays while any
  container holds anything.
- A device that two files define is unresolvable. So we do not define what another program's file defines, and do not
  allocate it meanwhile. Only a device that this machine could not describe again stays in our file.
- A device is allocated only after its current edits are on disk. The common edits of a file may be older for a moment.
"""

from collections.abc import Collection, Iterator, Mapping

from gpuplane.base.text import Text, format_count
from gpuplane.base.value import Value
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.containers.cdi import specstatus as condition
from gpuplane.node.core.containers.cdi.driverfiles import LIBCUDA_PREFIX
from gpuplane.node.core.containers.cdi.names import (
    CDI_KINDS,
    GPU_CDI_KINDS,
    PLAIN_VENDOR,
    VENDOR,
    plain_cdi_kind,
    plain_cdi_name,
    qualified_name,
)
from gpuplane.node.core.containers.cdi.plainspecs import build_plain_spec
from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult, build_spec
from gpuplane.node.core.containers.cdi.specrequest import HookProgram, SpecMode, SpecOptions
from gpuplane.node.core.containers.cdi.version import lowest_version
from gpuplane.node.core.containers.strategy import effective_list_strategies
from gpuplane.node.core.kinds.nvidia.gpu import GPU
from gpuplane.node.core.kinds.table import PLAIN_KINDS, kind_of
from gpuplane.node.core.requests import node_requests
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model.cdi import CdiDevice, Spec
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import NVIDIA_GPU, DeviceList, Machine
from gpuplane.node.model.reasons import ReasonCode
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, AnyPart, CdiConflictStatus, Part, cdi_conflict_part
from gpuplane.node.model.views import Reason, Unit

GPU_KIND = f"{VENDOR}/gpu"
FEATURE_MODES: tuple[SpecMode, ...] = ("gdrcopy", "gds", "mofed")
"""Modes that the setting of the same name enables; their only device is `all`."""

BEING_WRITTEN_TEXT = "CDI: the specification of this device is being written"
CONFLICT_ADVICE = (
    "container runtimes refuse a device that two files define; remove the device from the file "
    "that the agent does not write"
)


@view
def desired_specs(snapshot: Snapshot) -> Mapping[str, SpecBuildResult]:
    """Kind → specification, if a CDI strategy is in force; {} if none is."""
    by_cdi = condition.agent_writes_specs(snapshot) and any(
        each.startswith("cdi-") for each in effective_list_strategies(snapshot)
    )
    return _configured_specs_by_kind(snapshot) if by_cdi else {}


def _configured_specs_by_kind(snapshot: Snapshot) -> Mapping[str, SpecBuildResult]:
    """Kind → specification, for each kind that is configured and has been counted; {} before the configuration."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if settings is None:
        return {}
    plain = _build_plain_specs.of(snapshot, snapshot.devices, settings.stand_ins) if snapshot.devices else {}
    if machine is None or machine.gpus is None:
        return plain
    requests = tuple(_spec_requests(settings, condition.installed_hook_path(snapshot)))
    gpu_specs = _build_specs.of(snapshot, machine, requests)
    return _all_specs.of(snapshot, gpu_specs, plain) if plain else gpu_specs


@part_view
def _all_specs(
    gpu_specs: Mapping[str, SpecBuildResult], plain_specs: Mapping[str, SpecBuildResult]
) -> Mapping[str, SpecBuildResult]:
    return {**gpu_specs, **plain_specs}


@part_view
def _build_plain_specs(devices: Mapping[str, DeviceList], stand_ins: bool) -> Mapping[str, SpecBuildResult]:
    """CDI kind → specification, of each plain kind that has been counted."""
    counted = {kind: devices[kind] for kind in PLAIN_KINDS if kind in devices and devices[kind].devices is not None}
    return {
        plain_cdi_kind(kind): build_plain_spec(
            kind,
            (each.unit for each in PLAIN_KINDS[kind].unit_resources(None, found, Settings()) if each.resource),
            stand_ins,
        )
        for kind, found in counted.items()
    }


@part_view
def _build_specs(machine: Machine, requests: tuple[SpecOptions, ...]) -> Mapping[str, SpecBuildResult]:
    return {request.kind: build_spec(machine, request) for request in requests}


def gpu_spec_options(settings: Settings, own_hook_path: str) -> SpecOptions:
    """What the specification of GPUs shall contain. `own_hook_path`: our hook's path; "" if it is not installed."""
    return SpecOptions(
        kind=GPU_KIND,
        naming=(settings.device_id_strategy,),
        driver_root=settings.driver_root,
        dev_root=settings.dev_root,
        hook_program=_hook_program(settings, own_hook_path),
        disabled_hooks=settings.cdi_disabled_hooks,
        feature_flags=settings.cdi_feature_flags,
        stand_ins=settings.stand_ins,
    )


def _spec_requests(settings: Settings, own_hook_path: str) -> Iterator[SpecOptions]:
    request = gpu_spec_options(settings, own_hook_path)
    yield request
    if channels := tuple(map(str, settings.imex_channels)):
        yield request.but(kind=f"{VENDOR}/imex-channel", mode="imex", ids=channels)
    for feature in FEATURE_MODES:
        if getattr(settings, feature):
            yield request.but(kind=f"{VENDOR}/{feature}", mode=feature)


def _hook_program(settings: Settings, own_hook_path: str) -> HookProgram | None:
    if settings.cdi_hook == "nvidia":
        return HookProgram(path=settings.cdi_hook_path, is_nvidia=True)
    return HookProgram(path=own_hook_path) if own_hook_path and settings.cdi_hook == "auto" else None


def missing_features(snapshot: Snapshot) -> frozenset[str]:
    """The configured features that this machine does not have: no container gets their devices."""
    specs = desired_specs(snapshot)
    return frozenset(kind.partition("/")[2] for kind in GPU_CDI_KINDS if kind in specs and specs[kind].spec is None)


def spec_notes(snapshot: Snapshot) -> Iterator[Text]:
    """Notes about the desired specifications, for people: what containers may miss."""
    for kind, each in desired_specs(snapshot).items():
        yield from each.notes
        if kind != GPU_KIND:
            yield from (
                f"{kind.partition('/')[2]}: {what}: {why}" for what, why in each.omission_reason_by_device.items()
            )


def summarize_specs(specs: Collection[Spec]) -> str:
    """The content of files in a few words: "8 devices, driver 580.95.05"."""
    gpus = [spec for spec in specs if spec.kind == GPU_KIND]
    count = sum(len(spec.devices) for spec in (*gpus, *(each for each in specs if each.kind not in GPU_CDI_KINDS)))
    libraries = (mount.host_path.rpartition(LIBCUDA_PREFIX) for spec in gpus for mount in spec.container_edits.mounts)
    version = next((f", driver {version}" for _, found, version in libraries if found), "")
    return f"{format_count(count, 'device')}{version}"


def is_any_kind_and_config_known(snapshot: Snapshot) -> bool:
    """Whether the configuration and some devices are known, so that a desired specification is."""
    return snapshot.config.settings is not None and any(_is_counted(snapshot, kind) for kind in CDI_KINDS)


def _is_counted(snapshot: Snapshot, cdi_kind: str) -> bool:
    """Whether the devices of a CDI kind have been counted, so that its desired specification is known."""
    machine, vendor, name = snapshot.machine, *cdi_kind.split("/")
    if vendor == PLAIN_VENDOR:
        return name in snapshot.devices and snapshot.devices[name].devices is not None
    return machine is not None and machine.gpus is not None


def desired_spec_of_file(snapshot: Snapshot, kind: str, current: Spec | None) -> Spec | None:
    """The desired content of a kind's file, whose content is `current` now; None for no file.

    It has the desired devices, and those other devices of `current` that a container may hold: with the edits that they
    have on the machine now, or with their old ones if the machine no longer has them.
    """
    if not (_is_counted(snapshot, kind) and snapshot.config.settings is not None) or (
        not desired_specs(snapshot) and _is_runtime_unknown(snapshot)
    ):
        return current
    spec = _spec_of_kind(desired_specs(snapshot), kind)
    now = spec or (_spec_of_kind(_configured_specs_by_kind(snapshot), kind) if current else None)
    names = {device.name for device in spec.devices} if spec is not None else set()
    fresh = {device.name: device for device in now.devices} if now is not None else {}
    left = (each for each in (current.devices if current else ()) if each.name not in names)
    others = condition.conflicting_file_by_device(snapshot)
    devices = (
        *(each for each in (spec.devices if spec else ()) if qualified_name(kind, each.name) not in others),
        *(fresh.get(each.name, each) for each in left if _may_be_held(snapshot, kind, each)),
    )
    common = now or current
    if common is None or not devices:
        return None
    if common is current and devices == current.devices:
        return current
    whole = common.but(devices=devices)
    return whole.but(cdi_version=lowest_version(whole))


def _spec_of_kind(specs_by_kind: Mapping[str, SpecBuildResult], kind: str) -> Spec | None:
    return specs_by_kind[kind].spec if kind in specs_by_kind else None


def _is_runtime_unknown(snapshot: Snapshot) -> bool:
    """Whether nobody has said yet what the node's runtime is, though that decides."""
    settings = snapshot.config.settings
    return (
        settings is not None
        and settings.device_list_strategy == ("auto",)
        and not node_requests(snapshot).container_runtime
    )


def _may_be_held(snapshot: Snapshot, kind: str, device: CdiDevice) -> bool:
    """Whether some container may hold a device, as far as is known."""
    held = held_allocations(snapshot)
    if held is None:
        return True
    vendor, name = kind.split("/")
    unit_id = PLAIN_KINDS[name].unit_id(device.name) if vendor == PLAIN_VENDOR else device.name
    if vendor == PLAIN_VENDOR or (kind == GPU_KIND and kind_of(unit_id) is GPU):
        return unit_id in _held_units.of(snapshot, held)
    return bool(held)


@part_view
def _held_units(allocations: tuple[Allocation, ...]) -> frozenset[str]:
    return frozenset(unit_of(id) for each in allocations for id in each.devices)


def conflict_statuses(
    snapshot: Snapshot, own_specs: Mapping[str, Spec], foreign_specs: Mapping[str, Spec]
) -> Mapping[Part[CdiConflictStatus], CdiConflictStatus]:
    """Part → status, of each file of others that defines a device which is ours to define.

    `own_specs`: kind → what our file of it holds now. `foreign_specs`: path → document, of the other files of the
    directory.
    """
    found = {kind: each.spec for kind, each in desired_specs(snapshot).items() if each.spec is not None}
    names = {
        qualified_name(kind, device.name)
        for specs in (found, own_specs)
        for kind, spec in specs.items()
        for device in spec.devices
    }
    found_conflicts: dict[Part[CdiConflictStatus], CdiConflictStatus] = {}
    for path, spec in sorted(foreign_specs.items()):
        twice = sorted(name for device in spec.devices if (name := qualified_name(spec.kind, device.name)) in names)
        if twice:
            what = twice[0] + f" and {len(twice) - 1} more" * (len(twice) > 1)
            cdi_unavailable_reason = (
                f"this file defines {what}, and the agent's own file defines the same: {CONFLICT_ADVICE}"
            )
            found_conflicts[cdi_conflict_part(path)] = CdiConflictStatus(
                "failing", cdi_unavailable_reason, devices=tuple(twice)
            )
    return found_conflicts


def cdi_unavailable_reason(snapshot: Snapshot, unit: Unit) -> Reason | None:
    """Why a container with this unit could not start by CDI; None if it could, or if no CDI strategy is in force."""
    documents, settings = desired_specs(snapshot), snapshot.config.settings
    if unit.kind != NVIDIA_GPU:
        return _plain_cdi_unavailable_reason(snapshot, unit, documents)
    if settings is None or GPU_KIND not in documents:
        return None
    needed, name = (
        _needed_fingerprints.of(snapshot, documents),
        unit.index if settings.device_id_strategy == "index" else unit.id,
    )
    if (
        why := documents[GPU_KIND].omission_reason_by_device.get(unit.id)
    ) or name not in needed.fingerprint_by_gpu_device:
        return _cdi_problem_reason("cdi-no-device", why or "the specification does not contain this device")
    fingerprints = {
        qualified_name(GPU_KIND, name): needed.fingerprint_by_gpu_device[name],
        **needed.fingerprint_by_feature_device,
    }
    return _not_on_disk_reason(snapshot, fingerprints, needed.common_edits_fingerprints)


def _plain_cdi_unavailable_reason(
    snapshot: Snapshot, unit: Unit, specs_by_kind: Mapping[str, SpecBuildResult]
) -> Reason | None:
    name, kind = plain_cdi_name(unit), plain_cdi_kind(unit.kind)
    spec = specs_by_kind[kind].spec if kind in specs_by_kind else None
    if spec is None:
        return None
    fingerprints = {
        qualified_name(kind, device.name): condition.device_fingerprint(kind, device) for device in spec.devices
    }
    return _not_on_disk_reason(snapshot, {name: fingerprints[name]}, frozenset())


class _NeededFingerprints(Value):
    """The fingerprints that have to be on disk: of each GPU or MIG device by its name, and of the devices that every
    container gets in addition, by qualified name."""

    fingerprint_by_gpu_device: Mapping[str, str]
    fingerprint_by_feature_device: Mapping[str, str]
    common_edits_fingerprints: frozenset[str]  # of the common edits of each file


@part_view
def _needed_fingerprints(specs_by_kind: Mapping[str, SpecBuildResult]) -> _NeededFingerprints:
    fingerprints = {
        kind: {device.name: condition.device_fingerprint(kind, device) for device in found.spec.devices}
        for kind, found in specs_by_kind.items()
        if found.spec is not None and kind in GPU_CDI_KINDS
    }
    others = {
        qualified_name(kind, name): fingerprint
        for kind in fingerprints
        if kind != GPU_KIND
        for name, fingerprint in fingerprints[kind].items()
    }
    common = frozenset(
        condition.common_edits_fingerprint(found.spec)
        for kind, found in specs_by_kind.items()
        if found.spec is not None and kind in GPU_CDI_KINDS
    )
    return _NeededFingerprints(
        fingerprint_by_gpu_device=fingerprints.get(GPU_KIND, {}),
        fingerprint_by_feature_device=others,
        common_edits_fingerprints=common,
    )


def _cdi_problem_reason(code: ReasonCode, why: Text, part: AnyPart = CDI_FILES_PART) -> Reason:
    return Reason(kind="problem", text=f"CDI: {why}", part=part.name, code=code)


def _not_on_disk_reason(
    snapshot: Snapshot, fingerprints: Mapping[str, str], common_edits_fingerprints: frozenset[str]
) -> Reason | None:
    """Why the disk does not have all of these devices' fingerprints; None if it has.

    The common edits may be older for the moment of a write, but not if the write fails: the old ones may name files of
    a driver that no longer exists.
    """
    foreign = condition.conflicting_file_by_device(snapshot)
    for name in fingerprints:
        if name in foreign:
            why = f"{foreign[name]} defines {name} too: {CONFLICT_ADVICE}"
            return _cdi_problem_reason("cdi-conflict", why, cdi_conflict_part(foreign[name]))
    status, current = snapshot.statuses[CDI_FILES_PART], condition.fingerprints_on_disk(snapshot)
    refused = status.state == "failing"
    if current.issuperset(fingerprints.values()) and (not refused or current >= common_edits_fingerprints):
        return None
    if refused:
        return _cdi_problem_reason("cdi-write-failed", status.text)
    return Reason(kind="waiting", text=BEING_WRITTEN_TEXT, part=CDI_FILES_PART.name, code="cdi-not-written")


def is_first_write_pending(snapshot: Snapshot) -> bool:
    """Whether the files are still to be written for the first time: until then no device can be allocated by CDI."""
    return bool(desired_specs(snapshot)) and snapshot.statuses[CDI_FILES_PART].state == "waiting"


def cdi_write_failed_reason(snapshot: Snapshot) -> Reason | None:
    """Why the desired files are not on disk; None if they are, or if no CDI strategy is in force."""
    status = snapshot.statuses.of(CDI_FILES_PART)
    failing = status is not None and status.state == "failing" and bool(desired_specs(snapshot))
    return _cdi_problem_reason("cdi-write-failed", status.text) if status is not None and failing else None
