"""What people see while a command works: on a terminal only, and gone when it is done."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminals import Terminals, screen
from tests.cluster.reading.small import objects

AT_WORK = {"plan": ("reading nodes and pods", "planning moves"), "explain": ("reading nodes and pods", "pods")}


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    with Terminals() as terminals:
        yield terminals


@pytest.mark.parametrize("command", AT_WORK)
def test_long_work_shows_itself_on_a_terminal(terminals: Terminals, tmp_path: Path, command: str) -> None:
    """On standard error, and nothing of it stays."""
    saved = tmp_path / "cluster.json"
    saved.write_text(json.dumps({"kind": "List", "items": objects()}))
    words = ("placement", command, "--file", saved)
    seen, plain = terminals.run(*words, columns=300), terminals.run(*words)

    assert (seen.status, plain.status) == (0, 0)
    assert all(each in seen.err for each in AT_WORK[command])
    assert [line for line in screen(seen.err) if line.strip()] == plain.err.splitlines()
    assert "\x1b" not in plain.err
    assert not any(each in seen.out for each in AT_WORK[command][:1])
