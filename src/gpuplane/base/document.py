"""YAML (or JSON) bytes → a tree whose nodes know their lines.

Files come from people and from templates, and a broken file must affect only itself. So any bytes give a tree or
`MalformedDocument`, in bounded time: depth and size are limited before anything is built (an alias counts as often as
it is used), and only text, numbers, booleans, lists and mappings are ever built.

Scalars are read as Kubernetes' tools read them (YAML 1.1 with two exceptions): `0:1` is text and no sexagesimal number,
and a date is text. `yes` and `on` are true.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from gpuplane.base.value import Value

MAX_BYTES = 4 << 20
"""Bytes of a document. A ConfigMap holds at most 1 MiB."""

MAX_NODES = 50_000
"""Nodes of a document with its aliases expanded: each takes some 300 bytes. A machine of sixteen GPUs has 2,000."""

MAX_DEPTH = 40

LineProblem = tuple[int, str]
"""A line number, from 1, and what is wrong in that line."""


class MalformedDocument(Exception):
    """The bytes are not a document that we accept. `problem` says where and why."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(line, text)
        self.problem: LineProblem = (line, text)


class DocumentNode(Value):
    """One value: a scalar, a list of nodes, or a mapping of keys to nodes. `line`: of its key if it has one."""

    line: int
    value: Any = None

    def find_deepest_existing(self, path: tuple[str | int, ...]) -> "DocumentNode":
        """The node at a path; if there is none, the nearest node around it."""
        node = self
        for step in path:
            try:
                node = node.value[step]
            except (LookupError, TypeError):
                break
        return node


def parse_document(data: bytes) -> tuple[DocumentNode, list[LineProblem]]:
    """The tree of the document in these bytes, and a problem for each repeated key. No document is an empty mapping.

    Raises MalformedDocument.
    """
    if len(data) > MAX_BYTES:
        raise MalformedDocument(1, f"larger than {MAX_BYTES >> 20} MiB")
    try:
        data.decode()
        return _Parser(data).parse_document()
    except UnicodeDecodeError as error:
        raise MalformedDocument(_line_at_offset(data, error.start), f"not UTF-8: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise MalformedDocument(line, f"not YAML: {error.problem}{_tab_hint(data, line)}") from None
    except yaml.reader.ReaderError as error:
        raise MalformedDocument(_line_at_offset(data, error.position), f"not YAML: {error.reason}") from None


class _Parser:
    def __init__(self, data: bytes) -> None:
        self.events: Iterator[Any] = yaml.parse(data, Loader=yaml.CSafeLoader)
        self.anchors: dict[str, tuple[DocumentNode, int]] = {}  # with its size
        self.node_count = 0
        self.repeated_keys: list[LineProblem] = []

    def parse_document(self) -> tuple[DocumentNode, list[LineProblem]]:
        root = DocumentNode(1, {})
        seen = False
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if seen:
                    raise MalformedDocument(
                        _line_of_event(event), "a second document begins here; a file may have only one"
                    )
                seen = True
                root = self.parse_node(next(self.events), 0)
        return root.but(value={}) if root.value is None else root, self.repeated_keys

    def parse_node(self, event: Any, depth: int) -> DocumentNode:
        start, line = self.node_count, _line_of_event(event)
        self.check_node_limit(1, line)
        if depth > MAX_DEPTH:
            raise MalformedDocument(line, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.resolve_alias(event.anchor, line)
        if isinstance(event, yaml.ScalarEvent):
            node = DocumentNode(line, _scalar_value(event))
        elif event.tag not in (None, "!", f"{TAG_PREFIX}seq", f"{TAG_PREFIX}map"):
            raise MalformedDocument(line, f"the tag {event.tag!r} is unknown")
        elif isinstance(event, yaml.SequenceStartEvent):
            node = DocumentNode(line, list(self.parse_list_items(depth)))
        else:
            node = DocumentNode(line, self.parse_mapping(depth))
        if event.anchor:
            self.anchors[event.anchor] = node, self.node_count - start
        return node

    def check_node_limit(self, nodes: int, line: int) -> None:
        self.node_count += nodes
        if self.node_count > MAX_NODES:
            raise MalformedDocument(line, f"more than {MAX_NODES} values with all aliases expanded")

    def resolve_alias(self, anchor: str | None, line: int) -> DocumentNode:
        if anchor is None or anchor not in self.anchors:
            raise MalformedDocument(
                line, f"the alias *{anchor} must come after the whole value that has the anchor &{anchor}"
            )
        node, size = self.anchors[anchor]
        self.check_node_limit(size, line)
        return node.but(line=line)

    def parse_list_items(self, depth: int) -> Iterator[DocumentNode]:
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.parse_node(event, depth + 1)

    def parse_mapping(self, depth: int) -> dict[str, DocumentNode]:
        own: dict[str, DocumentNode] = {}
        merged: list[DocumentNode] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            line = _line_of_event(event)
            if not isinstance(event, yaml.ScalarEvent):
                raise MalformedDocument(line, "a key must be plain text")
            node = self.parse_node(next(self.events), depth + 1).but(line=line)
            if event.value == "<<" and event.implicit[0]:
                merged += node.value if isinstance(node.value, list) else [node]
            elif event.value in own:
                first = own[event.value].line
                self.repeated_keys.append((line, f"key {event.value!r} is already on line {first}; leave one out"))
            else:
                own[event.value] = node
        for each in merged:
            if not isinstance(each.value, dict):
                raise MalformedDocument(each.line, "<< can merge mappings only")
            own = {**each.value, **own}
        return own


TAG_PREFIX = "tag:yaml.org,2002:"
BOOLEAN_BY_WORD = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
NULL_WORDS = ("", "~", "null", "Null", "NULL")
INTEGER_PATTERN = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|[1-9][0-9_]*|0)")
FLOAT_PATTERN = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
INFINITY_OR_NAN = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def parse_scalar(text: str) -> str | int | float | bool | None:
    """The value of unquoted text. Raises ValueError for a number that does not fit into 64 bits."""
    if text in NULL_WORDS:
        return None
    if text.lower() in BOOLEAN_BY_WORD and text in (text.lower(), text.upper(), text.title()):
        return BOOLEAN_BY_WORD[text.lower()]
    if INTEGER_PATTERN.fullmatch(text):
        return _parse_integer(text)
    if FLOAT_PATTERN.fullmatch(text):
        return float(text)
    if INFINITY_OR_NAN.fullmatch(text):
        return float(text.replace(".", "").lower())
    return text


def _scalar_value(event: Any) -> Any:
    text: str = event.value
    if event.tag in (f"{TAG_PREFIX}str", "!") or (event.tag is None and not event.implicit[0]):
        return text
    try:
        value = parse_scalar(text)
    except ValueError as error:
        raise MalformedDocument(_line_of_event(event), str(error)) from None
    if event.tag is None or type(value) is TYPE_BY_TAG.get(event.tag):
        return value
    raise MalformedDocument(_line_of_event(event), f"the value {text[:40]!r} does not match its tag {event.tag!r}")


TYPE_BY_TAG = {
    f"{TAG_PREFIX}int": int,
    f"{TAG_PREFIX}float": float,
    f"{TAG_PREFIX}bool": bool,
    f"{TAG_PREFIX}null": type(None),
}


def _parse_integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign, digits = (-1 if digits[0] == "-" else 1), digits.lstrip("+-")
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2], 8 if digits[0] == "0" else 10)
    digits = digits[2:] if digits[:2] in ("0x", "0b", "0o") else digits
    value = sign * int(digits or "0", base) if len(digits) <= 64 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"the number {text[:24]} does not fit into 64 bits")
    return value


def _line_of_event(event: Any) -> int:
    line: int = event.start_mark.line + 1
    return line


def _line_at_offset(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1


def _tab_hint(data: bytes, line: int) -> str:
    lines = data.split(b"\n")
    tabbed = line <= len(lines) and b"\t" in lines[line - 1][: -len(lines[line - 1].lstrip()) or None]
    return "; indent with spaces, not tabs" if tabbed else ""
