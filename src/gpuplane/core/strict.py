"""YAML bytes → values, strictly: every error has a file and a line, says what is allowed and what was perhaps meant.

One loader serves configuration and machine files. PyYAML composes nodes, which know their lines; msgspec checks types.
All unknown and repeated keys are reported together; of wrong types the first.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")
Path = tuple[str | int, ...]


class Invalid(Exception):
    """A file that cannot be taken. `errors` are lines of the shape "file:line: what is wrong"."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def load(
    data: bytes, kind: type[T], file: str, check: Callable[[T], Iterable[tuple[Path, str]]] = lambda value: ()
) -> T:
    """The value of type `kind` that a YAML (or JSON) document holds. Raises Invalid.

    Top-level keys that start with "x-" are the author's own: a place for anchors. `check` looks at the whole value and
    names what contradicts itself, as (path, what is wrong).
    """
    loader = yaml.CSafeLoader(data)
    try:
        node = loader.get_single_node()
        plain, lines = ({}, {}) if node is None else _plain(loader, node, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise Invalid([f"{file}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}"]) from None
    finally:
        loader.dispose()
    unknown = [
        f"{file}:{lines.get(path, 1)}: unknown key {path[-1]!r}{_perhaps(str(path[-1]), allowed)}"
        for path, allowed in _unknown(plain, msgspec.inspect.type_info(kind), ())
    ]
    if unknown:
        raise Invalid(unknown)
    try:
        value = msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `")
        path = _path(where)
        spot = ".".join(map(str, path)) or "the document"
        raise Invalid([f"{file}:{_line(lines, path)}: {spot}: {text}"]) from None
    wrong = [f"{file}:{_line(lines, path)}: {text}" for path, text in check(value)]
    if wrong:
        raise Invalid(wrong)
    return value


def _line(lines: dict[Path, int], path: Path) -> int:
    """The line of a path, or of the nearest thing around it that is written in the file."""
    return next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), 1)


def _plain(loader: Any, root: yaml.Node, file: str) -> tuple[Any, dict[Path, int]]:
    """Plain data of a node tree, and the line on which each path stands."""
    lines: dict[Path, int] = {}
    repeated: list[str] = []

    def walk(node: yaml.Node, path: Path) -> Any:
        lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.SequenceNode):
            return [walk(child, (*path, i)) for i, child in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node)
        own = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        repeated.extend(
            f"{file}:{key.start_mark.line + 1}: key {key.value!r} stands twice"
            for i, (key, _) in enumerate(node.value)
            if key.value in own[:i] and key.tag != "tag:yaml.org,2002:merge"
        )
        loader.flatten_mapping(node)
        found = {}
        for key, child in node.value:
            if path or not key.value.startswith("x-"):
                lines[(*path, key.value)] = key.start_mark.line + 1
                found[key.value] = walk(child, (*path, key.value))
        return found

    plain = walk(root, ())
    if repeated:
        raise Invalid(repeated)
    return plain, lines


def _unknown(data: Any, kind: msgspec.inspect.Type, path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every key in the data that the type does not have, with those that it has."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            fitting = [t for t in types if not isinstance(t, msgspec.inspect.NoneType)]
            if len(fitting) == 1:
                yield from _unknown(data, fitting[0], path)
        case msgspec.inspect.StructType(fields=fields) if isinstance(data, dict):
            known = {field.encode_name: field.type for field in fields}
            for key, value in data.items():
                if key not in known:
                    yield (*path, key), list(known)
                else:
                    yield from _unknown(value, known[key], (*path, key))
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item) if isinstance(
            data, list
        ):
            for i, value in enumerate(data):
                yield from _unknown(value, item, (*path, i))


def _perhaps(key: str, allowed: list[str]) -> str:
    close = difflib.get_close_matches(key, allowed, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(sorted(allowed))}"


def _path(where: str) -> Path:
    """The path in an error of msgspec: "$.gpus[3].memory`" → ("gpus", 3, "memory")."""
    return tuple(int(i) if i else key for key, i in re.findall(r"\.([^.\[\]`]+)|\[(\d+)\]", where))
