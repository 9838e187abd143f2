"""Every layout that fits on a card is reached, change by change, on every card; and no change undoes another one."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement, product
from random import Random

import pytest

from gpuplane.node.core.partitions.cards import Card as KnownCard
from gpuplane.node.core.partitions.cards import cards
from gpuplane.node.core.partitions.gpuplan import current_layout, plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts
from gpuplane.node.core.partitions.names import profile_name
from gpuplane.node.hardware.described.migchanges import make_change
from gpuplane.node.model.machine import Gpu, Mig
from gpuplane.node.model.partitions import GpuInstanceProfile, GpuLayout, PartitionChange
from tests.lengths import length
from tests.node.core.partitions.tables import FOUR, SEVEN, Card, Profiles, by_id, multisets

Devices = tuple[tuple[str, int], ...]
"""MIG devices of a layout: (name, how many)."""


@cache
def contents_of(profile: GpuInstanceProfile) -> tuple[tuple[int, ...], ...]:
    """What one GPU instance can contain: the slices of its compute instances."""
    sizes = [each.slices for each in profile.compute_profiles]
    every = (found for count in range(1, profile.slices + 1) for found in combinations_with_replacement(sizes, count))
    return tuple(found for found in every if sum(found) <= profile.slices)


@cache
def fitting(profiles: Profiles) -> tuple[Devices, ...]:
    """All that a card can have at once: a search through each way to have it."""
    known = by_id(profiles)
    found: set[Devices] = set()
    for instances in multisets(profiles):
        each_profile = ([known[id]] * count for id, count in instances)
        profiles_there = [profile for some in each_profile for profile in some]
        for contents in product(*map(contents_of, profiles_there)):
            names = (
                profile_name(profile, size)
                for profile, sizes in zip(profiles_there, contents, strict=True)
                for size in sizes
            )
            found.add(tuple(sorted(Counter(names).items())))
    return tuple(sorted(found - {()}))


def changes_to(gpu: Gpu, devices: Devices) -> Iterator[tuple[Gpu, PartitionChange]]:
    """The way of a described GPU to these devices: each change, and the GPU after it. Each is planned anew."""
    layout = GpuLayout(mig_enabled=True, mig_devices=dict(devices), replaces_foreign=True)
    for _ in range(60):
        plan = plan_gpu(gpu, layout, HeldParts(), ())
        assert not plan.problem, (devices, plan.problem)
        if plan.is_done:
            return
        gpu = make_change(gpu, plan.changes[0], ())
        yield gpu, plan.changes[0]
    raise AssertionError(f"{devices}: it does not end")


def check(gpu: Gpu, profiles: Profiles, devices: Devices) -> int:
    """Carry a layout out on the described driver and on the tests' own card. How many changes it took."""
    card, changes = Card(profiles, ()), 0
    for after, change in changes_to(gpu, devices):
        gpu, changes = after, changes + 1
        card.make(change)
    assert current_layout(gpu).mig_devices == dict(devices)
    assert changes == len(gpu.gpu_instances) + sum(count for _, count in devices), "each makes one instance that stays"
    return changes


def empty(profiles: Profiles) -> Gpu:
    """A GPU in MIG mode without instances."""
    return Gpu(index=0, uuid="GPU-0", memory_mib=80_000, mig=Mig(enabled=True, profiles=profiles, instances=()))


def some(layouts: tuple[Devices, ...]) -> list[Devices]:
    """A few of them; all in the long run."""
    return Random().sample(layouts, min(len(layouts), length(25, 1_000_000)))


@pytest.mark.parametrize("profiles", [SEVEN, FOUR], ids=["A100", "A30"])
def test_every_layout_by_the_guides_placements(profiles: Profiles) -> None:
    """None is refused that a search finds."""
    assert len(fitting(profiles)) > 40
    for devices in fitting(profiles):
        check(empty(profiles), profiles, devices)


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_every_layout_of_every_card(card: KnownCard) -> None:
    """By what the table of cards says."""
    for devices in some(fitting(card.profiles)):
        check(empty(card.profiles), card.profiles, devices)


@pytest.mark.parametrize("profiles", [SEVEN, FOUR], ids=["A100", "A30"])
def test_from_any_layout_to_any_other(profiles: Profiles) -> None:
    """What is created stays."""
    layouts = fitting(profiles)
    for before, after in zip(some(layouts), some(layouts), strict=True):
        *_, (there, _) = changes_to(empty(profiles), before)
        created: set[object] = set()
        for reached, change in changes_to(there, after):
            there = reached
            kind, place = type(change).__name__, (getattr(change, "profile", 0), getattr(change, "start", 0))
            assert not (kind.startswith("Destroy") and place in created), (before, after)
            created |= {place} if kind.startswith("Create") else set()
        assert current_layout(there).mig_devices == dict(after)


@pytest.mark.parametrize(
    "devices",
    [
        {"2c.4g.40gb": 2},
        {"2c.7g.80gb": 3},
        {"3c.7g.80gb": 2},
        {"1c.3g.40gb": 2, "2c.3g.40gb": 2},
        {"1c.7g.80gb": 1, "3c.7g.80gb": 2},
    ],
)
def test_layouts_that_were_never_reached_or_refused(devices: dict[str, int]) -> None:
    """Compute instances of several slices beside each other."""
    assert tuple(sorted(devices.items())) in fitting(SEVEN)
    check(empty(SEVEN), SEVEN, tuple(sorted(devices.items())))
