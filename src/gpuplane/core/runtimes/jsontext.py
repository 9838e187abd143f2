"""A key of a JSON text is set or removed, and every other character stays: layout, indentation, order.

Python's own scanner says where each value ends; the text is cut there and nowhere else.
"""

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

from gpuplane.core.strict import InvalidInput

Path = tuple[str, ...]
SPACE = re.compile(r"[ \t\r\n]*")


class Member(NamedTuple):
    """A member of an object: where its key begins, its value begins and its value ends."""

    name: str
    key: int
    value: int
    end: int


def read(text: str, file: str) -> dict[str, Any]:
    """What a text says; nothing where it is empty. Raises Invalid, with the line."""
    bare = text.removeprefix("\ufeff")
    if not bare.strip():
        return {}
    try:
        found = json.loads(bare, object_pairs_hook=lambda pairs: _once(pairs, file))
    except json.JSONDecodeError as error:
        raise InvalidInput([f"{file}:{error.lineno}: is not JSON: {error.msg}"]) from None
    except RecursionError:
        raise InvalidInput([f"{file}: is nested too deeply"]) from None
    if not isinstance(found, dict):
        raise InvalidInput([f"{file}:1: must be an object"])
    return found


def _once(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidInput([f"{file}: {next(name for name in names if names.count(name) > 1)!r} is there twice"])
    return found


def get(text: str, path: Path, file: str) -> Any:
    """The value at a path; None where there is none. Raises Invalid."""
    value: Any = read(text, file)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def line(text: str, path: Path) -> int:
    """The line of a key that is there, from 1."""
    return text.count("\n", 0, _along(text, path)[-1].key) + 1


def put(text: str, path: Path, value: bool | tuple[str, ...], file: str) -> str:
    """The text with a value at a path. Raises Invalid where what is on the way there is no object."""
    wanted, plain = read(text, file), list(value) if isinstance(value, tuple) else value
    table: Any = wanted
    for depth, step in enumerate(path[:-1]):
        table = table.setdefault(step, {})
        if not isinstance(table, dict):
            raise InvalidInput([f"{file}:{line(text, path[: depth + 1])}: {step!r} must be an object"])
    table[path[-1]] = plain
    if not text.removeprefix("\ufeff").strip():
        return f"{text}{json.dumps(wanted, indent=2)}\n"
    way = _along(text, path)
    if len(way) == len(path):
        result = text[: way[-1].value] + json.dumps(plain) + text[way[-1].end :]
    else:
        result = _added(text, way[-1].value if way else _start(text), path[len(way) :], plain)
    return _checked(result, wanted, file)


def take(text: str, path: Path, file: str, original: str) -> str:
    """The text without a member, and without the object around it where that is empty now and the original had none.

    Raises Invalid.
    """
    wanted = read(text, file)
    table: Any = wanted
    for step in path[:-1]:
        table = table[step]
    del table[path[-1]]
    if not table and len(path) > 1 and get(original, path[:-1], file) is None:
        return take(text, path[:-1], file, original)
    way = _along(text, path)
    members = _members(text, way[-2].value if len(way) > 1 else _start(text))
    at = members.index(way[-1])
    if at > 0:
        start, end = members[at - 1].end, members[at].end
    elif len(members) > 1:
        start, end = members[at].key, members[at + 1].key
    else:
        start, end = members[at].key, members[at].end
        end = _after_space(text, end)
        start = len(text[:start].rstrip(" \t\r\n"))
    return _checked(text[:start] + text[end:], wanted, file)


def _added(text: str, place: int, path: Path, value: Any) -> str:
    """The text with a new member at the end of the object at a place, written as its neighbours are."""
    members = _members(text, place)
    for step in reversed(path[1:]):
        value = {step: value}
    if not members:
        outer = re.search(r"(?:^|\n)([ \t]*)[^\n]*$", text[: place + 1])
        margin = outer[1] if outer else ""
        lines, deep = "\n" in text, margin + _step(text)
        inside = f"{json.dumps(path[0])}: {_shown(value, deep, _step(text), lines)}"
        body = f"\n{deep}{inside}\n{margin}" if lines else inside
        return text[: place + 1] + _ended(body, text) + text[_after_space(text, place + 1) :]
    last = members[-1]
    lead = text[len(text[: last.key].rstrip(" \t\r\n")) : last.key]
    margin = lead.rpartition("\n")[2]
    colon = text[json.JSONDecoder().raw_decode(text, last.key)[1] : last.value]
    shown = _ended(_shown(value, margin, _step(text), "\n" in lead), text)
    return f"{text[: last.end]},{lead}{json.dumps(path[0])}{colon}{shown}{text[last.end :]}"


def _shown(value: Any, margin: str, step: str, lines: bool) -> str:
    """A value as it is written in lines that begin with the margin, or in one line."""
    return json.dumps(value, indent=step).replace("\n", f"\n{margin}") if lines else json.dumps(value)


def _step(text: str) -> str:
    """By what the text is indented."""
    found = re.search(r"\n([ \t]+)", text)
    return found[1] if found else "  "


def _ended(new: str, text: str) -> str:
    """With the line ends of the text."""
    first = re.search(r"\r?\n", text)
    return new.replace("\n", first[0]) if first else new


def _start(text: str) -> int:
    return text.index("{")


def _along(text: str, path: Path) -> list[Member]:
    """The members on the way to a path, as far as they are there."""
    way: list[Member] = []
    place = _start(text)
    for step in path:
        found = [each for each in _members(text, place) if each.name == step]
        if not found:
            break
        way.append(found[0])
        place = found[0].value
    return way


def _members(text: str, place: int) -> list[Member]:
    """The members of the object at a place of a text that is JSON; none of what is no object."""
    members: list[Member] = []
    at = _after_space(text, place + 1)
    while text[place] == "{" and text[at] == '"':
        name, end = json.JSONDecoder().raw_decode(text, at)
        value = _after_space(text, _after_space(text, end) + 1)
        _, end = json.JSONDecoder().raw_decode(text, value)
        members.append(Member(name, at, value, end))
        at = _after_space(text, end)
        at = _after_space(text, at + 1) if text[at] == "," else at
    return members


def _after_space(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return found.end() if found else at


def _checked(result: str, wanted: dict[str, Any], file: str) -> str:
    with suppress(RecursionError):
        if read(result, file) == wanted:
            return result
    raise InvalidInput([f"{file}: its layout cannot be kept: change it by hand"])
