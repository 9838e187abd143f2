"""Which MIG devices fit on a card together, and what beside them: for people who plan."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpuplane.base.strict import closest_match
from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.migprofilenames import parse_profile
from gpuplane.node.core.partitions.cards import cards
from gpuplane.node.core.partitions.layouts import layouts_of, reason_not_to_fit
from gpuplane.node.core.partitions.names import find_profile
from gpuplane.node.core.partitions.plan import wanted_instances
from gpuplane.node.model.partitions import GpuInstanceProfile, GpuLayout


class Combination(Value, omit_defaults=False):
    """What one card can do with some MIG devices. `reason`: why it cannot have them; "" where it can.

    `instances`: GPU instances, each with its first memory slice, as the card has most room beside them. `also_fits`:
    name of a profile → how many of it fit in addition, if nothing else does. `is_verified`: the places are.
    """

    card: str
    is_possible: bool
    reason: Text
    instances: tuple[tuple[str, int], ...]
    also_fits: Mapping[str, int]
    is_verified: bool


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError, with what was perhaps meant, where a name is none, or no card has such a profile."""
    known = dict.fromkeys(each.name for card in cards() for each in card.profiles)
    for name in names:
        close = closest_match(name, known)
        hint = f"; did you mean {close!r}?" if close else ""
        try:
            parse_profile(name)
        except ValueError as error:
            raise ValueError(f"{error}{hint}") from None
        if not any(_has(card.profiles, name) for card in cards()):
            raise ValueError(f"no card has a profile {name!r}{hint}")


def combine(
    card: str, profiles: tuple[GpuInstanceProfile, ...], names: Sequence[str], *, is_verified: bool
) -> Combination | None:
    """What a card with these profiles can do with MIG devices of these names; None where it has no such profiles."""
    if not all(_has(profiles, name) for name in names):
        return None
    counts, reason = _instance_counts(profiles, names)
    by_id = {each.id: each.name for each in profiles}
    if reason:
        return Combination(card, is_possible=False, reason=reason, instances=(), also_fits={}, is_verified=is_verified)
    best = layouts_of(profiles, tuple(sorted(counts.items())))[0]
    return Combination(
        card,
        is_possible=True,
        reason="",
        instances=tuple((by_id[profile], start) for profile, start in sorted(best, key=lambda each: each[1])),
        also_fits=dict(_beside(profiles, counts)),
        is_verified=is_verified,
    )


def _instance_counts(profiles: tuple[GpuInstanceProfile, ...], names: Sequence[str]) -> tuple[dict[int, int], Text]:
    """How many GPU instances of each profile the devices need, and why the card cannot have them; "" where it can."""
    try:
        wanted = wanted_instances(GpuLayout(mig_enabled=True, mig_devices=Counter(names)), profiles)
    except ValueError as error:
        return {}, str(error)
    counts = {profile: len(contents) for profile, contents in wanted.contents.items()}
    return counts, reason_not_to_fit(profiles, counts)


def _beside(profiles: tuple[GpuInstanceProfile, ...], counts: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    """(name of a profile, how many of it fit in addition), for those of which any does."""
    for each in profiles:
        there = counts.get(each.id, 0)
        for more in range(each.count - there, 0, -1):
            if layouts_of(profiles, tuple(sorted({**counts, each.id: there + more}.items()))):
                yield each.name, more
                break


def _has(profiles: Sequence[GpuInstanceProfile], name: str) -> bool:
    try:
        find_profile(name, profiles)
    except ValueError:
        return False
    return True
