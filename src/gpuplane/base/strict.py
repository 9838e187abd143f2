"""YAML bytes → values, strictly: every error has a file and a line, and says what is allowed or probably meant.

One loader serves configuration and machine files. `document` parses bytes into a tree that knows its lines; this module
converts the tree to a type. One pass finds everything that is misspelt, missing or of a wrong type, so that a file can
be corrected in one go. Contradictions are then searched in the rest: a list with an invalid item is left out as a
whole. A mistake that aliases repeat is reported once.
"""

import difflib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from gpuplane.base.document import DocumentNode, LineProblem, MalformedDocument, parse_document, parse_scalar

T = TypeVar("T")
DocumentPath = tuple[str | int, ...]
StructField = msgspec.structs.FieldInfo

MAX_ERRORS = 20
"""Errors that are reported for one file."""
LONGEST_ERROR = 1000
"""Characters of one of them."""
MAX_CHECKED = 100
"""Contradictions after which no more are searched: to look up what was meant takes a millisecond each."""


class InvalidInput(Exception):
    """The input has errors. `errors`: one line each, "file:line: what is wrong" if they are in a file."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__("\n".join(errors))
        self.errors = errors


def without_extension_keys(root: DocumentNode) -> DocumentNode:
    """The document without its top-level keys that start with "x-": authors may use them freely, as for anchors."""
    if not isinstance(root.value, dict):
        return root
    return root.but(value={key: node for key, node in root.value.items() if not key.startswith("x-")})


def build_type(kind: Any) -> None:
    """Have msgspec build what it keeps of a type, which convert else does at its first use.

    Two threads that build one type at once crash or hang the process (msgspec 0.22). So a type that is read in threads
    is built when its module is imported.
    """
    msgspec.json.Decoder(kind)


def load_yaml_as(
    data: bytes, kind: type[T], file: str, check: Callable[[T], Iterable[tuple[DocumentPath, str]]] = lambda value: ()
) -> T:
    """The value of type `kind` in a YAML (or JSON) document. Raises InvalidInput.

    `check` gets the whole value and returns its contradictions, as (path, text).
    """
    return load_with_lines(data, kind, file, check)[0]


def load_with_lines(
    data: bytes,
    kind: type[T],
    file: str,
    check: Callable[[T], Iterable[tuple[DocumentPath, str]]] = lambda value: (),
    prepare: Callable[[DocumentNode], DocumentNode] = without_extension_keys,
) -> tuple[T, Callable[[DocumentPath], int]]:
    """The value as of `load`, and a function from a path to its line. `prepare` changes the tree before that."""
    try:
        root, repeated = parse_document(data)
    except MalformedDocument as error:
        raise _invalid_input(file, [error.problem]) from None
    if keys := _keys_of_config_map(root):
        raise _invalid_input(file, [(root.line, f"{CONFIG_MAP}; give the text of its key {keys}")])
    root, reader = prepare(root), _TypedReader(kind, repeated)
    value = _convert_to_type(reader, reader.read_value(root, kind, ()), kind)
    for path, text in islice(check(value), MAX_CHECKED + 1) if value is not None else ():
        if not any(
            broken[: len(path)] == path for broken in reader.invalid_paths
        ):  # else the invalid part may be the cause
            reader.problems.append((root.find_deepest_existing(path).line, text))
    if reader.problems or value is None:
        raise _invalid_input(file, reader.problems)
    return value, lambda path: root.find_deepest_existing(path).line


CONFIG_MAP = "this is a ConfigMap of Kubernetes, which holds such files"


def _keys_of_config_map(root: DocumentNode) -> str:
    """The names of the files in a ConfigMap; "" where the document is something else."""
    found = root.value if isinstance(root.value, dict) else {}
    if "kind" not in found or found["kind"].value != "ConfigMap":
        return ""
    data = found["data"].value if "data" in found else None
    return " or ".join(repr(key) for key in list(data)[:3]) if isinstance(data, dict) and data else "NAME"


def _convert_to_type(reader: "_TypedReader", found: Any, kind: type[T]) -> T | None:
    if found is INVALID_VALUE:
        return None
    try:
        return msgspec.convert(found, kind)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:  # an error that only the whole value shows
        reader.problems.append((1, str(error)))
        return None


def _invalid_input(file: str, problems: list[LineProblem]) -> InvalidInput:
    in_order = dict.fromkeys(sorted(problems, key=lambda problem: problem[0]))
    lines = [f"{file}:{line}: {text[:LONGEST_ERROR]}{'…' * (len(text) > LONGEST_ERROR)}" for line, text in in_order]
    more = len(lines) - MAX_ERRORS
    count = f"at least {more}" if len(lines) > MAX_CHECKED else f"{more}"
    return InvalidInput([*lines[:MAX_ERRORS], f"{file}: and {count} more"] if more > 0 else lines)


INVALID_VALUE: Any = object()


def format_path(path: DocumentPath) -> str:
    """A path as people write it: gpus[1].name"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


class _TypedReader:
    """Converts a tree to plain data of a type, and collects the problems.

    An invalid value is left out where its field has a default, and so are unknown keys: the rest can still be checked.
    `invalid_paths`: where something was left out.
    """

    def __init__(self, kind: Any, problems: list[LineProblem]) -> None:
        self.document_type = kind
        self.problems = problems
        self.invalid_paths: list[DocumentPath] = []
        self.reported = set[tuple[int, str]]()  # a node's identity and what is wrong with it: aliases share nodes

    def read_value(self, node: DocumentNode, kind: Any, path: DocumentPath) -> Any:
        """Plain data for `kind`; INVALID_VALUE where it has a problem, which is then in `problems`."""
        kind = _matching_union_member(kind, node.value)
        origin, args = get_origin(_without_bounds(kind)), get_args(_without_bounds(kind))
        if isinstance(node.value, dict):
            if _is_struct(kind):
                return self.read_struct(node, kind, path)
            if origin in (dict, Mapping):
                return _invalid_if_any_invalid(
                    {key: self.read_value(each, args[1], (*path, key)) for key, each in node.value.items()}
                )
        elif isinstance(node.value, list) and (origin is list or (origin is tuple and args[1:] == (...,))):
            parts = _invalid_if_any_invalid(
                {i: self.read_value(each, args[0], (*path, i)) for i, each in enumerate(node.value)}
            )
            return parts if parts is INVALID_VALUE else list(parts.values())
        return self.read_scalar(node, kind, path)

    def read_struct(self, node: DocumentNode, kind: Any, path: DocumentPath) -> Any:
        known = _fields_by_key(kind)
        taken = {}
        for name, field in known.items():
            if field.required and name not in node.value:
                taken[name] = self.report_problem(node, path, format_path(path), f".{name} is missing")
        for key, each in node.value.items():
            if key not in known:
                is_shown = len(self.problems) < MAX_ERRORS
                hint = _suggest_key(key, list(known), self.document_type) if is_shown else ""
                self.problems.append((each.line, f"unknown key {key!r}{hint}"))
                continue
            value = self.read_value(each, known[key].type, (*path, key))
            if value is not INVALID_VALUE or known[key].required:
                taken[key] = value
        return _invalid_if_any_invalid(taken)

    def read_scalar(self, node: DocumentNode, kind: Any, path: DocumentPath) -> Any:
        value = _to_integer_if_exact(_without_lines(node), kind)
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            wrong = f": must be {_describe_type(kind)}, not {_describe_value(value)}{_suggest_value(value, kind)}"
            return self.report_problem(node, path, format_path(path) or "the document", wrong)
        return value

    def report_problem(self, node: DocumentNode, path: DocumentPath, thing: str, wrong: str) -> Any:
        if (id(node), wrong) not in self.reported:
            self.reported.add((id(node), wrong))
            self.problems.append((node.line, f"{thing}{wrong}".removeprefix(".")))
        self.invalid_paths.append(path)
        return INVALID_VALUE


def _invalid_if_any_invalid(parts: dict[Any, Any]) -> Any:
    """The parts, or INVALID_VALUE if one of them is."""
    return INVALID_VALUE if any(part is INVALID_VALUE for part in parts.values()) else parts


def _matching_union_member(kind: Any, value: Any) -> Any:
    """The member of a union that a mapping or a list is meant for; the union itself if that is not clear."""
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


def _without_bounds(kind: Any) -> Any:
    """The type of `Annotated[type, msgspec.Meta(…)]`."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@cache
def _fields_by_key(kind: type[msgspec.Struct]) -> dict[str, StructField]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _without_lines(node: DocumentNode) -> Any:
    """The value of a node as plain data, without line numbers."""
    if isinstance(node.value, dict):
        return {key: _without_lines(each) for key, each in node.value.items()}
    if isinstance(node.value, list):
        return [_without_lines(each) for each in node.value]
    return node.value


def _to_integer_if_exact(value: Any, kind: Any) -> Any:
    """4.0 is 4 where the type is a whole number, as for Kubernetes' tools (sigs.k8s.io/yaml)."""
    arms = get_args(_without_bounds(kind)) or (_without_bounds(kind),)
    if (
        isinstance(value, float)
        and value.is_integer()
        and abs(value) < MAX_EXACT_INTEGER
        and int in arms
        and float not in arms
    ):
        return int(value)
    return value


MAX_EXACT_INTEGER = 1 << 53
"""Below it, every whole number is exact as a float."""

TYPE_NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _describe_type(kind: Any) -> str:
    """A type in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe_type(args[0]) + "".join(_describe_bounds(each, is_text=args[0] is str) for each in args[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(_describe_type(arm) for arm in args if arm is not type(None))
    if origin is Literal:
        return ("one of " if args[1:] else "") + ", ".join(str(arg) for arg in args)
    if origin in (tuple, list):
        return "a list"
    return TYPE_NAMES.get(kind, "a mapping")


def _describe_bounds(bounds: msgspec.Meta, *, is_text: bool) -> str:
    """The words behind a type: " from 0 to 10", " above 0 and at most 10", " of at most 96 characters"."""
    if bounds.ge is not None and bounds.le is not None:
        return f" from {bounds.ge} to {bounds.le}"
    found = [
        f"{words} {bound}"
        for words, bound in (
            ("above", bounds.gt), ("at least", bounds.ge), ("below", bounds.lt), ("at most", bounds.le),
        )
        if bound is not None
    ]  # fmt: skip
    if bounds.max_length is not None:
        found.append(f"of at most {bounds.max_length}" + " characters" * is_text)
    return f" {' and '.join(found)}" if found else ""


def _describe_value(value: Any) -> str:
    """A value in words."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"the text {value[:60]!r}" if isinstance(value, str) else f"the number {value}"


def _suggest_value(value: Any, kind: Any) -> str:
    """What a scalar of the wrong type probably means, as the end of an error message."""
    members = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    arms = [*map(_without_bounds, members)]
    if isinstance(value, str):
        choices = [str(choice) for arm in arms if get_origin(arm) is Literal for choice in get_args(arm)]
        if close := closest_match(value, choices):
            return f"; did you mean {close!r}?"
        return "; write it without quotes" if str not in arms and _scalar_type(value) in arms else ""
    only_text = str in arms and not {int, float, bool} & set(arms)
    return "; put it in quotes" if only_text and isinstance(value, int | float) else ""


def _scalar_type(text: str) -> type | None:
    try:
        return type(parse_scalar(text))
    except ValueError:
        return None


def _suggest_key(key: str, known: list[str], document_type: Any) -> str:
    if place := next(_find_key_in_type(document_type, key, ""), ""):
        return f"; did you mean {place}?"
    if close := closest_match(key, known):
        return f"; did you mean {close!r}?"
    return f"; known here: {', '.join(sorted(known))}" if known else ""


def _find_key_in_type(kind: Any, key: str, above: str) -> Iterator[str]:
    """The paths in a type where a key of this name is known."""
    if get_origin(kind) in (Union, types.UnionType):
        for arm in get_args(kind):
            yield from _find_key_in_type(arm, key, above)
    elif get_origin(kind) is tuple:
        yield from _find_key_in_type(get_args(kind)[0], key, f"{above}[]")
    elif _is_struct(kind):
        for name, field in _fields_by_key(kind).items():
            place = f"{above}.{name}".removeprefix(".")
            if name == key:
                yield place
            yield from _find_key_in_type(field.type, key, place)


def closest_match(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """The known word that is most similar, or "" if none is. `least`: how similar, from 0 to 1 (difflib)."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(word.lower()[:100], by_lower, n=1, cutoff=least)
    return by_lower[close[0]] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ " Did you mean '--machine'?", or "" where nothing is close."""
    close = closest_match(word, known)
    return f" Did you mean {close!r}?" if close else ""
