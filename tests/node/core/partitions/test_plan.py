"""The way from any layout of a card to any that is requested, whatever is held: it reaches it, or proves why not."""

import random
import re
from collections.abc import Iterator
from itertools import chain, combinations

import pytest

from gpuplane.node.core.partitions.layouts import layouts_of
from gpuplane.node.core.partitions.plan import Fixed, InstancesPlan, WantedInstances, plan_instances, wanted_instances
from gpuplane.node.model.partitions import (
    ComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuInstance,
    GpuLayout,
    PlacedInstance,
)
from tests.lengths import length
from tests.node.core.partitions.tables import (
    FOUR,
    SEVEN,
    Card,
    Placement,
    Profiles,
    all_layouts,
    by_id,
    layouts_by_multiset,
    multisets,
)


def whole(profiles: Profiles, counts: tuple[tuple[int, int], ...]) -> WantedInstances:
    """So many of each profile, each with one compute instance."""
    known = by_id(profiles)
    return WantedInstances({id: ((known[id].slices,),) * count for id, count in counts})


def check(
    profiles: Profiles, layout: frozenset[Placement], held: frozenset[Placement], wanted: WantedInstances
) -> None:
    """Carry out a plan, and hold it to a search through every layout that the card can have."""
    card, counts = Card(profiles, layout), {id: len(found) for id, found in wanted.contents.items()}
    fixed = Fixed(held, frozenset((place, part.id) for place in held for part in card.there[place]))
    plan = plan_instances(profiles, card.instances, wanted, fixed)
    goals = layouts_by_multiset(profiles).get(tuple(sorted(counts.items())), [])
    if not goals:
        assert plan.problem
        return
    assert not plan.problem
    for change in plan.changes:
        card.make(change)
    assert held <= card.there.keys(), "what is held stays"
    reached = frozenset(card.there)
    around = [each for each in goals if held <= each]
    if around:
        assert not plan.blocked_by
        assert not plan.later
        assert reached in goals
        operations = sum(isinstance(each, CreateGpuInstance | DestroyGpuInstance) for each in plan.changes)
        assert operations == min(len(layout ^ each) for each in around), "the fewest"
        again = sum(2 for place in layout - held) + sum(2 for _ in range(sum(counts.values()) - len(held)))
        assert len(plan.changes) <= again, "no more than destroying and creating all that is free"
    else:
        assert plan.blocked_by
        assert len(plan.blocked_by) == min(len(held - each) for each in goals), "the fewest have to end"
        assert any(reached - held <= each for each in goals), "all else is part of one layout"
    rest = plan_instances(profiles, card.instances, wanted, fixed)
    assert not rest.changes, "it rests"
    if plan.blocked_by:
        ended = plan_instances(profiles, card.instances, wanted, Fixed(held - set(plan.blocked_by)))
        for change in ended.changes:
            card.make(change)
        assert frozenset(card.there) in goals, "when these have ended it is reached"
    assert all(parts == [ComputeInstance(0, by_id(profiles)[id].slices)] for (id, _), parts in card.there.items())


def subsets(layout: frozenset[Placement]) -> Iterator[frozenset[Placement]]:
    """Every subset."""
    places = sorted(layout)
    return map(frozenset, chain.from_iterable(combinations(places, n) for n in range(len(places) + 1)))


def test_every_way_on_a_card_of_four_slices() -> None:
    """From every layout, with every subset held, to every multiset; a sample of them where time is short."""
    cases = [(layout, held) for layout in all_layouts(FOUR) for held in subsets(layout)]
    for layout, held in random.sample(cases, length(60, len(cases))):
        for counts in multisets(FOUR):
            check(FOUR, layout, held, whole(FOUR, counts))


def test_ways_on_a_card_of_seven_slices() -> None:
    """Random ones of some millions."""
    layouts, wanted = all_layouts(SEVEN), multisets(SEVEN)
    for _ in range(length(400, 100_000)):
        layout = random.choice(layouts)
        held = frozenset(place for place in layout if random.random() < 0.4)
        check(SEVEN, layout, held, whole(SEVEN, random.choice(wanted)))


@pytest.mark.parametrize("profiles", [SEVEN, FOUR], ids=["7 slices", "4 slices"])
def test_what_no_card_can_have_is_refused_and_nothing_else(profiles: Profiles) -> None:
    """Every multiset of up to one more of each profile than a card can have."""
    possible = set(multisets(profiles))
    for _ in range(length(300, 20_000)):
        counts = {each.id: random.randint(0, each.count + 1) for each in profiles}
        wanted = tuple(sorted((id, count) for id, count in counts.items() if count))
        plan = plan_instances(profiles, (), whole(profiles, wanted), Fixed())
        assert bool(plan.problem) == (wanted not in possible), wanted
        assert bool(layouts_of(profiles, wanted)) == (wanted in possible)


def test_the_layouts_of_a_card() -> None:
    """The tables are those of the guide: 2,319 layouts of a card with seven slices."""
    assert (len(all_layouts(SEVEN)), len(multisets(SEVEN))) == (2319, 128)


def planned(profiles: Profiles, layout: dict[Placement, str], wanted: dict[str, int]) -> InstancesPlan:
    """The plan from a layout (place → "" or "held")."""
    held = frozenset(place for place, who in layout.items() if who)
    return plan_instances(
        profiles, Card(profiles, layout).instances, wanted_instances(GpuLayout(True, wanted), profiles), Fixed(held)
    )


def test_an_instance_is_added_beside_others() -> None:
    """Nothing is destroyed for it: NVIDIA's mig-parted destroys all instances of the card first."""
    plan = planned(SEVEN, {(9, 4): "held", (19, 0): ""}, {"3g.40gb": 1, "1g.10gb": 2})

    assert [type(each).__name__ for each in plan.changes] == ["CreateGpuInstance", "CreateComputeInstance"]


def test_a_free_instance_that_is_in_the_way_moves() -> None:
    """And the plan says so."""
    plan = planned(SEVEN, {(9, 4): "held", (19, 1): ""}, {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb+me": 1, "1g.10gb": 1})
    assert not plan.moves
    plan = planned(SEVEN, {(19, 4): "", (19, 0): "held"}, {"3g.40gb": 1, "1g.10gb": 2})

    assert plan.moves[0][:2] == (19, 4)


def test_what_waits_for_a_pod_names_its_instance() -> None:
    """The rest is made around it."""
    plan = planned(SEVEN, {(9, 0): "held", (19, 4): ""}, {"4g.40gb": 1, "1g.10gb": 3})

    assert (plan.blocked_by, plan.later) == (((9, 0),), ((5, 0),))
    assert sum(isinstance(each, CreateGpuInstance) for each in plan.changes) == 2


def test_the_room_that_is_left_is_the_largest() -> None:
    """Among equals: a single 1g leaves room for 4g or 3g."""
    plan = planned(SEVEN, {}, {"1g.10gb": 1})

    assert plan.changes[0] in [CreateGpuInstance(19, start) for start in (4, 5, 6)]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"4g.40gb": 1, "3g.40gb": 2}, "take 12 memory slices, and the card has 8"),
        ({"7g.80gb": 1, "1g.10gb": 1}, "memory slices"),
        ({"2g.20gb": 2, "1g.20gb": 2, "1g.10gb": 1}, "memory slices"),
        ({"2g.20gb": 3, "1g.20gb": 1, "1g.10gb": 0}, ""),
        ({"4g.40gb": 1, "2g.20gb": 2}, "take 8 compute slices, and the card has 7"),
    ],
)
def test_why_it_does_not_fit(wanted: dict[str, int], why: str) -> None:
    """Before anything is touched."""
    plan = planned(SEVEN, {}, wanted)

    assert re.search(why, str(plan.problem)) if why else not plan.problem
    assert bool(plan.changes) != bool(why)


def test_compute_instances_share_gpu_instances_as_mig_parted_makes_them() -> None:
    """Those of one profile, the largest first, as long as they fit."""
    wanted = wanted_instances(GpuLayout(True, {"1c.3g.40gb": 2, "2c.3g.40gb": 1}), SEVEN)

    assert wanted.contents == {9: ((2, 1), (1,))}


def part_of(parts: tuple[int, ...]) -> tuple[GpuInstance, ...]:
    """A 3g with compute instances of these slices, by their ids."""
    return (GpuInstance(2, 9, 4, 4, tuple(ComputeInstance(id, slices) for id, slices in enumerate(parts))),)


def test_compute_instances_are_changed_one_by_one() -> None:
    """Those that are held stay, and so do those that are wanted."""
    wanted = wanted_instances(GpuLayout(True, {"1c.3g.40gb": 3}), SEVEN)
    held = Fixed(frozenset({(9, 4)}), frozenset({((9, 4), 1)}))
    plan = plan_instances(SEVEN, part_of((2, 1)), wanted, held)
    assert plan.changes[0] == DestroyComputeInstance(9, 4, 0)
    assert len(plan.changes) == 3
    blocked = plan_instances(SEVEN, part_of((3,)), wanted, Fixed(frozenset({(9, 4)}), frozenset({((9, 4), 0)})))

    assert (blocked.changes, blocked.blocked_by) == ((), ((9, 4),))


def test_a_saved_layout_has_its_places() -> None:
    """Also where another place would leave more room, and take fewer changes."""
    layout = GpuLayout(True, {}, (PlacedInstance("1g.10gb", 0, (1,)), PlacedInstance("2g.20gb", 4, (2,))))
    card = Card(SEVEN, [(19, 6), (14, 4)])
    plan = plan_instances(SEVEN, card.instances, wanted_instances(layout, SEVEN), Fixed())
    for change in plan.changes:
        card.make(change)

    assert set(card.there) == {(19, 0), (14, 4)}


@pytest.mark.parametrize("held", [None, (9, 0), (9, 4)])
def test_contents_stay_where_they_are_whoever_holds_them(held: Placement | None) -> None:
    """Two GPU instances of one profile with different compute instances are not exchanged."""
    there = (
        GpuInstance(1, 9, 0, 4, (ComputeInstance(0, 2), ComputeInstance(1, 1))),
        GpuInstance(2, 9, 4, 4, (ComputeInstance(0, 1),)),
    )
    parts = frozenset((each.placement, 0) for each in there if each.placement == held)
    fixed = Fixed(frozenset(place for place, _ in parts), parts)
    wanted = wanted_instances(GpuLayout(True, {"1c.3g.40gb": 2, "2c.3g.40gb": 1}), SEVEN)

    assert plan_instances(SEVEN, there, wanted, fixed) == InstancesPlan()
