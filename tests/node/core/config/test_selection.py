"""Which named configuration is in force, as a table."""

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.config.selection import select_config
from tests.golden import Golden

BOTH = ("a100", "default")
FALLBACKS = ("named", "single", "empty")


@pytest.mark.parametrize(
    ("names", "label", "default", "fallbacks", "last", "name"),
    [
        (BOTH, "a100", "default", FALLBACKS, None, "a100"),
        (BOTH, "a100", "missing", (), "default", "a100"),
        (BOTH, "", "a100", FALLBACKS, "default", "a100"),
        (BOTH, "", "", FALLBACKS, None, "default"),
        (BOTH, "", "", ("empty", "named"), None, ""),
        (("x",), "", "", FALLBACKS, None, "x"),
        (("x", "y"), "", "", FALLBACKS, None, ""),
        ((), "", "", FALLBACKS, None, ""),
        (("x", "y"), "", "", ("named", "single"), "y", "y"),
    ],
)
def test_label_then_default_then_fallbacks(
    names: tuple[str, ...], label: str, default: str, fallbacks: tuple[str, ...], last: str | None, name: str
) -> None:
    """NVIDIA's order. The last case has nothing to choose, and keeps what was in force."""
    choice = select_config(names, label, default, fallbacks, last)

    assert choice.name == name
    assert bool(choice.problem) == (fallbacks == ("named", "single"))


@pytest.mark.parametrize(
    ("label", "default", "fallbacks"),
    [
        (
            "a10",
            "default",
            FALLBACKS,
        ),
        ("", "gold", FALLBACKS),
        ("", "", ("nmaed",)),
        ("", "", ("single",)),
        ("", "", ()),
    ],
)
def test_what_cannot_be_followed_leaves_the_last_in_force(
    label: str, default: str, fallbacks: tuple[str, ...], golden: Golden
) -> None:
    """The problem names what there is; only where nothing was in force before, or it is gone too, is nothing now."""
    choice = select_config(BOTH, label, default, fallbacks, "a100")
    assert choice.name == "a100"
    assert choice.problem
    golden(choice.problem)
    assert select_config(BOTH, label, default, fallbacks, "") == choice.but(name="")
    for last in (None, "removed"):
        with pytest.raises(InvalidInput) as caught:
            select_config(BOTH, label, default, fallbacks, last)
        assert caught.value.errors == [choice.problem]


def test_where_there_are_none(golden: Golden) -> None:
    """An empty directory says so."""
    with pytest.raises(InvalidInput) as caught:
        select_config((), "x", "", FALLBACKS, None)
    golden(caught.value.errors)


def test_the_error_says_who_asked(golden: Golden) -> None:
    """Not the node, where it was somebody else."""
    with pytest.raises(InvalidInput, match=r"'x'.*given by hand"):
        select_config(BOTH, "x", "", FALLBACKS, None, "given by hand")
