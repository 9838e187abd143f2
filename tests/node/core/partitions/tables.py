"""Cards as NVIDIA's MIG guide has them (its tables of profiles and placements), and a plain model of what fits on one.

Written for the tests, apart from the tables and rules of the program.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from functools import cache

from gpuplane.node.model.partitions import (
    ComputeInstance,
    ComputeInstanceProfile,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstance,
    GpuInstanceProfile,
    PartitionChange,
)

Placement = tuple[int, int]
Profiles = tuple[GpuInstanceProfile, ...]


def _profile(id: int, name: str, slices: int, size: int, starts: tuple[int, ...], count: int) -> GpuInstanceProfile:
    compute = tuple(
        ComputeInstanceProfile(id=number, slices=each, count=slices // each)
        for number, each in enumerate((1, 2, 3, 4, 7))
        if each <= slices and (slices, each) != (4, 3)
    )
    return GpuInstanceProfile(
        id=id, name=name, slices=slices, size=size, starts=starts, count=count, memory_mib=size * 10_000,
        compute_profiles=compute,
    )  # fmt: skip


SEVEN: Profiles = (  # A100 80GB
    _profile(19, "1g.10gb", 1, 1, (0, 1, 2, 3, 4, 5, 6), 7),
    _profile(20, "1g.10gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), 1),
    _profile(15, "1g.20gb", 1, 2, (0, 2, 4, 6), 4),
    _profile(14, "2g.20gb", 2, 2, (0, 2, 4), 3),
    _profile(9, "3g.40gb", 3, 4, (0, 4), 2),
    _profile(5, "4g.40gb", 4, 4, (0,), 1),
    _profile(0, "7g.80gb", 7, 8, (0,), 1),
)
FOUR: Profiles = (  # A30
    _profile(14, "1g.6gb", 1, 1, (0, 1, 2, 3), 4),
    _profile(21, "1g.6gb+me", 1, 1, (0, 1, 2, 3), 1),
    _profile(5, "2g.12gb", 2, 2, (0, 2), 2),
    _profile(6, "2g.12gb+me", 2, 2, (0, 2), 1),
    _profile(0, "4g.24gb", 4, 4, (0,), 1),
)


def by_id(profiles: Profiles) -> dict[int, GpuInstanceProfile]:
    """A card's profiles by their ids."""
    return {each.id: each for each in profiles}


def can_exist(profiles: Profiles, layout: Collection[Placement]) -> bool:
    """Whether these instances can be there together: no memory slice twice, no profile too often, one `+me`.

    Beside one that has all media engines (`+me.all`), the others are without (`-me`).
    """
    known = by_id(profiles)
    taken = [slice for id, start in layout for slice in range(start, start + known[id].size)]
    counts = Counter(id for id, _ in layout)
    return (
        len(taken) == len(set(taken))
        and all(counts[id] <= known[id].count for id in counts)
        and sum(known[id].name.endswith("+me") for id, _ in layout) <= 1
        and sum(not known[id].name.endswith("-me") for id, _ in layout)
        <= (1 if any(known[id].name.endswith("+me.all") for id, _ in layout) else 8)
    )


@cache
def all_layouts(profiles: Profiles) -> tuple[frozenset[Placement], ...]:
    """Every layout that a card can have, the empty one included."""
    places = [(each.id, start) for each in profiles for start in each.starts]

    def grow(layout: tuple[Placement, ...], left: list[Placement]) -> Iterator[frozenset[Placement]]:
        yield frozenset(layout)
        for number, place in enumerate(left):
            if can_exist(profiles, (*layout, place)):
                yield from grow((*layout, place), left[number + 1 :])

    return tuple(grow((), places))


@cache
def multisets(profiles: Profiles) -> tuple[tuple[tuple[int, int], ...], ...]:
    """How many of each profile a card can have together: every possibility, as (id, count)."""
    found = (Counter(id for id, _ in layout) for layout in all_layouts(profiles))
    return tuple(sorted({tuple(sorted(each.items())) for each in found}))


@cache
def layouts_by_multiset(profiles: Profiles) -> dict[tuple[tuple[int, int], ...], list[frozenset[Placement]]]:
    """How many of each profile → every layout with these."""
    found: dict[tuple[tuple[int, int], ...], list[frozenset[Placement]]] = {}
    for layout in all_layouts(profiles):
        found.setdefault(tuple(sorted(Counter(id for id, _ in layout).items())), []).append(layout)
    return found


class Card:
    """A card that has instances, and makes and destroys them by the rules. A wrong change fails the test."""

    def __init__(self, profiles: Profiles, layout: Collection[Placement]) -> None:
        self.profiles, self.changes = profiles, 0
        self.there: dict[Placement, list[ComputeInstance]] = {}
        self._ids: dict[Placement, int] = {}
        for place in sorted(layout):
            self.create(place)
            self.there[place] = [ComputeInstance(id=0, slices=by_id(profiles)[place[0]].slices)]

    @property
    def instances(self) -> tuple[GpuInstance, ...]:
        """As the driver lists them."""
        known = by_id(self.profiles)
        return tuple(
            GpuInstance(
                id=self._ids[place], profile=place[0], start=place[1], size=known[place[0]].size,
                compute_instances=tuple(parts),
            )
            for place, parts in self.there.items()
        )  # fmt: skip

    def take_over(self, instances: Collection[GpuInstance]) -> None:
        """Have these instances, and no others."""
        self.there = {each.placement: list(each.compute_instances) for each in instances}
        self._ids = {each.placement: each.id for each in instances}

    def create(self, place: Placement) -> None:
        """A GPU instance without compute instances."""
        assert place[1] in by_id(self.profiles)[place[0]].starts
        assert can_exist(self.profiles, {*self.there, place})
        assert place not in self.there
        self.there[place] = []
        self._ids[place] = next(id for id in range(1, 99) if id not in self._ids.values())

    def make(self, change: PartitionChange) -> None:
        """One change."""
        self.changes += 1
        match change:
            case CreateGpuInstance(profile, start):
                self.create((profile, start))
            case DestroyGpuInstance(instance, profile, start):
                assert self._ids.pop((profile, start)) == instance
                assert not self.there.pop((profile, start)), "it still has compute instances"
            case CreateComputeInstance(profile, start, slices):
                parts = self.there[profile, start]
                assert sum(each.slices for each in parts) + slices <= by_id(self.profiles)[profile].slices
                free = next(id for id in range(9) if all(each.id != id for each in parts))
                parts.append(ComputeInstance(id=free, slices=slices))
            case DestroyComputeInstance(profile, start, compute_instance):
                before = self.there[profile, start]
                self.there[profile, start] = [each for each in before if each.id != compute_instance]
                assert len(self.there[profile, start]) == len(before) - 1
            case _:
                raise AssertionError(change)
