"""What fits on a card together, and beside it: held against every layout that the card can have."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.partitions.cards import cards
from gpuplane.node.core.partitions.combinations import check_names, combine
from gpuplane.node.model.partitions import GpuInstanceProfile
from tests.node.core.partitions.tables import FOUR, SEVEN, by_id, can_exist, multisets

CARDS = {"seven": SEVEN, "four": FOUR}


@given(st.data(), st.sampled_from([SEVEN, FOUR]))
def test_what_fits_beside_is_what_the_card_can_have(
    data: st.DataObject, profiles: tuple[GpuInstanceProfile, ...]
) -> None:
    """The instances can exist at the places that are named; so many more of each profile fit, and no more."""
    known = by_id(profiles)
    names = data.draw(st.lists(st.sampled_from([each.name for each in profiles]), min_size=1, max_size=8))
    ids = {each.name: each.id for each in profiles}
    counts = Counter(ids[name] for name in names)
    found = combine("card", profiles, names, is_verified=True)
    assert found is not None
    possible = set(multisets(profiles))
    assert found.is_possible == (tuple(sorted(counts.items())) in possible)
    assert bool(found.reason) != found.is_possible
    if found.is_possible:
        assert can_exist(profiles, [(ids[name], start) for name, start in found.instances])
        assert Counter(name for name, _ in found.instances) == Counter(names)
    for each in known.values() if found.is_possible else ():
        more = found.also_fits.get(each.name, 0)
        for extra in range(1, each.count + 1):
            beyond = counts + Counter({each.id: extra})
            assert (tuple(sorted(beyond.items())) in possible) == (extra <= more)


def test_compute_instances_share_a_gpu_instance() -> None:
    """1c + 2c are one 3g."""
    found = combine("card", SEVEN, ["1c.3g.40gb", "2c.3g.40gb"], is_verified=True)
    assert found is not None
    assert [name for name, _ in found.instances] == ["3g.40gb"]
    assert combine("card", SEVEN, ["1g.5gb"], is_verified=True) is None


def test_names_of_other_boards_and_wrong_ones() -> None:
    """A name that no card has is refused, with what was perhaps meant."""
    check_names([each.name for card in cards() for each in card.profiles])
    check_names(["7g.79gb", "1c.3g.40gb"])
    for wrong in ("1g5gb", "", "7g.50gb", "5g.40gb", "1g.10gb+mee"):
        with pytest.raises(ValueError, match=r".") as caught:
            check_names([wrong])
        assert not wrong or "did you mean" in str(caught.value)
