"""docs/sandbox.md says what a played node does otherwise than a recorded kubelet."""

from pathlib import Path

from tests.cluster.sandbox.recorded import DIFFERENCES

PAGE = Path(__file__).parents[2] / "docs/sandbox.md"
HEADING = "### What a played node does otherwise"


def test_the_page_has_the_list() -> None:
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    assert tuple(" ".join(each.split()) for each in section.split("\n- ")[1:]) == DIFFERENCES
