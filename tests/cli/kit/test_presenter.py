"""Pages for people: tables give way on a narrow terminal, and a text of somebody else stays a text."""

import pytest

from gpuplane.cli.kit.presenter import Block, Table, print_page, unbroken

TABLE = Table(
    ("GPU", "COUNT", "WHY"),
    (("0", "7", "its fan"), ("1", "128", "it fell off the bus")),
    give_way=("WHY",),
    numeric=("COUNT",),
)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Page":
    return Page(monkeypatch, capsys)


class Page:
    """What a terminal of a width shows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def lines(self, *blocks: Block, width: int = 80) -> list[str]:
        self._monkeypatch.setenv("COLUMNS", f"{width}")
        print_page(blocks)
        return self._capsys.readouterr().out.splitlines()


def test_numbers_stand_below_each_other(page: Page) -> None:
    assert page.lines(TABLE) == [
        "GPU  COUNT  WHY",
        "0        7  its fan",
        "1      128  it fell off the bus",
    ]


def test_a_column_gives_way_and_its_cells_go_below_their_rows(page: Page) -> None:
    assert page.lines(TABLE, width=26) == [
        "GPU  COUNT",
        "0        7",
        "     its fan",
        "1      128",
        "     it fell off the bus",
    ]


def test_a_text_between_colons_is_no_picture(page: Page) -> None:
    """A driver's message may have any text in it, and rich knows 3,600 names of pictures."""
    found = page.lines("a:b:c :warning: 0:on:1", unbroken("a:b:c"), TABLE.but(rows=(("0", "1", ":bus:"),)))

    assert found[:2] == ["a:b:c :warning: 0:on:1", "a:b:c"]
    assert found[-1].endswith(":bus:")


def test_a_line_that_is_unbroken_is_wider_than_the_terminal(page: Page) -> None:
    """An id has to be copied whole."""
    name = "GPU-70000100-0000-4000-8000-000000000000"

    assert page.lines(unbroken(f"  {name} {name}"), width=40) == [f"  {name} {name}"]
