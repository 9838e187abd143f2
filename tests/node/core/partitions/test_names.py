"""The names of MIG profiles."""

import pytest

from gpuplane.kubernetes.migprofilenames import parse_profile
from gpuplane.node.core.partitions.names import find_profile, label_name, profile_name
from gpuplane.node.model.partitions import ComputeInstanceProfile, GpuInstanceProfile


def profile(id: int, name: str, slices: int, size: int) -> GpuInstanceProfile:
    """A profile with compute instances of its own size and of one slice."""
    sizes = sorted({1, slices})
    compute = tuple(ComputeInstanceProfile(id=i, slices=each, count=slices // each) for i, each in enumerate(sizes))
    return GpuInstanceProfile(
        id=id, name=name, slices=slices, size=size, starts=(0,), count=1, memory_mib=1, compute_profiles=compute
    )


CARD = (
    profile(19, "1g.10gb", 1, 1),
    profile(20, "1g.10gb+me", 1, 1),
    profile(15, "1g.20gb", 1, 2),
    profile(9, "3g.40gb", 3, 4),
    profile(0, "7g.80gb", 7, 8),
)


@pytest.mark.parametrize(
    ("name", "compute", "slices", "gigabytes", "attributes"),
    [
        ("1g.10gb", None, 1, 10, set()),
        ("1c.3g.40gb", 1, 3, 40, set()),
        ("3c.3g.40gb", None, 3, 40, set()),
        ("1g.10gb+me", None, 1, 10, {"+me"}),
        ("1g.24gb+me.all", None, 1, 24, {"+me.all"}),
        ("1g.24gb+gfx,me", None, 1, 24, {"+gfx", "+me"}),
        ("2g.48gb-me", None, 2, 48, {"-me"}),
        ("1c.2g.48gb+gfx-me", 1, 2, 48, {"+gfx", "-me"}),
    ],
)
def test_the_parts_of_a_name(name: str, compute: int | None, slices: int, gigabytes: int, attributes: set[str]) -> None:
    """The grammar of go-nvlib (pkg/nvlib/device/mig_profile.go)."""
    found = parse_profile(name)

    assert (found.compute_slices, found.slices, found.gigabytes) == (compute, slices, gigabytes)
    assert found.attributes == attributes


@pytest.mark.parametrize(
    "name",
    ["", "1g", "1g.10", "g.10gb", "0g.10gb", "1g.010gb", "1G.10GB", "1g.10gb+", "1g.10gb+xx", "4c.3g.40gb", "1g.10gb ",
     "1g.10gb+me,", "١g.10gb", "1g.10gb\n", "1c.1g.5gb+me-me"],
)  # fmt: skip
def test_what_is_no_name(name: str) -> None:
    """It is refused, with an example."""
    with pytest.raises(ValueError, match=r"1g\.10gb|known|does not fit|at once"):
        parse_profile(name)


@pytest.mark.parametrize(
    ("name", "id", "compute"),
    [("1g.10gb", 19, 1), ("1g.20gb", 15, 1), ("1c.3g.40gb", 9, 1), ("3g.39gb", 9, 3), ("7g.79gb", 0, 7),
     ("1g.10gb+me", 20, 1)],
)  # fmt: skip
def test_the_profile_that_a_name_means(name: str, id: int, compute: int) -> None:
    """Boards and drivers round gigabytes differently (mig-parted#351)."""
    found, slices = find_profile(name, CARD)

    assert (found.id, slices) == (id, compute)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("1g.5gb", r"it has 1g.10gb, 1g.10gb\+me, 1g.20gb"),
        ("2g.20gb", "this GPU has no profile 2g.20gb"),
        ("3g.40gb+me", "no profile"),
        ("2c.3g.40gb", "1c, 3c"),
        ("7g.83gb", "no profile 7g.83gb"),
    ],
)
def test_a_profile_that_a_card_has_not(name: str, why: str) -> None:
    """It is said which it has."""
    with pytest.raises(ValueError, match=why):
        find_profile(name, CARD)


def test_the_name_of_a_compute_instance() -> None:
    """It has its slices only where they are not all of its GPU instance."""
    assert [profile_name(CARD[3], each) for each in (1, 3)] == ["1c.3g.40gb", "3g.40gb"]
    assert label_name("1g.10gb+me") == "1g.10gb.me"


@pytest.mark.parametrize(
    ("name", "there", "is_meant"),
    [("4g.93gb", "4g.95gb", True), ("7g.186gb", "7g.189gb", True), ("1g.23gb", "1g.24gb", True),
     ("4g.93gb", "4g.90gb", False), ("2g.47gb", "2g.45gb", False), ("7g.186gb", "7g.180gb", False),
     ("3g.139gb", "3g.135gb", False), ("1g.5gb", "1g.6gb", False)],
)  # fmt: skip
def test_a_profile_of_another_board_is_refused(name: str, there: str, is_meant: bool) -> None:
    """Drivers round the memory of one board, GB200, in two ways; those of B200, GB300 and B300 are other profiles.
    (The sizes of NVIDIA's default configurations of mig-parted, which takes a name to the letter.)"""
    card = (profile(1, there, int(there[0]), 4),)
    if is_meant:
        assert find_profile(name, card)[0].name == there
    else:
        with pytest.raises(ValueError, match=f"this GPU has no profile {name}; it has {there}"):
            find_profile(name, card)
