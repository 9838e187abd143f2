"""Texts that people read, word for word, in one file for each module of tests: `golden/MODULE.txt` beside it.

A test that is about the wording of a text gives it to the fixture `golden`; all others compare codes and values. After
a rewording, REWRITE=1 in the environment writes the texts down as they are now: read the difference and commit it.
"""

import difflib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from gpuplane.base.text import Text

HEAD = "## "
"""Begins the line that names a case; what follows, up to the next such line, is its text."""


class Golden:
    """The texts of one test: `places` are put by their names into each text before it is compared."""

    def __init__(self, file: Path, test: str, case: str, places: Mapping[str, str]) -> None:
        self._file, self._test, self._case, self._places = file, test, case, places

    def __call__(self, text: Text | Iterable[Text], case: str | None = None) -> None:
        """Assert that a text, or some lines, are as written. `case`: which text of the test; by default its parameters.

        With REWRITE=1 it is written instead.
        """
        lines = [text] if isinstance(text, str) else cast("Iterable[Text]", text)
        found = "\n".join(f"{line}" for line in lines)
        for name, place in self._places.items():
            found = found.replace(place, name)
        name = f"{self._test}: {_line(self._case if case is None else case)}".rstrip(": ")
        found = found.strip("\n")
        if os.environ.get("REWRITE"):
            _write(self._file, name, found)
        written = read(self._file)
        assert name in written, f"{self._file} has no text of this name: write it with REWRITE=1"
        assert found == written[name]


def compare(file: Path, found: str, rule: str) -> None:
    """Assert that a text is the whole of a file; else the `rule` and the difference are shown. REWRITE=1 writes it."""
    if os.environ.get("REWRITE"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    kept = file.read_text() if file.exists() else ""
    changed = difflib.unified_diff(kept.splitlines(), found.splitlines(), file.name, "found", lineterm="", n=0)
    assert found == kept, "\n".join((rule, *changed))


def read(file: Path) -> dict[str, str]:
    """Case → text, as the file has them; none where there is no file."""
    if not file.exists():
        return {}
    cases = re.split(f"^{HEAD}", file.read_text(), flags=re.M)[1:]
    return {case: text.strip("\n") for case, _, text in (each.partition("\n") for each in cases)}


def _line(case: str) -> str:
    return case.replace("\n", "\\n")


def _write(file: Path, case: str, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    with _locked(file.parent):
        cases = sorted((read(file) | {case: text}).items())
        new = file.with_suffix(".new")
        new.write_text("\n".join(f"{HEAD}{name}\n{each}\n" for name, each in cases))
        new.replace(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Workers that write into one file at the same time wait for each other; readers see a whole file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
