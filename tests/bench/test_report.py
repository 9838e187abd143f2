"""A report says of each figure whether its machine was busy, and docs/performance.md ends with one as it is printed."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import node, report
from bench.machine import Machine, Use
from bench.report import Figure, Report, document, markdown, show
from bench.row import Row
from tests.golden import Golden

PAGE = Path(__file__).parents[2] / "docs/performance.md"
MACHINE = Machine("AMD EPYC 7742", 4, 31.4, "6.1.0", "3.11.7", 10.04)
FIGURES = (
    Figure("node", Row("start", 0.1234, 0.3, "s", "median | max"), Use(30, 1, 0)),
    Figure("mps", Row("replaced", 2, 1, ""), Use(30, 40, 2)),
)
REPORT = Report("2026-01-31", MACHINE, 0.25, FIGURES)


def test_markdown_names_the_machine_and_what_else_it_did(golden: Golden) -> None:
    """A figure of a busy machine says so, and a budget that was missed."""
    golden(markdown(REPORT))


def test_json_is_one_document() -> None:
    """With the machine, and who had the CPUs with each row."""
    told = json.loads(document(REPORT))

    assert told["machine"] == MACHINE._asdict()
    assert (told["date"], told["load"]) == ("2026-01-31", 0.25)
    assert [(row["part"], row["kept"], row["others"], row["stolen"], row["busy"]) for row in told["rows"]] == [
        ("node", True, 1, 0, False),
        ("mps", False, 40, 2, True),
    ]


def test_the_table_says_it_too(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    """With the machine below it."""
    show(REPORT)
    said = capsys.readouterr().out

    assert str(MACHINE) in said
    golden(line.rstrip() for line in said.splitlines())


def test_each_group_is_watched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    """Progress, and what other work there was, goes to standard error; the status is 0 where all budgets are kept."""

    async def quick() -> list[Row]:
        """nothing"""
        return [Row("nothing", 0, 1, "s")]

    @contextmanager
    def busy() -> Iterator[list[Use]]:
        uses: list[Use] = []
        yield uses
        uses.append(Use(1, 50, 0))

    monkeypatch.setattr(node, "MEASURES", (quick, quick))
    monkeypatch.setattr(bench, "watched", busy)
    status = bench.main(["--only", "node", "--json"])
    out, err = capsys.readouterr()

    assert status == 0
    assert [row["others"] for row in json.loads(out)["rows"]] == [50, 50]
    assert err.count("50 %") == 2
    golden(err.partition("\n")[2])


def test_the_page_ends_with_what_the_command_prints() -> None:
    """The table's head is the command's, and each row is of a part of the bench."""
    page = PAGE.read_text()
    rows = page.partition(report.HEAD + "\n")[2].splitlines()[1:]

    assert rows
    assert {row.split(":")[0].removeprefix("| ") for row in rows} <= set(bench.PARTS)
    assert page.count("Measured on ") == 1
