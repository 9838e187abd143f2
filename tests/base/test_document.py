"""Bytes become a tree that knows its lines, or are refused at a line, soon."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuplane.base.document import MAX_BYTES, MAX_NODES, DocumentNode, MalformedDocument, parse_document
from tests.golden import Golden


def bare(node: DocumentNode) -> Any:
    """The data of a tree."""
    if isinstance(node.value, dict):
        return {key: bare(each) for key, each in node.value.items()}
    return [bare(each) for each in node.value] if isinstance(node.value, list) else node.value


def read(text: str) -> Any:
    """The data of a document."""
    return bare(parse_document(text.encode())[0])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-0x1F", -31),
        ("010", 8),
        ("0o17", 15),
        ("0b101", 5),
        ("1_000", 1000),
        ("+3", 3),
        ("2.0", 2.0),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("yes", True),
        ("Off", False),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("~", None),
        ("null", None),
        ("0:1", "0:1"),
        ("1:30:00", "1:30:00"),
        ("2024-01-01", "2024-01-01"),
        ("550.90.07", "550.90.07"),
        ("0000:1b:00.0", "0000:1b:00.0"),
        ("'12'", "12"),
        ('"yes"', "yes"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        ("! 12", "12"),
        ("1g.10gb+me", "1g.10gb+me"),
    ],
)
def test_scalars_mean_what_kubernetes_own_tools_take_them_for(text: str, value: object) -> None:
    """YAML 1.1 truth values and numbers, but no sexagesimal numbers and no dates."""
    assert read(f"a: {text}") == {"a": value}


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "~", "--- null\n...\n", "\ufeff"])
def test_an_empty_document_is_an_empty_mapping(text: str) -> None:
    """An empty ConfigMap key is a configuration that changes nothing."""
    assert read(text) == {}


def test_json_is_read_as_well() -> None:
    """A file may be JSON."""
    assert read('{"a": [1, "x", null, true]}') == {"a": [1, "x", None, True]}


def test_anchors_and_merges() -> None:
    """An alias is what its anchor is; a merge gives what the mapping does not say itself, the first one first."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}\nd: *a\n"

    assert read(text) | {"a": 0, "b": 0} == {"a": 0, "b": 0, "c": {"x": 3, "y": 1, "z": 2}, "d": {"x": 1, "y": 1}}


def test_each_value_knows_the_line_of_its_key() -> None:
    """Whatever stands in the file can be named by its line; what does not, by the nearest thing around it."""
    root, _ = parse_document(b"# head\na:\n  - x: 1\n    y:\n      2\n  - 3\nb: {c: 4}\n")

    paths: list[tuple[str | int, ...]] = [(), ("a",), ("a", 0, "y"), ("a", 1), ("b", "c"), ("a", 0, "z", 1), ("a", 9)]
    assert [root.find_deepest_existing(path).line for path in paths] == [2, 2, 4, 6, 7, 3, 2]


def test_repeated_keys_are_told_beside_the_tree() -> None:
    """The first value stands, so that the rest of the file can be judged too."""
    root, repeated = parse_document(b"a: 1\nb: 2\na: 3\n")

    assert bare(root) == {"a": 1, "b": 2}
    [(line, problem)] = repeated
    assert line == 3
    assert "'a'" in problem
    assert "line 1" in problem


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"a: 1\nb: [\n", 3),
        (b"a:\n\t- b\n", 2),
        (b"a: 1\nb: '\xff'\n", 2),
        (b"\xff\xfea\x00", 1),
        (b"a: 1\nb: \x01\n", 2),
        (b"a: 1\n---\nb: 2\n", 2),
        (b"a: 1\n? [x]\n: 1\n", 2),
        (b"a: 1\nb: *c\n", 2),
        (b"a: &a [*a]\n", 1),
        (b"a: 1\n<<: 5\n", 2),
        (b"a: !!binary eA==\n", 1),
        (b"a: !!python/tuple [x]\n", 1),
        (b"a: !!set {x}\n", 1),
        (b"a: !!int x\n", 1),
        (b"a: 99999999999999999999\n", 1),
        (b"a: " + b"9" * 5000, 1),
        (b"a: 1\nb: " + b"[" * 100_000, 2),
        (b"a: " + b"x" * MAX_BYTES, 1),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_line(data: bytes, line: int, golden: Golden) -> None:
    """Every reason is in golden/document.txt."""
    with pytest.raises(MalformedDocument) as caught:
        parse_document(data)

    assert caught.value.problem[0] == line
    golden(caught.value.problem[1], repr(data[:40]))


@pytest.mark.parametrize("use", ["[{}]", "{{<<: [{}]}}", "{{a: {}, b: {}, c: {}}}"])
def test_an_alias_bomb_is_refused_before_it_goes_off(use: str) -> None:
    """Aliases of aliases of aliases: what they would make of a few bytes is counted, not built."""
    rows = ["a0: &a0 {k: 1}"]
    for n in range(1, 40):
        alias = f"*a{n - 1}"
        inside = use.format(*[", ".join([alias] * 9)] if "[" in use else [alias] * 3)
        rows.append(f"a{n}: &a{n} {inside}")

    with pytest.raises(MalformedDocument, match=f"more than {MAX_NODES} values"):
        parse_document("\n".join(rows).encode())


@given(
    st.binary(max_size=300)
    | st.text(max_size=300).map(str.encode)
    | st.text("ab:-[]{}&*<>!?|'\"#%@ \t\n~01.", max_size=60).map(str.encode)
)
@example(b"? ")
@example(b"- - - -\n")
@example(b"a: &a\n<<: *a\n")
def test_any_bytes_are_a_tree_or_malformed(data: bytes) -> None:
    """Whatever stands in a file, no other exception leaves."""
    try:
        root, _ = parse_document(data)
    except MalformedDocument as error:
        assert 1 <= error.problem[0] <= data.count(b"\n") + data.count(b"\r") + 2
    else:
        assert root.line >= 1
