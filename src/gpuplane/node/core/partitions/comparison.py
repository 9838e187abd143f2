"""Whether a GPU has a layout, as `gpuplane mig assert` asks. The names of a profile on several boards are one."""

from collections import Counter

from gpuplane.base.text import Text
from gpuplane.node.core.partitions.names import find_profile, profile_name
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuInstanceProfile, GpuLayout


def difference(
    gpu: Gpu, layout: GpuLayout, profiles: tuple[GpuInstanceProfile, ...], *, mode_only: bool = False
) -> Text:
    """What of a layout the GPU does not have, for people; "" where it has all of it.

    `profiles`: what the GPU can be partitioned into; () where that is not known. `mode_only`: instances do not matter.
    """
    if gpu.mig_enabled != layout.mig_enabled:
        return f"MIG mode is {_mode(gpu.mig_enabled)}, not {_mode(layout.mig_enabled)}"
    if mode_only or not layout.mig_enabled:
        return ""
    if layout.placed is not None and (problem := _misplaced(gpu, layout)):
        return problem
    there = Counter(_own_name(device.profile, profiles) for device in gpu.mig_devices)
    wanted = Counter[str]()
    for name, count in layout.mig_devices.items():
        wanted[_own_name(name, profiles)] += count
    return "" if there == +wanted else f"it has {_describe(there)}, not {_describe(+wanted)}"


def _misplaced(gpu: Gpu, layout: GpuLayout) -> Text:
    """What of the placed instances is not where it should be; "" for nothing."""
    if gpu.mig is None or gpu.mig.instances is None:
        return "the driver does not tell where its instances are"
    names = {each.id: each.name for each in gpu.mig.profiles}
    there = {
        (names.get(each.profile, ""), each.start, tuple(sorted(ci.slices for ci in each.compute_instances)))
        for each in gpu.mig.instances
    }
    wanted = {(each.profile, each.start, tuple(sorted(each.compute_slices))) for each in layout.placed or ()}
    missing = ", ".join(f"{name} at {start}" for name, start, _ in sorted(wanted - there))
    return f"its instances are not at the same places: {missing or 'there are more'}" if there != wanted else ""


def _own_name(name: str, profiles: tuple[GpuInstanceProfile, ...]) -> str:
    """The name that this GPU has for a profile; the name itself where it has none."""
    try:
        return profile_name(*find_profile(name, profiles))
    except ValueError:
        return name


def _mode(enabled: bool) -> str:
    return "on" if enabled else "off"


def _describe(devices: Counter[str]) -> str:
    return " + ".join(f"{count} × {name}" for name, count in sorted(devices.items())) or "no MIG devices"
