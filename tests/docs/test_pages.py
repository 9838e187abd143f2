"""The pages hold together: whoever starts at README finds each of them, and no link leads nowhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*.md")]


def _links(page: Path) -> list[str]:
    return [each for each in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in each]


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_readme_leads_to_every_page_once() -> None:
    """Each page of docs/, and the two of deploy/."""
    led = [each for each in _links(ROOT / "README.md") if each.startswith(("docs/", "deploy/"))]

    assert sorted(led) == sorted(str(each.relative_to(ROOT)) for each in PAGES[2:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that is there, and a heading in it."""
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page

        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_the_readme_is_an_entrance() -> None:
    """It stays short: more belongs into a page."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
