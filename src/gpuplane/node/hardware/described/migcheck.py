"""What is wrong with the partitions that a machine file describes: sizes, ids, and places on the card."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gpuplane.base import strict
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuInstance, GpuInstanceProfile

Problems = Iterator[tuple[strict.DocumentPath, str]]


def check_mig(gpu: Gpu) -> Problems:
    """The problems of `mig.profiles` and `mig.instances` of a GPU: (path in it, what is wrong)."""
    if gpu.mig is None:
        return
    for i, profile in enumerate(gpu.mig.profiles):
        yield from ((("mig", "profiles", i, *path), text) for path, text in _profile(profile))
    yield from _repeated(("mig", "profiles"), (each.id for each in gpu.mig.profiles), "profile")
    instances = gpu.mig.instances or ()
    yield from _repeated(("mig", "instances"), (each.id for each in instances), "GPU instance")
    profiles = {each.id: each for each in profiles_of(gpu)}
    used: dict[int, int] = {}
    for i, instance in enumerate(instances):
        known = profiles.get(instance.profile)
        at: strict.DocumentPath = ("mig", "instances", i)
        if known is None:
            numbers = ", ".join(f"{each.id} ({each.name})" for each in profiles.values()) or "none"
            yield (*at, "profile"), f"{instance.profile} is no profile of this card; it has {numbers}"
            continue
        yield from (((*at, *path), text) for path, text in _instance(instance, known))
        for place in range(instance.start, instance.start + known.size):
            if used.setdefault(place, instance.id) != instance.id:
                text = f"memory slice {place} is in GPU instance {used[place]}, too: write another start"
                yield (*at, "start"), text
                break


def _profile(profile: GpuInstanceProfile) -> Problems:
    for name in ("slices", "size", "count", "memory_mib"):
        if (value := getattr(profile, name)) < 1:
            yield (name,), f"{value} is not possible: write 1 or more"
    if not profile.starts:
        yield ("starts",), "it can begin nowhere: write the memory slices at which it can"
    for i, start in enumerate(profile.starts):
        if start < 0:
            yield ("starts", i), f"{start} is not a memory slice: they count from 0"
    for i, part in enumerate(profile.compute_profiles):
        for name in ("slices", "count"):
            if (value := getattr(part, name)) < 1:
                yield ("compute_profiles", i, name), f"{value} is not possible: write 1 or more"
        if part.slices > profile.slices:
            yield ("compute_profiles", i, "slices"), f"{part.slices} of the {profile.slices} slices of {profile.name}"


def _instance(instance: GpuInstance, profile: GpuInstanceProfile) -> Problems:
    if instance.start not in profile.starts:
        starts = ", ".join(map(str, profile.starts))
        yield ("start",), f"{profile.name} cannot begin at memory slice {instance.start}; it can at {starts}"
    if instance.size != profile.size:
        yield ("size",), f"{profile.name} has {profile.size} memory slices, not {instance.size}"
    sizes = {each.slices for each in profile.compute_profiles}
    yield from _repeated(("compute_instances",), (each.id for each in instance.compute_instances), "compute instance")
    for i, part in enumerate(instance.compute_instances):
        if part.slices not in sizes:
            known = ", ".join(map(str, sorted(sizes))) or "none"
            yield (
                ("compute_instances", i, "slices"),
                f"{profile.name} has no compute instances of {part.slices}: {known}",
            )
    total = sum(each.slices for each in instance.compute_instances)
    if total > profile.slices:
        yield ("compute_instances",), f"they have {total} slices together; {profile.name} has {profile.slices}"


def _repeated(where: strict.DocumentPath, ids: Iterable[int], what: str) -> Problems:
    for id, times in Counter(ids).items():
        if times > 1:
            yield where, f"{what} {id} is there {times} times"
