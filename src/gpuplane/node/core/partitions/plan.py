"""The way from the layout of one GPU to the one that is requested: the fewest changes, around what is in use.

- An instance that is held, or that somebody else made and that may not be destroyed, stays where it is. If it is part
  of a layout that has what is requested, such a layout is taken. Else the rest is made around it, and it is named.
- Of all layouts that have what is requested, the one is taken that the fewest such instances stand in the way of; then
  the one that is reached by the fewest changes; then the one that leaves most room.
- Then what does not belong to it is destroyed, and what is missing is created, the largest first. An instance for which
  something in the way has to go first comes later.
- An instance that exists at the right place is kept. Its compute instances are changed one by one, too.

Taking single steps of a plan, and planning again after each, reaches the same layout: a step brings it nearer by one
change and no other by more.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.core.partitions.layouts import Layout, Placement, Profiles, fits, layouts_of, reason_not_to_fit
from gpuplane.node.core.partitions.names import find_profile
from gpuplane.node.model.partitions import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstance,
    GpuLayout,
    PartitionChange,
)

Contents = tuple[int, ...]
"""The slices of each compute instance of a GPU instance, the largest first."""


class WantedInstances(Value):
    """What is requested of a GPU in MIG mode: of each profile (its id), what each GPU instance shall contain.

    `placed`: where each one shall be; None where that does not matter.
    """

    contents: Mapping[int, tuple[Contents, ...]]
    placed: Mapping[Placement, Contents] | None = None


class Fixed(Value):
    """What must stay as it is now: GPU instances, and ids of compute instances, that somebody holds."""

    instances: frozenset[Placement] = frozenset()
    compute_instances: frozenset[tuple[Placement, int]] = frozenset()


class InstancesPlan(Value):
    """The changes that can be made now, in their order, and what has to wait.

    `blocked_by`: the fixed instances that stand in the way of what is requested. `later`: the placements that can be
    made only after these are gone. `problem`: why the card cannot have what is requested at all; "" where it can.
    `moves`: (profile, from, to) of each instance that is free, and destroyed only to be created elsewhere.
    """

    changes: tuple[PartitionChange, ...] = ()
    blocked_by: tuple[Placement, ...] = ()
    later: tuple[Placement, ...] = ()
    moves: tuple[tuple[int, int, int], ...] = ()
    problem: Text = ""

    @property
    def is_done(self) -> bool:
        """Whether the layout is as it is requested."""
        return not (self.changes or self.blocked_by or self.later or self.problem)


def wanted_instances(layout: GpuLayout, profiles: Profiles) -> WantedInstances:
    """What a layout requests of a card with these profiles.

    Compute instances of one profile share GPU instances as far as they fit, the largest first, as mig-parted makes
    them (pkg/mig/config). Raises ValueError, with a text for people, where the card has no such profile.
    """
    if layout.placed is not None:
        placed = {}
        for each in layout.placed:
            profile, _ = find_profile(each.profile, profiles)
            placed[profile.id, each.start] = tuple(sorted(each.compute_slices, reverse=True))
        by_profile = groupby(sorted(placed.items()), key=lambda item: item[0][0])
        contents = {profile: tuple(found for _, found in items) for profile, items in by_profile}
        return WantedInstances(contents, placed)
    compute: dict[int, list[int]] = {}
    slices = {each.id: each.slices for each in profiles}
    for name, count in layout.mig_devices.items():
        profile, size = find_profile(name, profiles)
        sizes = compute.setdefault(profile.id, [])
        needed = -(-(sum(sizes) + size * count) // profile.slices)
        if needed > profile.count:  # before a list of them is made: a count is any number
            raise ValueError(f"the card can have {profile.count} of {profile.name}, not {needed}")
        sizes.extend([size] * count)
    return WantedInstances({each: tuple(_packed(sizes, slices[each])) for each, sizes in compute.items() if sizes})


def _packed(sizes: Sequence[int], slices: int) -> list[Contents]:
    """Compute instances in as few GPU instances as can hold them.

    Each goes, the largest first, into the first one that has room. That is the fewest for all GPU instances of which a
    card can have two: of 3 slices or fewer. Of larger ones it has one, which holds them if the sum does.
    """
    found: list[Contents] = []
    for size in sorted(sizes, reverse=True):
        roomy = next((number for number, contents in enumerate(found) if sum(contents) + size <= slices), len(found))
        found[roomy : roomy + 1] = [(*(found[roomy] if roomy < len(found) else ()), size)]
    return found


def plan_instances(
    profiles: Profiles, instances: Sequence[GpuInstance], wanted: WantedInstances, fixed: Fixed
) -> InstancesPlan:
    """How a GPU in MIG mode comes to what is wanted. `instances`: those that it has."""
    counts = {profile: len(found) for profile, found in wanted.contents.items()}
    if problem := reason_not_to_fit(profiles, counts):
        return InstancesPlan(problem=problem)
    candidates = layouts_of(profiles, tuple(sorted(counts.items())))
    if wanted.placed is not None:
        candidates = tuple(each for each in candidates if each == wanted.placed.keys())
        if not candidates:
            return InstancesPlan(problem="the instances of the saved layout do not fit on this card at their places")
    there = {each.placement: each for each in instances}
    target, contents = _nearest(candidates, there, wanted, fixed)
    return _way(profiles, there, target, contents, fixed)


def _nearest(
    candidates: Sequence[Layout], there: Mapping[Placement, GpuInstance], wanted: WantedInstances, fixed: Fixed
) -> tuple[Layout, Mapping[Placement, Contents]]:
    """The layout to go for, and what each of its GPU instances shall contain. Candidates with more room come first."""
    now = frozenset(there)

    def effort(layout: Layout) -> tuple[int, int]:
        return len(fixed.instances - layout), len(now ^ layout)

    least = min(map(effort, candidates))
    best = [each for each in candidates if effort(each) == least]
    if all(len(set(found)) <= 1 for found in wanted.contents.values()):  # equal ones need not be told apart
        return best[0], _assigned(best[0], there, wanted, fixed)
    found = [(each, _assigned(each, there, wanted, fixed)) for each in best]
    return min(found, key=lambda each: _compute_effort(each[1], there, fixed))


def _assigned(
    layout: Layout, there: Mapping[Placement, GpuInstance], wanted: WantedInstances, fixed: Fixed
) -> Mapping[Placement, Contents]:
    """Which GPU instance of a layout gets which contents: those that it has, as far as possible; held ones first."""
    if wanted.placed is not None:
        return wanted.placed
    assigned: dict[Placement, Contents] = {}
    for profile, contents in wanted.contents.items():
        left = list(contents)
        places = [each for each in layout if each[0] == profile]
        places.sort(key=lambda each: (-len(_held_compute(each, there, fixed)), each not in there, each))
        for place in places:
            held = _held_compute(place, there, fixed)
            sizes = [each.slices for each in there[place].compute_instances] if place in there else []
            best = min(left, key=lambda each: (not _has_all(each, held), _difference(each, sizes), each))
            left.remove(best)
            assigned[place] = best
    return assigned


def _held_compute(place: Placement, there: Mapping[Placement, GpuInstance], fixed: Fixed) -> list[int]:
    """The slices of each compute instance there that is held."""
    if place not in there:
        return []
    return [each.slices for each in there[place].compute_instances if (place, each.id) in fixed.compute_instances]


def _has_all(contents: Contents, sizes: Sequence[int]) -> bool:
    return not Counter(sizes) - Counter(contents)


def _difference(contents: Contents, sizes: Sequence[int]) -> int:
    """How many compute instances have to be created and destroyed."""
    return len(contents) + len(sizes) - 2 * (Counter(contents) & Counter(sizes)).total()


def _compute_effort(
    contents: Mapping[Placement, Contents], there: Mapping[Placement, GpuInstance], fixed: Fixed
) -> int:
    kept = [(place, each) for place, each in contents.items() if place in there]
    return sum(len(list(_compute_changes(there[place], each, fixed)[0])) for place, each in kept)


def _way(
    profiles: Profiles,
    there: Mapping[Placement, GpuInstance],
    target: Layout,
    contents: Mapping[Placement, Contents],
    fixed: Fixed,
) -> InstancesPlan:
    size = {each.id: each.size for each in profiles}
    leaving = [each for place, each in sorted(there.items()) if place not in target and place not in fixed.instances]
    blocked = {place for place in there if place not in target and place in fixed.instances}
    changes: list[PartitionChange] = []
    for instance in leaving:
        changes += _destroyed(instance)
    present = set(there) - {each.placement for each in leaving}
    created, later = [], []
    for place in sorted(target - set(there), key=lambda each: (-size[each[0]], each)):
        if fits(profiles, present | {place}):
            present.add(place)
            created.append(place)
            changes.append(CreateGpuInstance(*place))
            changes += (CreateComputeInstance(*place, slices) for slices in contents[place])
        else:
            later.append(place)
    for place in sorted(target & set(there)):
        more, is_blocked = _compute_changes(there[place], contents[place], fixed)
        changes += more
        blocked |= {place} if is_blocked else set()
    return InstancesPlan(
        changes=tuple(changes),
        blocked_by=tuple(sorted(blocked)),
        later=tuple(later),
        moves=tuple(_moves([each.placement for each in leaving], created)),
    )


def _destroyed(instance: GpuInstance) -> Iterator[PartitionChange]:
    for each in instance.compute_instances:
        yield DestroyComputeInstance(*instance.placement, each.id)
    yield DestroyGpuInstance(instance.id, *instance.placement)


def _compute_changes(
    instance: GpuInstance, contents: Contents, fixed: Fixed
) -> tuple[tuple[PartitionChange, ...], bool]:
    """The changes of the compute instances of one GPU instance, and whether a held one is in the way: then none.

    A free one that is smaller than one that has to be made is made anew, after it: it may lie where that has no room.
    So whatever is made, the largest first, stays.
    """
    place = instance.placement
    missing, surplus = Counter(contents), list[DestroyComputeInstance]()
    free: list[tuple[int, DestroyComputeInstance]] = []
    is_blocked = False
    for each in sorted(instance.compute_instances, key=lambda each: (place, each.id) not in fixed.compute_instances):
        is_held, is_wanted = (place, each.id) in fixed.compute_instances, missing[each.slices] > 0
        destroyed = DestroyComputeInstance(*place, each.id)
        if is_wanted:
            missing[each.slices] -= 1
            free += [] if is_held else [(each.slices, destroyed)]
        elif is_held:
            is_blocked = True
        else:
            surplus.append(destroyed)
    missing += Counter()
    if is_blocked:
        return (), True
    smaller = [(slices, each) for slices, each in free if slices < max(missing, default=0)]
    surplus += [each for _, each in smaller]
    missing += Counter(slices for slices, _ in smaller)
    created = (CreateComputeInstance(*place, size) for size in sorted(missing.elements(), reverse=True))
    return (*surplus, *created), False


def _moves(left: Sequence[Placement], created: Sequence[Placement]) -> Iterator[tuple[int, int, int]]:
    """(profile, from, to): what is destroyed here and created there."""
    going = list(created)
    for profile, start in left:
        to = next((each for each in going if each[0] == profile), None)
        if to is not None:
            going.remove(to)
            yield profile, start, to[1]
