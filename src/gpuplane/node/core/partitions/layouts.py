"""Which GPU instances fit on a card together, and where.

A placement is (id of a profile, first memory slice). Instances must not overlap in memory slices; a profile has a most
of instances; there are so many compute slices, and media engines for one instance with `+me`. The driver is the last
judge: what it refuses all the same fails with its reason.

All layouts of a request can be listed: a card has at most eight memory slices. That is done once for each request and
card, and kept.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from gpuplane.node.model.partitions import GpuInstanceProfile

Placement = tuple[int, int]
"""(id of a profile, first memory slice)."""
Layout = frozenset[Placement]
Profiles = tuple[GpuInstanceProfile, ...]


def fits(profiles: Profiles, placements: Collection[Placement]) -> bool:
    """Whether instances at these placements can exist together."""
    known = _by_id(profiles)
    if any(profile not in known for profile, _ in placements):
        return False
    mask = 0
    for profile, start in placements:
        bits = _bits(known[profile], start)
        if mask & bits:
            return False
        mask |= bits
    return _counts_fit(profiles, Counter(profile for profile, _ in placements))


def memory_slices(profiles: Profiles) -> int:
    """The memory slices of a card: those of its largest profile."""
    return max((start + each.size for each in profiles for start in each.starts), default=0)


def reason_not_to_fit(profiles: Profiles, wanted: Mapping[int, int]) -> str:
    """Why so many instances of each profile cannot be on the card, for people; "" if they can."""
    known = _by_id(profiles)
    for profile, count in wanted.items():
        if count > known[profile].count:
            return f"the card can have {known[profile].count} of {known[profile].name}, not {count}"
    if layouts_of(profiles, tuple(sorted(wanted.items()))):
        return ""
    whole, asked = memory_slices(profiles), sum(known[each].size * count for each, count in wanted.items())
    names = " + ".join(f"{count} × {known[each].name}" for each, count in wanted.items())
    if asked > whole:
        return f"{names} take {asked} memory slices, and the card has {whole}"
    slices = sum(known[each].slices * count for each, count in wanted.items())
    if slices > _compute_slices(profiles):
        return f"{names} take {slices} compute slices, and the card has {_compute_slices(profiles)}"
    return f"{names} do not fit on the card together: no placement of all of them exists"


@lru_cache(2048)
def layouts_of(profiles: Profiles, wanted: tuple[tuple[int, int], ...]) -> tuple[Layout, ...]:
    """Every layout with so many instances of each profile: (id, count). The one that leaves most room is the first."""
    known = _by_id(profiles)
    if any(profile not in known for profile, _ in wanted) or not _counts_fit(profiles, dict(wanted)):
        return ()
    order = sorted(wanted, key=lambda each: -known[each[0]].size)
    found = _arrange([(known[profile], count) for profile, count in order if count], 0)
    return tuple(sorted(map(frozenset, found), key=lambda layout: (room_beside(profiles, layout), sorted(layout))))


@lru_cache(16384)
def room_beside(profiles: Profiles, layout: Layout) -> tuple[int, ...]:
    """How much still fits beside a layout: less is more room. For each profile, the largest first, how many do not."""
    known = _by_id(profiles)
    mask = sum(_bits(known[profile], start) for profile, start in layout)
    largest = sorted(profiles, key=lambda each: (-each.slices, -each.size, each.id))
    return tuple(-sum(not mask & _bits(each, start) for start in each.starts) for each in largest)


def _arrange(left: Sequence[tuple[GpuInstanceProfile, int]], mask: int) -> Iterator[tuple[Placement, ...]]:
    if not left:
        yield ()
        return
    (profile, count), *others = left
    free = [start for start in profile.starts if not mask & _bits(profile, start)]
    for starts in combinations(free, count):
        taken = mask
        for start in starts:
            if taken & _bits(profile, start):
                break
            taken |= _bits(profile, start)
        else:
            for rest in _arrange(others, taken):
                yield (*((profile.id, start) for start in starts), *rest)


def _counts_fit(profiles: Profiles, counts: Mapping[int, int]) -> bool:
    known = _by_id(profiles)
    if any(count > known[each].count for each, count in counts.items()):
        return False
    if sum(known[each].slices * count for each, count in counts.items()) > _compute_slices(profiles):
        return False
    names = [known[each].name for each, count in counts.items() for _ in range(count)]
    if any(name.endswith("+me.all") for name in names):  # it has all media engines
        return all(name.endswith("-me") for name in names if not name.endswith("+me.all"))
    return sum(name.endswith("+me") for name in names) <= 1


@lru_cache(256)
def _by_id(profiles: Profiles) -> Mapping[int, GpuInstanceProfile]:
    return {each.id: each for each in profiles}


@lru_cache(256)
def _compute_slices(profiles: Profiles) -> int:
    return max((each.slices for each in profiles), default=0)


def _bits(profile: GpuInstanceProfile, start: int) -> int:
    return ((1 << profile.size) - 1) << start
