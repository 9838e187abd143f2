"""A file is held against a type: all that is wrong is told at once, each with its line and what was perhaps meant."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.strict import MAX_ERRORS, DocumentPath, InvalidInput, load_with_lines, load_yaml_as
from gpuplane.base.value import Value
from gpuplane.node.model.machine import MachineFile
from tests.golden import Golden


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


class Bounded(Value):
    """Fields with bounds, which msgspec checks."""

    count: Annotated[int, msgspec.Meta(ge=0, le=8)] = 0
    weight: Annotated[float, msgspec.Meta(gt=0, le=10)] = 1.0
    least: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    name: Annotated[str, msgspec.Meta(max_length=4)] = ""
    names: Annotated[tuple[str, ...], msgspec.Meta(max_length=2)] = ()


def errors(text: str, kind: type = Whole) -> list[str]:
    """What is wrong with a document."""
    with pytest.raises(InvalidInput) as caught:
        load_yaml_as(text.encode(), kind, "f")
    return caught.value.errors


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("mod: none", "f:1:"),
        ("Mode: none", "f:1:"),
        ("size: 1", "f:1:"),
        ("zzz: 1", "f:1:"),
        ("mode: mixd", "f:1: mode"),
        ("mode: 3", "f:1: mode"),
        ("on: 'true'", "f:1: on"),
        ("on: 1", "f:1: on"),
        ("on:", "f:1: on"),
        ("ratio: x", "f:1: ratio"),
        ("parts: {}", "f:1: parts"),
        ("parts:\n- a", "f:2: parts[0]"),
        ("parts:\n- {size: 1}", "f:2: parts[0].name"),
        ("parts:\n- {name: 1.5}", "f:2: parts[0].name"),
        ("parts:\n- name: a\n  size: 1.5", "f:3: parts[0].size"),
        ("best: []", "f:1: best"),
        ("best: {name: a, siez: 1}", "f:1:"),
        ("either: 1", "f:1: either"),
        ("either: [a,\n 1]", "f:2: either[1]"),
        ("labels: {a: b,\n c: [d]}", "f:2: labels.c"),
        ("[]", "f:1:"),
        ("just text", "f:1:"),
        ("on: on\nratio: 1\non: off", "f:3:"),
        ("\n--- 1\n--- 2", "f:3:"),
    ],
)
def test_each_error_names_file_line_place_and_remedy(text: str, where: str, golden: Golden) -> None:
    """Every kind of error; word for word in golden/strict.txt."""
    [error] = errors(text)
    assert error.startswith(where)
    golden(error, text)


def test_all_that_is_wrong_is_told_at_once_by_line(golden: Golden) -> None:
    """Unknown keys, wrong types, missing and repeated keys of one file come together."""
    found = errors("mod: 1\non: maybe\nparts:\n- size: x\nratio: 1\nratio: 2\nlabels: []\n")

    assert [each.split(":")[1] for each in found] == ["1", "2", "4", "4", "6", "7"]
    golden(found)


def test_a_mistake_that_aliases_repeat_is_told_once(golden: Golden) -> None:
    """Of a mapping that has an anchor; the same mistake elsewhere is another."""
    text = "x-part: &part\n  name: a\n  size: x\n  siez: 1\nparts:\n- *part\n- <<: *part\n- {name: b, size: x}\n"

    assert [each.split(":")[1] for each in errors(text)] == ["3", "4", "8"]
    golden(errors(text), "mistakes in an anchor and elsewhere")
    golden(errors("parts: [{}, {}]"), "the same in two places")


def test_many_errors_are_counted_rather_than_told() -> None:
    """A file of another kind does not fill the log."""
    told = errors("\n".join(f"key{n}: 1" for n in range(100)))

    assert len(told) == MAX_ERRORS + 1
    assert told[-1] == f"f: and {100 - MAX_ERRORS} more"


def test_a_check_sees_the_value_and_its_errors_have_lines(golden: Golden) -> None:
    """Contradictions are told with the errors of spelling, as long as the types are right."""

    def check(value: Whole) -> Iterator[tuple[DocumentPath, str]]:
        for i, part in enumerate(value.parts):
            if not part.size:
                yield ("parts", i, "size"), f"{part.name} has no size"

    with pytest.raises(InvalidInput) as caught:
        load_yaml_as(b"mod: 1\nparts:\n- name: a\n- {name: b, size: 1}\n- name: c\n  size: 0\n", Whole, "f", check)

    assert [each.split(":")[1] for each in caught.value.errors] == ["1", "3", "6"]
    golden(caught.value.errors)


def test_keys_of_the_author_hold_anchors() -> None:
    """At the top, what starts with "x-" is nobody's business; below, it is an unknown key."""
    assert load_yaml_as(b"x-part: &p {name: a}\nparts: [*p, *p]", Whole, "f").parts == (Part("a"), Part("a"))
    assert errors("best: {name: a, x-y: 1}")[0].startswith("f:1: unknown key 'x-y'")


def test_lines_of_a_good_file_can_be_asked_for() -> None:
    """Who explains a decision names the line that made it."""
    value, line = load_with_lines(b"mode: single\nparts:\n- name: a\n\n- name: b\n", Whole, "f")

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
        assert isinstance(load_yaml_as(data, kind, "f"), kind)
    except InvalidInput as error:
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
        value = load_yaml_as(data, Whole, "f")
    except InvalidInput as error:
        assert error.errors
    else:
        assert set(fields) <= set(Whole.__struct_fields__), value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("count: 9", "count: must be a whole number from 0 to 8, not the number 9"),
        ("count: 1.5", "count: must be a whole number from 0 to 8, not the number 1.5"),
        ("count: '1'", "count: must be a whole number from 0 to 8, not the text '1'; write it without quotes"),
        ("count: {}", "count: must be a whole number from 0 to 8, not a mapping"),
        ("weight: 0", "weight: must be a number above 0 and at most 10, not the number 0"),
        ("weight: .nan", "weight: must be a number above 0 and at most 10, not the number nan"),
        ("least: 0", "least: must be a number at least 1, not the number 0"),
        ("name: 5", "name: must be text of at most 4 characters, not the number 5; put it in quotes"),
        ("name: abcde", "name: must be text of at most 4 characters, not the text 'abcde'"),
        ("names: 5", "names: must be a list of at most 2, not the number 5"),
        ("names: [a, 5]", "names[1]: must be text, not the number 5; put it in quotes"),
    ],
)
def test_a_bound_is_said(text: str, says: str) -> None:
    assert errors(text, Bounded) == [f"f:1: {says}"]


def test_what_is_within_its_bounds_is_read() -> None:
    found = load_yaml_as(b"{count: 8.0, weight: 2, name: abcd, names: [a, b]}", Bounded, "f")

    assert found == Bounded(8, 2.0, 1.0, "abcd", ("a", "b"))
