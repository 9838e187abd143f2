"""A saved state of all partitions, with their places, as nvidia-mig-parted has it (api/checkpoint/v1, types.MigState).

A file of either program is read by the other. It names GPUs by UUID, and profiles by the constants of NVML by which the
driver is asked for them (nvml.h), which are the same on all cards. Go reads its keys in any case of letters, and older
versions wrote `ProfileId`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gpuplane.base.document import DocumentNode
from gpuplane.base.strict import load_with_lines
from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.core.partitions.names import known_name, profile_name
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuInstance, GpuInstanceProfile, GpuLayout, PlacedInstance

GPU_INSTANCE_CONSTANTS: Mapping[int, tuple[int, str]] = {
    0: (1, ""), 1: (2, ""), 2: (3, ""), 3: (4, ""), 4: (7, ""), 5: (8, ""), 6: (6, ""),
    7: (1, "+me"), 8: (2, "+me"), 9: (1, "larger"), 10: (1, "+gfx"), 11: (2, "+gfx"), 12: (4, "+gfx"),
    13: (1, "-me"), 14: (2, "-me"), 15: (1, "+me.all"), 16: (2, "+me.all"), 17: (3, "+gfx"),
}  # fmt: skip
"""NVML_GPU_INSTANCE_PROFILE_*: compute slices, and the attribute; "larger": the one with more memory."""
COMPUTE_INSTANCE_CONSTANTS: Mapping[int, int] = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 5: 8, 6: 6, 7: 1}
"""NVML_COMPUTE_INSTANCE_PROFILE_*: compute slices."""
REV1 = 7
"""NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: it is read, and not written."""
SHARED = 0
"""NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED."""


class _Placement(Value, rename={"start": "Start", "size": "Size"}, omit_defaults=False):
    start: int
    size: int


class _ComputeInstance(Value, rename={"profile": "ProfileID", "engines": "EngProfileID"}, omit_defaults=False):
    profile: int
    engines: int = SHARED


class _Instance(
    Value,
    rename={"profile": "ProfileID", "placement": "Placement", "compute_instances": "ComputeInstances"},
    omit_defaults=False,
):
    profile: int
    placement: _Placement
    compute_instances: tuple[_ComputeInstance, ...] | None = None


class _Device(Value, rename={"uuid": "UUID", "mode": "MigMode", "instances": "GpuInstances"}, omit_defaults=False):
    uuid: str
    mode: Literal[0, 1]
    instances: tuple[_Instance, ...] | None = None


class _MigState(Value, rename={"devices": "Devices"}, omit_defaults=False):
    devices: tuple[_Device, ...] | None = None


class _Checkpoint(Value, rename={"version": "Version", "state": "MigState"}, omit_defaults=False):
    version: Literal["v1"]
    state: _MigState


KEYS = {
    each.encode_name.lower(): each.encode_name
    for kind in (_Checkpoint, _MigState, _Device, _Instance, _Placement, _ComputeInstance)
    for each in msgspec.structs.fields(kind)
}
Checkpoint = tuple[_Device, ...]
"""What a file has of each GPU."""


def format_checkpoint(gpus: Sequence[Gpu]) -> bytes:
    """A file with the state of the GPUs that can be partitioned. Raises ValueError where too little is known."""
    devices = tuple(_save(gpu) for gpu in gpus if gpu.mig is not None and gpu.uuid)
    return format_json(_Checkpoint(version="v1", state=_MigState(devices=devices)))


def parse_checkpoint(data: bytes, file: str) -> Checkpoint:
    """What a file has. Raises InvalidInput."""
    return load_with_lines(data, _Checkpoint, file, prepare=_with_known_keys)[0].state.devices or ()


def layouts_of_checkpoint(
    checkpoint: Checkpoint, gpus: Sequence[Gpu], profiles: Mapping[str, tuple[GpuInstanceProfile, ...]]
) -> tuple[Mapping[str, GpuLayout], tuple[Text, ...]]:
    """UUID of a GPU → its saved layout, and every problem. Where there is one, none is right.

    `profiles`: of each GPU, by UUID. All instances are to be as they were saved: those that we did not make, too.
    """
    layouts, problems = dict[str, GpuLayout](), list[Text]()
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for device in checkpoint:
        gpu = by_uuid.get(device.uuid)
        if gpu is None or gpu.mig is None:
            problems.append(f"{device.uuid}: {'there is no such GPU' if gpu is None else 'it cannot be partitioned'}")
            continue
        try:
            placed = tuple(_placed(each, profiles.get(device.uuid, ())) for each in device.instances or ())
        except ValueError as error:
            problems.append(f"GPU {gpu.index} ({gpu.uuid}): {error}")
            continue
        counts = Counter(
            profile_name(profile, slices) for profile, instance in placed for slices in instance.compute_slices
        )
        layouts[device.uuid] = GpuLayout(
            mig_enabled=bool(device.mode),
            mig_devices=dict(sorted(counts.items())) if device.mode else {},
            placed=tuple(instance for _, instance in placed) if device.mode else None,
            replaces_foreign=True,
        )
    return layouts, tuple(problems)


def _save(gpu: Gpu) -> _Device:
    assert gpu.mig is not None
    if not gpu.mig.enabled:
        return _Device(uuid=gpu.uuid, mode=0)
    if gpu.mig.instances is None:
        raise ValueError(f"GPU {gpu.index} ({gpu.uuid}): the driver does not tell where its instances are")
    profiles = {each.id: each for each in gpu.mig.profiles}
    instances = []
    for each in gpu.mig.instances:
        if each.profile not in profiles:
            raise ValueError(f"GPU {gpu.index} ({gpu.uuid}): the driver does not tell its profile {each.profile}")
        instances.append(_save_instance(each, profiles[each.profile], gpu.mig.profiles))
    return _Device(uuid=gpu.uuid, mode=1, instances=tuple(instances))


def _save_instance(
    instance: GpuInstance, profile: GpuInstanceProfile, profiles: tuple[GpuInstanceProfile, ...]
) -> _Instance:
    constant = next((number for number in GPU_INSTANCE_CONSTANTS if _profile(number, profiles) == profile), None)
    by_slices = {slices: number for number, slices in COMPUTE_INSTANCE_CONSTANTS.items() if number != REV1}
    if constant is None:
        raise ValueError(f"the profile {profile.name} has no constant of NVML that is known here")
    return _Instance(
        profile=constant,
        placement=_Placement(start=instance.start, size=instance.size),
        compute_instances=tuple(
            _ComputeInstance(profile=by_slices[each.slices]) for each in instance.compute_instances
        ),
    )


def _placed(instance: _Instance, profiles: tuple[GpuInstanceProfile, ...]) -> tuple[GpuInstanceProfile, PlacedInstance]:
    """Raises ValueError where the GPU has no such profile or place."""
    profile, start = _profile(instance.profile, profiles), instance.placement.start
    if profile is None:
        raise ValueError(f"it has no profile with NVML's constant {instance.profile}")
    if start not in profile.starts or instance.placement.size != profile.size:
        raise ValueError(f"{profile.name} cannot be at memory slice {start} with {instance.placement.size} slices")
    slices = [COMPUTE_INSTANCE_CONSTANTS.get(each.profile, 0) for each in instance.compute_instances or ()]
    if 0 in slices or any(each.engines != SHARED for each in instance.compute_instances or ()):
        raise ValueError(f"{profile.name} at {start} has a compute instance of a kind that is not known here")
    if sum(slices) > profile.slices:
        raise ValueError(f"{profile.name} at {start} has {sum(slices)} slices of compute instances, which do not fit")
    return profile, PlacedInstance(
        profile=profile.name, start=start, compute_slices=tuple(sorted(slices, reverse=True))
    )


def _profile(constant: int, profiles: tuple[GpuInstanceProfile, ...]) -> GpuInstanceProfile | None:
    """The profile on this card of a constant of NVML; None where it has none."""
    slices, attribute = GPU_INSTANCE_CONSTANTS.get(constant, (0, ""))
    larger = attribute == "larger"
    wanted = frozenset({attribute} - {"", "larger"})
    found = [
        each for each in profiles if each.slices == slices and (name := known_name(each)) and name.attributes == wanted
    ]
    found.sort(key=lambda each: each.size)
    return found[larger] if len(found) > larger else None


def _with_known_keys(node: DocumentNode) -> DocumentNode:
    """The document with keys in the case of letters that they have now."""
    if isinstance(node.value, dict):
        return node.but(value={KEYS.get(k.lower(), k): _with_known_keys(each) for k, each in node.value.items()})
    if isinstance(node.value, list):
        return node.but(value=[_with_known_keys(each) for each in node.value])
    return node
