"""Every command, at 60, 80 and 120 columns and without a terminal, as root and as nobody, with good and wrong input.

`make test` plays each line at each width, one of them as nobody: the width decides nothing but where lines break, and
the user nothing but what can be read. `make soak` plays each user at each width.

What docs/commands.md says holds of each: no traceback, the right exit status, results on standard output and errors on
standard error, no line wider than the terminal but for an id, and nothing that a terminal obeys where there is none.
`table.ROWS` has the command lines; help and an unknown option are asked of every command without a row.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest

from gpuplane.cli import root_command
from tests.cli.forked import Ended
from tests.cli.kit.test_program import walk
from tests.cli.table import ROWS, Row
from tests.cli.terminals import NOBODY, Terminals, screen
from tests.cli.world import World
from tests.lengths import length

pytestmark = pytest.mark.xdist_group("every command")

WIDTHS = (60, 80, 120, None)
USERS = (0, NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
AS_NOBODY = (80,)
CELLS = length(
    [
        *((columns, USERS[0]) for columns in WIDTHS if columns not in AS_NOBODY),
        *((each, USERS[-1]) for each in AS_NOBODY),
    ],
    [(columns, user) for user in USERS for columns in WIDTHS],
)
"""Where a line is played: columns, and the user."""
EVERYTHING = dict(walk(root_command()))
LEAVES = sorted(name for name, command in EVERYTHING.items() if not isinstance(command, click.Group))
WHOLE = re.compile(r"^\W*(GPU|MIG)-|/|=")
"""Words that stay whole, however wide they are: ids, paths, names of resources and devices."""


@pytest.fixture(scope="module")
def terminals() -> Iterator[Terminals]:
    with Terminals() as terminals:
        yield terminals


@pytest.fixture(scope="module")
def world(terminals: Terminals) -> Iterator[World]:
    with TemporaryDirectory(prefix="gpuplane-table-", ignore_cleanup_errors=True) as folder:
        yield World(Path(folder), terminals)


SUCCEED_ELSEWHERE = {"sandbox fetch", "sandbox status", "sandbox up"}
"""Commands that need Kubernetes' programs, or download them: tests/cluster/sandbox, tests/sandbox/controlplane."""


def _prints(row: Row) -> bool:
    """Whether it ends by itself, with a result on standard output."""
    return row.status == 0 and not (row.until or row.nothing or row.once)


def test_the_table_has_every_command() -> None:
    """With input that is good and input that is not, and as JSON where there is that option."""
    assert sorted(ROWS) == LEAVES
    for name, rows in ROWS.items():
        assert any(row.status == 0 for row in rows) or name in SUCCEED_ELSEWHERE, name
        assert any(row.status == 2 for row in rows), name
        if any("--json" in parameter.opts for parameter in EVERYTHING[name].params):
            assert any("--json" in row.words for row in rows), name


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_says_what_it_should(name: str, terminals: Terminals, world: World) -> None:
    """Each of its rows, in every cell."""
    problems: list[str] = []
    for row in ROWS[name]:
        for columns, user in CELLS[:1] if row.once else CELLS:
            words = [*name.split(), *world.words(row.words, user)]
            until = row.until if user == USERS[0] or row.nobody is None else ""
            ended = terminals.run(
                *words, columns=columns, user=user, typed=row.typed, until=until, directory=str(world.here)
            )
            if row.after:
                terminals.run(*world.words(row.after, user), user=user)
            status = row.status if user == USERS[0] or row.nobody is None else row.nobody
            says = " ".join(world.words(row.says, user)) if status == row.status else ""
            found = [*_wrong(ended, columns, status), *_misses(row, ended, columns, status, says)]
            problems += (_told(problem, words, columns, user, ended) for problem in found)
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("name", [name for name, rows in sorted(ROWS.items()) if any(map(_prints, rows))])
def test_a_result_that_nobody_takes_is_an_error(name: str, terminals: Terminals, world: World) -> None:
    """Status 1: a full disk is said in one line; to a reader that has gone, as `head`, nothing is said."""
    problems: list[str] = []
    for row in [row for row in ROWS[name] if _prints(row)]:
        for refused, said in (("full", "Error: No space left on device"), ("gone", "")):
            words = [*name.split(), *world.words(row.words, USERS[0])]
            ended = terminals.run(*words, refused=refused, typed=row.typed, directory=str(world.here))
            if row.after:
                terminals.run(*world.words(row.after, USERS[0]))
            errors = [line for line in ended.err.splitlines() if line.startswith("Error") or "Traceback" in line]
            if ended.status != 1 or errors != [said] * bool(said):
                problems.append(_told(f"standard output is {refused}", words, None, USERS[0], ended))
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("columns", [width for width in WIDTHS if width])
def test_what_is_waited_for_goes_away_and_the_result_stays(columns: int, terminals: Terminals, world: World) -> None:
    """On a terminal that shows standard output and standard error, as all do: neither erases or touches the other."""
    for device, line in (("3", "GPU 3 (GPU-3) is healthy."), ("7", "Error: GPU 7 (GPU-7) is not healthy: the driver")):
        words = world.words(f"health restore {device} --state-dir {{state}}", USERS[0])
        ended = terminals.run(*words, columns=columns, apart=False)

        assert "\x1b" in ended.out  # something turned
        shown = [each for each in screen(ended.out) if each.strip()]
        assert " ".join(shown).startswith(line), shown
        assert all(len(each) <= columns for each in shown)


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_a_command_has_help_and_knows_its_options(name: str, terminals: Terminals) -> None:
    """By both names, with nothing on standard error; an option that is none is an error with the way to the help."""
    problems: list[str] = []
    for option, status, cells in (("-h", 0, CELLS[:1]), ("--help", 0, CELLS), ("--no-such-thing", 2, CELLS)):
        for columns, user in cells:
            words = [*name.split(), option]
            ended = terminals.run(*words, columns=columns, user=user)
            found = [*_wrong(ended, columns, status), *_too_wide(ended, columns)]
            if not status and (ended.err or not ended.out.lower().startswith("usage: gpuplane")):
                found.append("it prints no help")
            if status and "--no-such-thing" not in ended.err:
                found.append("it does not name the option")
            problems += (_told(problem, words, columns, user, ended) for problem in found)
    assert not problems, "\n\n".join(problems)


def _told(problem: str, words: list[str], columns: int | None, user: int, ended: Ended) -> str:
    where = f"{columns} columns" if columns else "no terminal"
    shown = f"status {ended.status}\n--- out\n{ended.out[-1500:]}\n--- err\n{ended.err[-1500:]}"
    return f"gpuplane {' '.join(words)} [{where}, user {user}]: {problem}\n{shown}"


def _wrong(ended: Ended, columns: int | None, status: int) -> Iterator[str]:
    """What is wrong whatever the command."""
    if ended.late:
        yield "it did not end"
    if ended.status != status:
        yield f"status {ended.status}, not {status}"
    if "Traceback" in ended.out + ended.err:
        yield "a traceback"
    if columns is None and "\x1b" in ended.out + ended.err:
        yield "escape codes without a terminal"
    if not (ended.out + ended.err).strip():
        yield "it says nothing"
    if status == 2 and (
        ended.out or not re.match(r"Usage: gpuplane[^\n]*\n(\s+[^\n]*\n)*Try '[^']+ --help'", ended.err)
    ):
        yield "no usage and the way to the help on standard error alone"
    if status == 2 and not _error(ended):
        yield "no error"
    if status == 2 and _lists_twice(ended.err):
        yield "it lists the choices more than once"


def _lists_twice(errors: str) -> bool:
    """Whether more than a few choices are said in the usage, and again in the error."""
    said = "".join(errors.split())
    listed = re.findall(r"'([^']+)'", said.partition("isnotoneof")[2].partition(".")[0])
    return len(listed) > 4 and all(said.count(each) > 1 for each in listed)


def _misses(row: Row, ended: Ended, columns: int | None, status: int, says: str) -> Iterator[str]:
    """What is wrong with a row's output."""
    if says not in " ".join((ended.out + ended.err).split()):
        yield f"it does not say {says!r}"
    if status == 1 and not row.answers and (ended.out or not _error(ended)):
        yield "no error on standard error alone"
    if status == 0 and ("Error: " in ended.err or not (ended.out or row.verbatim or row.nothing)):
        yield "no result on standard output"
    if "--json" in row.words and status < 2:
        yield from _no_json(ended, status)
    elif not row.verbatim:
        yield from _too_wide(ended, columns)


def _error(ended: Ended) -> bool:
    """Whether a line of standard error begins as errors do."""
    return any(line.startswith("Error:") for line in screen(ended.err))


def _no_json(ended: Ended, status: int) -> Iterator[str]:
    try:
        documents = [json.loads(line) for line in ended.out.splitlines()] if "}\n{" in ended.out else [ended.out]
        if status == 0 or ended.out:
            assert documents and (len(documents) > 1 or isinstance(json.loads(ended.out), dict))
    except ValueError as error:
        yield f"no JSON: {error}"


def _too_wide(ended: Ended, columns: int | None) -> Iterator[str]:
    """Lines that are wider than the terminal, though what of them may be broken would fit."""
    for line in screen(ended.out) + screen(ended.err) if columns else ():
        if cut := re.search(r"(GPU-|MIG-|nvidia\.com/|/)\S*…(?=\s|$)", line):
            yield f"cut: {cut[0]}"
        if len(line.rstrip()) > (columns or 0) and not _whole(line.strip(), columns or 0):
            yield f"{len(line)} wide: {line!r}"


def _whole(line: str, columns: int) -> bool:
    """Whether it is one word that stays whole, or a row of a table that has room for all else."""
    cells = re.split(r"\s{2,}", line)
    rest = [cell for cell in cells if not WHOLE.search(cell)]
    return " " not in line or (1 < len(cells) != len(rest) and len("  ".join(rest)) <= columns)
