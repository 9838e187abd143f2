"""Which named configuration is in force, as a table."""

import pytest

from gpuplane.core.config.named import Choice, choose
from gpuplane.core.strict import Invalid

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
    choice = choose(names, label, default, fallbacks, last)

    assert choice.name == name
    assert bool(choice.problem) == (fallbacks == ("named", "single"))


KNOWN = "known: a100, default"
NONE_FITS = "no configuration is asked for by name, there is no default, and no fallback fits"


@pytest.mark.parametrize(
    ("label", "default", "fallbacks", "problem"),
    [
        (
            "a10",
            "default",
            FALLBACKS,
            f"configuration 'a10', which the node's label asks for, does not exist; {KNOWN}; did you mean 'a100'?",
        ),
        ("", "gold", FALLBACKS, f"configuration 'gold', the default, does not exist; {KNOWN}"),
        ("", "", ("nmaed",), "fallback strategy 'nmaed' is not known; known: named, single, empty"),
        ("", "", ("single",), f"{NONE_FITS} (single); {KNOWN}"),
        ("", "", (), f"{NONE_FITS}; {KNOWN}"),
    ],
)
def test_what_cannot_be_followed_leaves_the_last_in_force(
    label: str, default: str, fallbacks: tuple[str, ...], problem: str
) -> None:
    """The problem names what there is; only where nothing was in force before, or it is gone too, is nothing now."""
    assert choose(BOTH, label, default, fallbacks, "a100") == Choice("a100", problem)
    assert choose(BOTH, label, default, fallbacks, "") == Choice("", problem)
    for last in (None, "removed"):
        with pytest.raises(Invalid) as caught:
            choose(BOTH, label, default, fallbacks, last)
        assert caught.value.errors == [problem]


def test_where_there_are_none() -> None:
    """An empty directory says so."""
    with pytest.raises(Invalid, match="'x', which the node's label asks for, does not exist; there are none"):
        choose((), "x", "", FALLBACKS, None)


def test_the_error_says_who_asked() -> None:
    """Not the node, where it was somebody else."""
    with pytest.raises(Invalid, match="'x', given by hand, does not exist"):
        choose(BOTH, "x", "", FALLBACKS, None, "given by hand")
