"""The glossary has each word once, in order; what it names in the code is there, and each word is used."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs/glossary.md"
ROWS = [
    tuple(cell.strip() for cell in row.strip("| ").split("|"))
    for row in GLOSSARY.read_text().splitlines()
    if row.startswith("| ") and not row.startswith("| word")
]
SOURCES = "\n".join(each.read_text() for each in ROOT.glob("src/gpuplane/**/*.py"))
PAGES = "\n".join(
    each.read_text()
    for each in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md"))
    if each != GLOSSARY
)


def test_words_are_sorted_and_each_is_there_once() -> None:
    """So that a reader finds a word without searching, and one name has one meaning."""
    words = [row[0] for row in ROWS]

    assert words == sorted(set(words))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_it_names_in_the_code_is_there(row: tuple[str, ...]) -> None:
    """As a class, a function, a field or a name in one of them."""
    for name in re.findall(r"`([A-Za-z_]\w*)`", " ".join(row[1:])):
        assert re.search(rf"\b{name}\b", SOURCES), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_word_is_used(row: tuple[str, ...]) -> None:
    """On another page, or in the code; a word that nobody uses needs no entry."""
    assert re.search(rf"\b{row[0]}", f"{PAGES}\n{SOURCES}", re.IGNORECASE), row[0]
