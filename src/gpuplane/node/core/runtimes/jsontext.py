"""Sets or removes a key of a JSON text; every other character stays: layout, indentation, order.

Python's own scanner says where each value ends, and the text is changed only there.
"""

import json
import re
from collections import Counter
from contextlib import suppress
from typing import Any, NamedTuple

from gpuplane.base.strict import InvalidInput

KeyPath = tuple[str, ...]
WHITE_SPACE_PATTERN = re.compile(r"[ \t\r\n]*")


class Member(NamedTuple):
    """A member of an object: its name, and the offsets of its key and its value in the text."""

    name: str
    key_start: int
    value_start: int
    value_end: int


def parse(text: str, file: str) -> dict[str, Any]:
    """The content of a JSON text; {} if it is empty. Raises InvalidInput, with the line."""
    bare = text.removeprefix("\ufeff")
    if not bare.strip():
        return {}
    try:
        found = json.loads(bare, object_pairs_hook=lambda pairs: _reject_duplicates(pairs, file))
    except json.JSONDecodeError as error:
        raise InvalidInput([f"{file}:{error.lineno}: is not JSON: {error.msg}"]) from None
    except ValueError:
        raise InvalidInput([f"{file}: is not JSON: a number has too many digits"]) from None
    except RecursionError:
        raise InvalidInput([f"{file}: is nested too deeply"]) from None
    if not isinstance(found, dict):
        raise InvalidInput([f"{file}:1: must be an object"])
    return found


def _reject_duplicates(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidInput([f"{file}: {name!r} appears twice"])
    return found


def get_value(text: str, path: KeyPath, file: str) -> Any:
    """The value at a path; None if there is none. Raises InvalidInput."""
    value: Any = parse(text, file)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def line_of(text: str, path: KeyPath) -> int:
    """The line of an existing key, counted from 1."""
    return text.count("\n", 0, _members_on_path(text, path)[-1].key_start) + 1


def set_value(text: str, path: KeyPath, value: bool | tuple[str, ...], file: str) -> str:
    """The text with a value at a path. Raises InvalidInput if the path leads through a value that is not an object."""
    wanted, plain = parse(text, file), list(value) if isinstance(value, tuple) else value
    table: Any = wanted
    for depth, step in enumerate(path[:-1]):
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise InvalidInput([f"{file}:{line_of(text, path[: depth + 1])}: {step!r} must be an object"])
    table[path[-1]] = plain
    if not text.removeprefix("\ufeff").strip():
        return f"{text}{json.dumps(wanted, indent=2)}\n"
    way = _members_on_path(text, path)
    if len(way) == len(path):
        result = text[: way[-1].value_start] + json.dumps(plain) + text[way[-1].value_end :]
    else:
        result = _add_member(text, way[-1].value_start if way else _root_object_start(text), path[len(way) :], plain)
    return _require_content(result, wanted, file)


def remove_value(text: str, path: KeyPath, file: str, original_text: str) -> str:
    """The text without a member, and without the object around it if that is empty now and `original` has none there.

    Raises InvalidInput.
    """
    wanted = parse(text, file)
    table: Any = wanted
    for step in path[:-1]:
        table = table[step]
    del table[path[-1]]
    if not table and len(path) > 1 and get_value(original_text, path[:-1], file) is None:
        return remove_value(text, path[:-1], file, original_text)
    way = _members_on_path(text, path)
    members = _members_of_object(text, way[-2].value_start if len(way) > 1 else _root_object_start(text))
    at = members.index(way[-1])
    if at > 0:
        start, end = members[at - 1].value_end, members[at].value_end
    elif len(members) > 1:
        start, end = members[at].key_start, members[at + 1].key_start
    else:
        start, end = members[at].key_start, members[at].value_end
        end = _skip_space(text, end)
        start = len(text[:start].rstrip(" \t\r\n"))
    return _require_content(text[:start] + text[end:], wanted, file)


def _add_member(text: str, object_start: int, path: KeyPath, value: Any) -> str:
    """The text with a new member at the end of the object at `place`, in the style of its neighbours."""
    members = _members_of_object(text, object_start)
    for step in reversed(path[1:]):
        value = {step: value}
    if not members:
        line = text[: object_start + 1].rpartition("\n")[2]
        margin = line[: len(line) - len(line.lstrip(" \t"))]
        lines, deep = "\n" in text, margin + _indentation(text)
        inside = f"{json.dumps(path[0])}: {_format_value(value, deep, _indentation(text), lines)}"
        body = f"\n{deep}{inside}\n{margin}" if lines else inside
        return text[: object_start + 1] + _adopt_line_ends(body, text) + text[_skip_space(text, object_start + 1) :]
    last = members[-1]
    lead = text[len(text[: last.key_start].rstrip(" \t\r\n")) : last.key_start]
    margin = lead.rpartition("\n")[2]
    colon = text[json.JSONDecoder().raw_decode(text, last.key_start)[1] : last.value_start]
    shown = _adopt_line_ends(_format_value(value, margin, _indentation(text), "\n" in lead), text)
    return f"{text[: last.value_end]},{lead}{json.dumps(path[0])}{colon}{shown}{text[last.value_end :]}"


def _format_value(value: Any, margin: str, indent: str, is_multiline: bool) -> str:
    """A value as JSON text: on several lines that begin with the margin, or on one line."""
    return json.dumps(value, indent=indent).replace("\n", f"\n{margin}") if is_multiline else json.dumps(value)


def _indentation(text: str) -> str:
    """The white space of one level of indentation in the text."""
    found = re.search(r"\n([ \t]+)", text)
    return found[1] if found else "  "


def _adopt_line_ends(new_text: str, text: str) -> str:
    """New text with the line ends that the text has."""
    first = re.search(r"\r?\n", text)
    return new_text.replace("\n", first[0]) if first else new_text


def _root_object_start(text: str) -> int:
    return text.index("{")


def _members_on_path(text: str, path: KeyPath) -> list[Member]:
    """The members along a path, as far as they exist."""
    way: list[Member] = []
    place = _root_object_start(text)
    for step in path:
        found = [each for each in _members_of_object(text, place) if each.name == step]
        if not found:
            break
        way.append(found[0])
        place = found[0].value_start
    return way


def _members_of_object(text: str, object_start: int) -> list[Member]:
    """The members of the object at `place` of a JSON text; none if it is not an object."""
    members: list[Member] = []
    at = _skip_space(text, object_start + 1)
    while text[object_start] == "{" and text[at] == '"':
        name, end = json.JSONDecoder().raw_decode(text, at)
        value = _skip_space(text, _skip_space(text, end) + 1)
        _, end = json.JSONDecoder().raw_decode(text, value)
        members.append(Member(name, at, value, end))
        at = _skip_space(text, end)
        at = _skip_space(text, at + 1) if text[at] == "," else at
    return members


def _skip_space(text: str, start: int) -> int:
    found = WHITE_SPACE_PATTERN.match(text, start)
    return found.end() if found else start


def _require_content(new_text: str, expected_content: dict[str, Any], file: str) -> str:
    with suppress(RecursionError):
        if parse(new_text, file) == expected_content:
            return new_text
    raise InvalidInput([f"{file}: gpuplane cannot change this file without changing its layout: edit the file by hand"])
