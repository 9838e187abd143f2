"""Where labels differ from NVIDIA's: one list, which docs/labels.md explains, and every entry of which a test shows."""

from tests.docs.test_tables import ROOT
from tests.node.core.labels import test_featurelabels, test_profiles, test_sharing_and_mig
from tests.node.core.labels.differences import DIFFERENCES, shown_by


def explained() -> list[str]:
    """The differences of the page, in its order."""
    section = (ROOT / "docs/labels.md").read_text().partition("## Where they differ from NVIDIA's")[2]
    return [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]


def test_the_page_explains_each_difference() -> None:
    """Once, and no other."""
    assert sorted(explained()) == sorted(DIFFERENCES)


def test_each_difference_is_shown_and_each_that_is_shown_is_listed() -> None:
    """In a table of what NVIDIA's would write, or by a test of its own."""
    in_tables = {
        *test_profiles.ALWAYS,
        *(code for ours in test_profiles.OURS.values() for code in ours),
        *(code for _, _, _, ours in test_sharing_and_mig.CASES.values() for code in ours),
        "by-model",
    }

    assert in_tables | shown_by(test_featurelabels) == {*DIFFERENCES}
