"""Commands in terminals of any width and without one, as any user: what they write, and what a person then sees."""

import atexit
import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.cli.forked import Ended, Request

ROOT = Path(__file__).parents[2]
NOBODY = 65534
DEADLINE = 60.0
"""Seconds, of a command that ends by itself."""


class Terminals:
    """`with Terminals() as terminals`: plays commands, one after the other."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.forked"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def run(self, *words: object, **more: Any) -> Ended:
        """How a command ended: `more` as in Request."""
        environment = {
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            **more.pop("environment", {}),
        }
        request = Request([*map(str, words)], environment=environment, **{"user": os.geteuid(), **more})
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Ended)


_idle: list[Terminals] = []


def run_command(*words: object, **more: Any) -> Ended:
    """How a command ended that has no terminal, in our environment and directory. Several may run at once."""
    terminals = _idle.pop() if _idle else Terminals().__enter__()
    given = {"environment": dict(os.environ), "directory": str(Path.cwd()), "deadline": DEADLINE, **more}
    try:
        ended = terminals.run(*words, **given)
    finally:
        _idle.append(terminals)
    assert not ended.late, (words, ended)
    return ended


@atexit.register
def _end() -> None:
    for each in _idle:
        each.__exit__(None, None, None)


def screen(text: str) -> list[str]:
    """What stands on a terminal of endless width and height after this was written: lines, without their colours.

    Of what terminals obey it knows what commands of ours write; anything else stays, and can be seen.
    """
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[[0-9;?]*[a-zA-Z]|\r|\n)", text):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row == len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("K") and part.startswith("\x1b["):
            lines[row] = "" if part == "\x1b[2K" else lines[row][:column]
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif not re.fullmatch(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]", part):
            before = lines[row].ljust(column)
            lines[row] = before[:column] + part + before[column + len(part) :]
            column += len(part)
    return lines
