"""Members of a TOML array are added and removed in its text; its lines, comments and commas stay.

Where a member ends is where the text up to there, closed by a bracket, is an array that has it.
"""

import re
import tomllib
from collections.abc import Sequence
from typing import Any


def written(text: str, members: Sequence[str]) -> str:
    """The text of an array of strings, with these members. Those that it has keep their places."""
    for each in [each for each in _value(text) if each not in members]:
        text = _without(text, each)
    for each in [each for each in members if each not in _value(text)]:
        text = _with(text, each)
    return text


def _value(text: str) -> list[Any]:
    """The members of an array; none where the text is none."""
    try:
        found = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return []
    return found if isinstance(found, list) else []


def _ends(text: str) -> list[int]:
    """Where the bracket and each member end."""
    ends = [1]
    for at in range(1, len(text)):
        if len(_value(f"{text[:at]}]")) == len(ends):
            ends.append(at)
    return ends


def _with(text: str, member: str) -> str:
    """With one more member: in the line of the last, or in a line of its own as that has one."""
    quoted = '"' + member.replace("\\", "\\\\").replace('"', '\\"') + '"'
    *before, last = _ends(text)
    rest = text[last:-1]
    if "\n" not in text:
        return f"{text[:last]}{', ' if before else ''}{quoted}{rest}]"
    ended = "," in re.sub(r"#[^\n]*", "", rest)
    tail = re.search(r"(\r?\n)?[ \t]*$", rest)
    assert tail is not None, "it matches nothing, too"
    indent = re.search(r"\n([ \t]*)[^\n]*$", text[:last])
    margin = indent[1] if indent else f"{tail[0].rpartition(chr(10))[2]}  "
    line = f"{chr(13) if chr(13) in text else ''}\n{margin}{quoted}{',' if ended else ''}"
    return f"{text[:last]}{',' if before and not ended else ''}{rest[: tail.start()]}{line}{tail[0]}]"


def _without(text: str, member: str) -> str:
    """Without a member: its line where it has one of its own, else itself and a comma."""
    ends = _ends(text)
    index = _value(text).index(member)
    end = ends[index + 1]
    start = next(at for at in range(ends[index], end) if text[at] in "\"'" and _value(f"[{text[at:end]}]") == [member])
    before, after = re.search(r"\r?\n[ \t]*$", text[:start]), re.match(r"[ \t]*,?[ \t]*(?=\r?\n)", text[end:])
    if before and after:
        return text[: before.start()] + text[end + after.end() :]
    if index:
        return text[: ends[index]] + text[end:]
    comma = re.match(r"[ \t]*,[ \t]*", text[end:])
    return text[:start] + text[end + (comma.end() if comma else 0) :]
