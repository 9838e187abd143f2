"""YAML bytes → values, strictly: every error has a file and a line, says what is allowed and what was perhaps meant.

One loader serves configuration and machine files. `document` reads bytes into a tree that knows its lines; here the
tree is held against a type. All that is misspelt, missing or of a wrong type is found in one reading: who mends a file
wants to mend it once. What contradicts itself is found in what such mistakes leave to be judged: a list with a broken
part is left out whole. A mistake that aliases repeat is told once.
"""

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from gpuplane.core.document import Malformed, Node, Problem, compose, plain

T = TypeVar("T")
Path = tuple[str | int, ...]
Field = msgspec.structs.FieldInfo

MOST = 20
"""Errors told of one file."""


class Invalid(Exception):
    """A file that cannot be taken. `errors` are lines of the shape "file:line: what is wrong"."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def without_own(root: Node) -> Node:
    """The document without the top-level keys that start with "x-": its author's own, a place for anchors."""
    if not isinstance(root.value, dict):
        return root
    return root.but(value={key: node for key, node in root.value.items() if not key.startswith("x-")})


def load(
    data: bytes, kind: type[T], file: str, check: Callable[[T], Iterable[tuple[Path, str]]] = lambda value: ()
) -> T:
    """The value of type `kind` that a YAML (or JSON) document holds. Raises Invalid.

    `check` looks at the whole value and names what contradicts itself, as (path, what is wrong).
    """
    return read(data, kind, file, check)[0]


def read(
    data: bytes,
    kind: type[T],
    file: str,
    check: Callable[[T], Iterable[tuple[Path, str]]] = lambda value: (),
    prepare: Callable[[Node], Node] = without_own,
) -> tuple[T, Callable[[Path], int]]:
    """What `load` gives, and the line of each path in it. `prepare` says what of the tree is held against the type."""
    try:
        root, repeated = compose(data)
    except Malformed as error:
        raise _invalid(file, [error.problem]) from None
    root, reader = prepare(root), _Reader(kind, repeated)
    value = _convert(reader, reader.take(root, kind, ()), kind)
    for path, text in check(value) if value is not None else ():
        if not any(broken[: len(path)] == path for broken in reader.broken):  # else what is left out may be the cause
            reader.problems.append((root.at(path).line, text))
    if reader.problems or value is None:
        raise _invalid(file, reader.problems)
    return value, lambda path: root.at(path).line


def _convert(reader: "_Reader", found: Any, kind: type[T]) -> T | None:
    if found is BROKEN:
        return None
    try:
        return msgspec.convert(found, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:  # what only the whole shows
        reader.problems.append((1, str(error)))
        return None


def _invalid(file: str, problems: list[Problem]) -> Invalid:
    told = dict.fromkeys(sorted(problems, key=lambda problem: problem[0]))
    lines = [f"{file}:{line}: {text}" for line, text in told]
    more = len(lines) - MOST
    return Invalid([*lines[:MOST], f"{file}: and {more} more"] if more > 0 else lines)


BROKEN: Any = object()


def spot(path: Path) -> str:
    """A path as a person writes it: gpus[1].name"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


class _Reader:
    """Holds a tree against a type.

    What is wrong is left out wherever a default can stand for it, and so are unknown keys: the rest can be judged.
    `broken`: where something was left out.
    """

    def __init__(self, kind: Any, problems: list[Problem]) -> None:
        self.whole = kind
        self.problems = problems
        self.broken: list[Path] = []
        self.refused = set[tuple[int, str]]()  # a node's identity and what is wrong with it: aliases share nodes

    def take(self, node: Node, kind: Any, path: Path) -> Any:
        """Plain data for `kind`, or BROKEN; what is wrong with it is among the problems."""
        kind = _arm(kind, node.value)
        origin, args = get_origin(kind), get_args(kind)
        if isinstance(node.value, dict):
            if _is_struct(kind):
                return self.fields(node, kind, path)
            if origin in (dict, Mapping):
                return _sound({key: self.take(each, args[1], (*path, key)) for key, each in node.value.items()})
        elif isinstance(node.value, list) and (origin is list or (origin is tuple and args[1:] == (...,))):
            parts = _sound({i: self.take(each, args[0], (*path, i)) for i, each in enumerate(node.value)})
            return parts if parts is BROKEN else list(parts.values())
        return self.leaf(node, kind, path)

    def fields(self, node: Node, kind: Any, path: Path) -> Any:
        known = _fields(kind)
        taken = {}
        for name, field in known.items():
            if field.required and name not in node.value:
                taken[name] = self.refuse(node, path, spot(path), f".{name} is missing")
        for key, each in node.value.items():
            if key not in known:
                self.problems.append((each.line, f"unknown key {key!r}{_perhaps(key, list(known), self.whole)}"))
                continue
            value = self.take(each, known[key].type, (*path, key))
            if value is not BROKEN or known[key].required:
                taken[key] = value
        return _sound(taken)

    def leaf(self, node: Node, kind: Any, path: Path) -> Any:
        value = _whole(_bare(node), kind)
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            wrong = f": must be {_wanted(kind)}, not {_told(value)}{_hint(value, kind)}"
            return self.refuse(node, path, spot(path) or "the document", wrong)
        return value

    def refuse(self, node: Node, path: Path, thing: str, wrong: str) -> Any:
        if (id(node), wrong) not in self.refused:
            self.refused.add((id(node), wrong))
            self.problems.append((node.line, f"{thing}{wrong}".removeprefix(".")))
        self.broken.append(path)
        return BROKEN


def _sound(parts: dict[Any, Any]) -> Any:
    """The parts, unless one of them is broken."""
    return BROKEN if any(part is BROKEN for part in parts.values()) else parts


def _arm(kind: Any, value: Any) -> Any:
    """The arm of a union that a value of this shape is meant for; the type itself where that is not plain."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    arms = [arm for arm in get_args(kind) if arm is not type(None)]
    if isinstance(value, dict):
        fitting = [arm for arm in arms if _is_struct(arm) or get_origin(arm) in (dict, Mapping)]
    elif isinstance(value, list):
        fitting = [arm for arm in arms if get_origin(arm) in (tuple, list)]
    else:
        return kind
    return fitting[0] if len(fitting) == 1 else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, Field]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _bare(node: Node) -> Any:
    """A node's value without lines."""
    if isinstance(node.value, dict):
        return {key: _bare(each) for key, each in node.value.items()}
    if isinstance(node.value, list):
        return [_bare(each) for each in node.value]
    return node.value


def _whole(value: Any, kind: Any) -> Any:
    """4.0 where a whole number is wanted is 4, as it is for Kubernetes' own tools (sigs.k8s.io/yaml)."""
    arms = get_args(kind) or (kind,)
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT and int in arms and float not in arms:
        return int(value)
    return value


EXACT = 1 << 53
"""Below it a float is exactly the whole number that was written."""

NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _wanted(kind: Any) -> str:
    """A type in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(arm) for arm in args if arm is not type(None))
    if origin is Literal:
        return ("one of " if args[1:] else "") + ", ".join(str(arg) for arg in args)
    if origin in (tuple, list):
        return "a list"
    return NAMES.get(kind, "a mapping")


def _told(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"the text {value[:60]!r}" if isinstance(value, str) else f"the number {value}"


def _hint(value: Any, kind: Any) -> str:
    """What may have been meant by a scalar of the wrong type."""
    arms = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if isinstance(value, str):
        choices = [str(choice) for arm in arms if get_origin(arm) is Literal for choice in get_args(arm)]
        if close := close_to(value, choices):
            return f"; did you mean {close!r}?"
        return "; write it without quotes" if _type_of(value) in arms else ""
    only_text = str in arms and not {int, float, bool} & set(arms)
    return "; put it in quotes" if only_text and isinstance(value, int | float) else ""


def _type_of(text: str) -> type | None:
    try:
        return type(plain(text))
    except ValueError:
        return None


def _perhaps(key: str, known: list[str], whole: Any) -> str:
    if place := next(_places(whole, key, ""), ""):
        return f"; did you mean {place}?"
    if close := close_to(key, known):
        return f"; did you mean {close!r}?"
    return f"; known here: {', '.join(sorted(known))}" if known else ""


def _places(kind: Any, key: str, above: str) -> Iterator[str]:
    """Where else in a type a key of this name is known."""
    if get_origin(kind) in (Union, types.UnionType):
        for arm in get_args(kind):
            yield from _places(arm, key, above)
    elif get_origin(kind) is tuple:
        yield from _places(get_args(kind)[0], key, f"{above}[]")
    elif _is_struct(kind):
        for name, field in _fields(kind).items():
            place = f"{above}.{name}".removeprefix(".")
            if name == key:
                yield place
            yield from _places(field.type, key, place)


def close_to(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or ""."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower()[:100], by_lower, n=1)
    return by_lower[close[0]] if close else ""
