"""docs/faults.md is the reference: its tables are those of the code."""

import re
from pathlib import Path
from typing import get_args

import pytest

from gpuplane.kubernetes.contracts.nodegpus import State
from gpuplane.node.core.faults.cataloguetable import catalogue_table
from gpuplane.node.core.health.context import HealthContext
from gpuplane.node.core.health.devicehealth import TEXT_BY_CLEAR_WHEN
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.model.health import ClearWhen, Scope, Severity

PAGE = (Path(__file__).parents[2] / "docs/faults.md").read_text()


def rows(head: str) -> list[str]:
    """The first column of the table that begins with this header cell."""
    table = PAGE.split(f"| {head} |")[1].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)` \|", table, re.M)


def test_the_page_shows_the_catalogue() -> None:
    """It holds what `gpuplane health reference` prints; if this fails, print it there again."""
    assert PAGE.endswith(catalogue_table())


def test_the_catalogue_is_whole() -> None:
    """A row for each fault, XIDs that are alike and follow each other in one."""
    shown = set(re.findall(r"^\| `([\w-]+)`", catalogue_table(), re.M))
    for first, grade, last in re.findall(r"`xid-(\d+)(-nonfatal)?` to `xid-(\d+)(?:-nonfatal)?`", catalogue_table()):
        shown |= {f"xid-{number}{grade}" for number in range(int(first), int(last) + 1)}

    assert shown - {"xid-N"} == set(FAULTS.entries)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("scope", get_args(Scope)),
        ("severity", get_args(Severity)),
        ("cleared when", get_args(ClearWhen)),
    ],
)
def test_every_word_of_the_model_has_a_row(head: str, words: tuple[str, ...]) -> None:
    """In the order of the code."""
    assert rows(head) == list(words)


def test_every_state_has_a_row() -> None:
    """And every end has words for people."""
    assert sorted(rows("state")) == sorted(get_args(State))
    assert set(TEXT_BY_CLEAR_WHEN) == set(get_args(ClearWhen))


def test_the_default_period_is_as_written() -> None:
    assert f"(`health.probePeriod`, {HealthContext().probe_period:g} s)" in PAGE
