"""A file is held against a type: all that is wrong is told at once, each with its line and what was perhaps meant."""

from collections.abc import Iterator, Mapping
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.strict import MOST, Invalid, Path, load, read
from gpuplane.model.machine import MachineFile
from gpuplane.model.value import Value


class Part(Value):
    """A nested value."""

    name: str
    size: int = 0


class Whole(Value):
    """A value with everything that the checker knows."""

    mode: Literal["none", "single", "mixed"] = "none"
    on: bool = False
    ratio: float = 1.0
    parts: tuple[Part, ...] = ()
    best: Part | None = None
    either: str | tuple[str, ...] = ""
    labels: Mapping[str, str] = {}


def errors(text: str, kind: type = Whole) -> list[str]:
    """What is wrong with a document."""
    with pytest.raises(Invalid) as caught:
        load(text.encode(), kind, "f")
    return caught.value.errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mod: none", "f:1: unknown key 'mod'; did you mean 'mode'?"),
        ("Mode: none", "f:1: unknown key 'Mode'; did you mean 'mode'?"),
        ("size: 1", "f:1: unknown key 'size'; did you mean parts[].size?"),
        ("zzz: 1", "f:1: unknown key 'zzz'; known here: best, either, labels, mode, on, parts, ratio"),
        ("mode: mixd", "f:1: mode: must be one of none, single, mixed, not the text 'mixd'; did you mean 'mixed'?"),
        ("mode: 3", "f:1: mode: must be one of none, single, mixed, not the number 3"),
        ("on: 'true'", "f:1: on: must be true or false, not the text 'true'; write it without quotes"),
        ("on: 1", "f:1: on: must be true or false, not the number 1"),
        ("on:", "f:1: on: must be true or false, not empty"),
        ("ratio: x", "f:1: ratio: must be a number, not the text 'x'"),
        ("parts: {}", "f:1: parts: must be a list, not a mapping"),
        ("parts:\n- a", "f:2: parts[0]: must be a mapping, not the text 'a'"),
        ("parts:\n- {size: 1}", "f:2: parts[0].name is missing"),
        ("parts:\n- {name: 1.5}", "f:2: parts[0].name: must be text, not the number 1.5; put it in quotes"),
        ("parts:\n- name: a\n  size: 1.5", "f:3: parts[0].size: must be a whole number, not the number 1.5"),
        ("best: []", "f:1: best: must be a mapping, not a list"),
        ("best: {name: a, siez: 1}", "f:1: unknown key 'siez'; did you mean 'size'?"),
        ("either: 1", "f:1: either: must be text or a list, not the number 1; put it in quotes"),
        ("either: [a,\n 1]", "f:2: either[1]: must be text, not the number 1; put it in quotes"),
        ("labels: {a: b,\n c: [d]}", "f:2: labels.c: must be text, not a list"),
        ("[]", "f:1: the document: must be a mapping, not a list"),
        ("just text", "f:1: the document: must be a mapping, not the text 'just text'"),
        ("on: on\nratio: 1\non: off", "f:3: key 'on' stands twice, first on line 1; leave one out"),
        ("\n--- 1\n--- 2", "f:3: a second document begins here; only one is read"),
    ],
)
def test_each_error_names_file_line_place_and_remedy(text: str, error: str) -> None:
    """Every kind of error, word for word."""
    assert errors(text) == [error]


def test_all_that_is_wrong_is_told_at_once_by_line() -> None:
    """Unknown keys, wrong types, missing and repeated keys of one file come together."""
    assert errors("mod: 1\non: maybe\nparts:\n- size: x\nratio: 1\nratio: 2\nlabels: []\n") == [
        "f:1: unknown key 'mod'; did you mean 'mode'?",
        "f:2: on: must be true or false, not the text 'maybe'",
        "f:4: parts[0].name is missing",
        "f:4: parts[0].size: must be a whole number, not the text 'x'",
        "f:6: key 'ratio' stands twice, first on line 5; leave one out",
        "f:7: labels: must be a mapping, not a list",
    ]


def test_a_mistake_that_aliases_repeat_is_told_once() -> None:
    """Of a mapping that has an anchor; the same mistake elsewhere is another."""
    text = "x-part: &part\n  name: a\n  size: x\n  siez: 1\nparts:\n- *part\n- <<: *part\n- {name: b, size: x}\n"

    assert errors(text) == [
        "f:3: parts[0].size: must be a whole number, not the text 'x'",
        "f:4: unknown key 'siez'; did you mean 'size'?",
        "f:8: parts[2].size: must be a whole number, not the text 'x'",
    ]
    assert errors("parts: [{}, {}]") == ["f:1: parts[0].name is missing", "f:1: parts[1].name is missing"]


def test_many_errors_are_counted_rather_than_told() -> None:
    """A file of another kind does not fill the log."""
    told = errors("\n".join(f"key{n}: 1" for n in range(100)))

    assert len(told) == MOST + 1
    assert told[-1] == f"f: and {100 - MOST} more"


def test_a_check_sees_the_value_and_its_errors_have_lines() -> None:
    """Contradictions are told with the errors of spelling, as long as the types are right."""

    def check(value: Whole) -> Iterator[tuple[Path, str]]:
        for i, part in enumerate(value.parts):
            if not part.size:
                yield ("parts", i, "size"), f"{part.name} has no size"

    with pytest.raises(Invalid) as caught:
        load(b"mod: 1\nparts:\n- name: a\n- {name: b, size: 1}\n- name: c\n  size: 0\n", Whole, "f", check)

    assert caught.value.errors == [
        "f:1: unknown key 'mod'; did you mean 'mode'?",
        "f:3: a has no size",
        "f:6: c has no size",
    ]


def test_keys_of_the_author_hold_anchors() -> None:
    """At the top, what starts with "x-" is nobody's business; below, it is an unknown key."""
    assert load(b"x-part: &p {name: a}\nparts: [*p, *p]", Whole, "f").parts == (Part("a"), Part("a"))
    assert errors("best: {name: a, x-y: 1}")[0].startswith("f:1: unknown key 'x-y'")


def test_lines_of_a_good_file_can_be_asked_for() -> None:
    """Who explains a decision names the line that made it."""
    value, line = read(b"mode: single\nparts:\n- name: a\n\n- name: b\n", Whole, "f")

    assert value == Whole(mode="single", parts=(Part("a"), Part("b")))
    assert [line(("mode",)), line(("parts", 1)), line(("ratio",))] == [1, 5, 1]


TOKENS = st.sampled_from(
    [
        *"abx01[]{},:-&*!|>'\"\n\t #?%@",
        ": ",
        "\n- ",
        "\n  ",
        "gpus",
        "parts",
        "name",
        "mig",
        "links",
        "!!int ",
        "~",
        "yes",
    ]
)


@given(
    st.binary(max_size=200) | st.lists(TOKENS, max_size=60).map("".join).map(str.encode),
    st.sampled_from([Whole, MachineFile]),
)
def test_any_bytes_are_a_value_or_invalid(data: bytes, kind: type) -> None:
    """Whatever stands in a file, no other exception leaves, and each error names the file."""
    try:
        assert isinstance(load(data, kind, "f"), kind)
    except Invalid as error:
        assert error.errors
        assert all(each.startswith("f:") for each in error.errors)


SCALARS = st.sampled_from(
    ["1", "x", "true", "~", "'1'", "1.5", "[]", "{}", "[1, a]", "{name: a}", "[{name: a}]", "single"]
)


@given(st.dictionaries(st.sampled_from([*Whole.__struct_fields__, "other"]), SCALARS))
def test_any_values_are_taken_or_refused(fields: dict[str, str]) -> None:
    """Any mixture of right and wrong: as many errors as wrong keys at least, or a value."""
    data = "".join(f"{key}: {value}\n" for key, value in fields.items()).encode()
    try:
        value = load(data, Whole, "f")
    except Invalid as error:
        assert error.errors
    else:
        assert set(fields) <= set(Whole.__struct_fields__), value
