"""Which unit gets which name (k8s-device-plugin 0.20, api/config/v1/resources.go, internal/rm/*.go).

Every unit of the machine gets one `UnitResource`: a resource name, or the reason why it has none. NVIDIA's plugin
offers nothing on a node if it cannot describe one GPU. Here only that GPU is not offered.

- Patterns of the configuration come first: the first that matches counts. The MIG strategy decides about the rest.
- A whole GPU is nvidia.com/gpu. A GPU in MIG mode is not a whole GPU.
- `mixed` names a MIG device by its profile. A compute instance that is only a part of its GPU instance ("1c.3g.20gb")
  has no such name; only a pattern can name it.
- `single` promises that nvidia.com/gpu is one kind of device. If there are MIG devices, it is the profile that is on
  most GPUs. MIG devices of other profiles and whole GPUs are then not offered. If patterns name devices
  nvidia.com/gpu, only those devices are offered under it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set

from gpuplane.base.text import Text, matches_pattern
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX, qualified_resource_name
from gpuplane.node.core.kinds.nvidia.units import list_units
from gpuplane.node.core.kinds.unitresource import UnitResource
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.status import DRIVER_PART
from gpuplane.node.model.views import Reason, Unit

COMPUTE_INSTANCE_PROFILE_PATTERN = re.compile(r"\d+c\.\d+g\.")


def assign_resource_names(machine: Machine, settings: Settings) -> list[UnitResource]:
    """One assignment for each unit of the machine, in its order, before anything is shared."""
    with_mig_devices = settings.mig_strategy != "none"
    units = list_units(machine, with_mig_devices=with_mig_devices, whole_mig_gpus=settings.whole_mig_gpus)
    assignments = [_assign_name_by_pattern(assignment, settings) for assignment in _start_unit_resources(units)]
    return list(_name_by_mig_strategy(assignments, settings))


def _start_unit_resources(units: Iterable[tuple[Unit, Reason | None]]) -> Iterator[UnitResource]:
    """Each unit, with the reason not to offer it if it has one. Of two units of one id only the first can be named."""
    seen: dict[str, Unit] = {}
    for unit, reason in units:
        if reason is None and unit.id in seen:
            text = f"device {seen[unit.id].index} has the same UUID"
            reason = Reason(kind="problem", text=text, part=DRIVER_PART.name, code="duplicate-uuid")
        seen.setdefault(unit.id, unit)
        if reason is None:
            yield UnitResource(unit=unit)
        else:
            yield UnitResource(
                unit=unit,
                not_offered_reason=reason.text,
                not_offered_reason_kind=reason.kind,
                not_offered_reason_code=reason.code,
            )


def _assign_name_by_pattern(assignment: UnitResource, settings: Settings) -> UnitResource:
    unit = assignment.unit
    if assignment.not_offered_reason:
        return assignment
    field, patterns, text = ("mig", settings.mig, unit.profile) if unit.profile else ("gpus", settings.gpus, unit.model)
    for i, naming in enumerate(patterns):
        if matches_pattern(naming.pattern, text):
            return assignment.but(resource=naming.name, deciding_setting=f"{field}.{i}")
    return assignment


def _name_by_mig_strategy(assignments: Sequence[UnitResource], settings: Settings) -> Iterator[UnitResource]:
    unnamed = [each.unit for each in assignments if not each.resource and not each.not_offered_reason]
    profiles = {each.unit.profile for each in assignments if each.resource == GPU_RESOURCE}
    profiles = profiles or {_most_common_profile(unnamed)}
    for assignment in assignments:
        if assignment.resource or assignment.not_offered_reason:
            yield assignment
        else:
            name, code, reason = _default_name(assignment.unit, settings, profiles)
            yield assignment.but(
                resource=name, not_offered_reason=reason, not_offered_reason_code=code, deciding_setting="mig_strategy"
            )


def _default_name(unit: Unit, settings: Settings, profiles: Set[str]) -> tuple[str, str, Text]:
    """(name, "", "") or ("", code, reason) of a unit that no pattern names.

    `profiles`: those that are nvidia.com/gpu under `single`; "" is a whole GPU.
    """
    match settings.mig_strategy:
        case "single" if unit.profile not in profiles:
            here, own = " and ".join(each or "a whole GPU" for each in sorted(profiles)), unit.profile or "a whole GPU"
            return (
                "",
                "mig-profile-not-chosen",
                f"migStrategy single offers only one kind of device: on this node {here}, but this device is {own}",
            )
        case "mixed" if unit.profile:
            return _resource_name_by_mig_profile(unit.profile)
    return GPU_RESOURCE, "", ""


def _resource_name_by_mig_profile(profile: str) -> tuple[str, str, Text]:
    if COMPUTE_INSTANCE_PROFILE_PATTERN.match(profile):
        text = (
            f"the profile {profile} is a part of a GPU instance and has no default resource name; add a "
            "pattern with a name to resources.mig"
        )
        return "", "mig-profile-unnamed", text
    try:
        return qualified_resource_name(MIG_RESOURCE_PREFIX + profile.replace("+", ".")), "", ""
    except ValueError as error:
        return "", "mig-profile-unnamed", f"the agent cannot make a resource name from the profile: {error}"


def _most_common_profile(units: Iterable[Unit]) -> str:
    """The profile that is on most GPUs; "" for none. Between equals: the one of more devices, then by name."""
    mig_units = [unit for unit in units if unit.profile]
    devices = Counter(unit.profile for unit in mig_units)
    gpus = Counter(profile for profile, _ in {(unit.profile, unit.gpu) for unit in mig_units})
    return min(devices, key=lambda profile: (-gpus[profile], -devices[profile], profile), default="")
