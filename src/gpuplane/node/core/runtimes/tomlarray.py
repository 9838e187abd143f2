"""Adds members to the text of a TOML array and removes them; its lines, comments and commas stay.

To find where a member ends, the text up to a place is closed by a bracket and parsed: is that an array with the member?
"""

import re
import tomllib
from collections.abc import Sequence
from typing import Any


def set_array_members(text: str, members: Sequence[str]) -> str:
    """The text of an array of strings with exactly these members. Members that it already has keep their places."""
    for each in [each for each in _parse_members(text) if each not in members]:
        text = _remove_member(text, each)
    for each in [each for each in members if each not in _parse_members(text)]:
        text = _add_member(text, each)
    return text


def _parse_members(text: str) -> list[Any]:
    """The members of an array; none if the text is not an array."""
    try:
        found = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return []
    return found if isinstance(found, list) else []


def _member_ends(text: str) -> list[int]:
    """The offsets at which the opening bracket and each member end."""
    ends = [1]
    for at in range(1, len(text)):
        if len(_parse_members(f"{text[:at]}]")) == len(ends):
            ends.append(at)
    return ends


def _add_member(text: str, member: str) -> str:
    """The array with one more member: on its own line if the last member is on its own line, else beside that."""
    quoted = '"' + member.replace("\\", "\\\\").replace('"', '\\"') + '"'
    *before, last = _member_ends(text)
    rest = text[last:-1]
    if "\n" not in text:
        return f"{text[:last]}{', ' if before else ''}{quoted}{rest}]"
    ended = "," in re.sub(r"#[^\n]*", "", rest)
    tail = re.search(r"(\r?\n)?[ \t]*$", rest)
    assert tail is not None, "it also matches the empty text"
    indent = re.search(r"\n([ \t]*)[^\n]*$", text[:last])
    margin = indent[1] if indent else f"{tail[0].rpartition(chr(10))[2]}  "
    line = f"{chr(13) if chr(13) in text else ''}\n{margin}{quoted}{',' if ended else ''}"
    return f"{text[:last]}{',' if before and not ended else ''}{rest[: tail.start()]}{line}{tail[0]}]"


def _remove_member(text: str, member: str) -> str:
    """The array without a member: removes its line if it is alone there, else the member and a comma."""
    ends = _member_ends(text)
    index = _parse_members(text).index(member)
    end = ends[index + 1]
    start = next(
        at for at in range(ends[index], end) if text[at] in "\"'" and _parse_members(f"[{text[at:end]}]") == [member]
    )
    before, after = re.search(r"\r?\n[ \t]*$", text[:start]), re.match(r"[ \t]*,?[ \t]*(?=\r?\n)", text[end:])
    if before and after:
        return text[: before.start()] + text[end + after.end() :]
    if index:
        return text[: ends[index]] + text[end:]
    comma = re.match(r"[ \t]*,[ \t]*", text[end:])
    return text[:start] + text[end + (comma.end() if comma else 0) :]
