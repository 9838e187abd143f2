"""No program of ours compares a text for people: rewording one changes nothing that gpuplane does.

Truth (`if reason`), identity and whole values may be compared. The tests of the product itself are not looked at: they
compare codes and values too, and keep texts in golden files.
"""

from pathlib import Path

import pytest

from tests.conformance.comparisons import comparisons

ROOT = Path(__file__).parents[2]

ALLOWED = {
    # Shows a line once that would be shown twice. A line that is worded otherwise is shown all the same.
    ("gpuplane.base.text", "distinct"),
}
"""(module, function): where texts are compared, and why that decides nothing."""

pytestmark = pytest.mark.xdist_group("texts")


def test_no_text_is_compared_in_the_program() -> None:
    found = comparisons([ROOT / "src" / "gpuplane"], "gpuplane", ROOT / "pyproject.toml")

    assert [str(each) for each in found if (each.module, each.function) not in ALLOWED] == []
    assert {(each.module, each.function) for each in found} == ALLOWED


PLANTED = """
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from gpuplane.base.text import Text, distinct, group_alike, join


@dataclass(frozen=True)
class Reason:
    code: str
    text: Text


def compared(
    one: Reason, other: Reason, all: Sequence[Reason], texts: tuple[Text, ...], left: Mapping[str, Text]
) -> Iterator[object]:
    yield one.text == "it waits"  # bad
    yield one.text != other.text  # bad
    yield one.text in ("it waits", "it fails")  # bad
    yield "waits" in one.text  # bad
    yield one.text < other.text  # bad
    yield (one.code, one.text) == (other.code, other.text)  # bad
    yield texts == ("it waits",)  # bad
    yield left == {}  # bad
    yield f"{one.text}" == "it waits"  # bad
    yield f"{one.code}: {one.text}" in ("a: b",)  # bad
    yield "{}".format(one.text) == "it waits"  # bad
    yield str(one.text)  # bad
    yield cast(str, one.text)  # bad
    yield isinstance(one.text, str)  # bad
    yield hash(one.text)  # bad
    yield one.text.split(":")  # bad
    yield one.text.startswith("it")  # bad
    yield one.text.removeprefix("it")  # bad
    yield one.text.find("it")  # bad
    yield one.text[0]  # bad
    yield re.match("it", one.text)  # bad
    yield sorted(each.text for each in all)  # bad
    yield sorted(all, key=lambda each: (each.code, each.text))  # bad
    yield {each.text for each in all}  # bad
    yield {each.text: each for each in all}  # bad
    yield dict.fromkeys(each.text for each in all)  # bad
    yield Counter(each.text for each in all)  # bad
    yield groupby(all, key=lambda each: each.text)  # bad
    yield texts.index("it waits")  # bad
    match one.text:  # bad
        case "it waits":
            yield 1
    match one:
        case Reason(text="it waits"):  # bad
            yield 2
    local = one.text
    while local != "it waits":  # bad
        yield 3


def harmless(
    one: Reason, other: Reason, all: Sequence[Reason], texts: tuple[Text, ...], left: Mapping[str, Text]
) -> Iterator[object]:
    yield one == other
    yield one in all
    yield {one: other}
    yield {one, other}
    yield one.code == other.code
    yield bool(one.text)
    yield not one.text
    yield len(one.text)
    yield "ready" if not one.text else f"not ready: {one.text}"
    yield one.text or other.text
    yield join("; ", (each.text for each in all))
    yield distinct(each.text for each in all)
    yield group_alike((each.text, each.code) for each in all)
    yield texts is not None
    yield "/dev/nvidia0" in left
    yield [each.text for each in sorted(all, key=lambda each: each.code)]
    match one:
        case Reason(code="a", text=why):
            yield why
"""


def test_every_way_to_compare_a_text_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED)
    expected = {n for n, line in enumerate(PLANTED.splitlines(), 1) if line.endswith("# bad")}

    found = comparisons([planted], "planted", ROOT / "pyproject.toml")

    assert {each.line for each in found} == expected
