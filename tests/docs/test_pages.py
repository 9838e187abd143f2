"""The index lists every page once, README leads to the index, and every link has a target."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNBOOKS = [*ROOT.glob("docs/runbooks/*.md")]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md"), *RUNBOOKS]
INDEX = ROOT / "docs/README.md"


def _links(page: Path) -> list[str]:
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in each]


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_index_lists_every_page_once() -> None:
    """Each page of docs/ and deploy/ but the index itself, and CONTRIBUTING; README comes before the tables.

    Pages of alerts are listed by monitoring.md.
    """
    listed = [(INDEX.parent / each).resolve() for each in _links(INDEX)]

    assert sorted(listed) == sorted({*PAGES} - {INDEX} - {*RUNBOOKS})


def test_each_entry_of_the_index_is_a_question() -> None:
    """Readers come with a question, not with the name of a part of ours."""
    rows = re.findall(r"^\| (.*) \| \[.*\|$", INDEX.read_text(), re.M)

    assert len(rows) == len(_links(INDEX)) - 1  # README has no row
    assert [row for row in rows if not row.endswith("?")] == []


def test_the_readme_leads_to_the_index() -> None:
    """Whoever starts there finds every page."""
    assert INDEX.relative_to(ROOT).as_posix() in _links(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and a heading in it."""
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page

        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_a_page_names_are_there(page: Path) -> None:
    """By their path, or the end of it."""
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text()):
        assert [each for root in ("src", "tests", "bench") for each in (ROOT / root).glob(f"**/{name}")] or (
            ROOT / name
        ).exists(), name


def test_the_readme_is_an_entrance() -> None:
    """It stays short: more belongs into a page."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_page_of_promises_has_every_golden_file() -> None:
    """Of tests/conformance/golden; and each that it names is there."""
    named = re.findall(r"`([\w-]+\.(?:txt|yaml))`", (ROOT / "docs/stability.md").read_text())

    assert {*named} == {each.name for each in (ROOT / "tests/conformance/golden").iterdir()}
