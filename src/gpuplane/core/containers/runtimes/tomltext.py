"""A key of a TOML text is set or removed, and every other byte stays: layout, comments, line ends.

tomlkit knows where things are and writes values in the file's own way; a mark put into what it keeps of the white space
shows the place. What comes out is held against the text that went in by another parser: it says the same but for the
one key, or the change is refused.

Templates of TOML (k3s, rke2) are taken too: Go's `{{ … }}` is covered, character by character, by what TOML can read.
"""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Null, Table

from gpuplane.core.strict import Invalid

MARK = "\0"
Path = tuple[str, ...]


def read(text: str, file: str) -> dict[str, Any]:
    """What a text says. Raises Invalid, with the line."""
    try:
        return tomllib.loads(_covered(text))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line = place[1] if place else text.count("\n") + 1
        raise Invalid([f"{file}:{line}: is not TOML: {str(error).split(' (at ')[0]}"]) from None


def get(text: str, path: Path, file: str) -> Any:
    """The value at a path; None where there is none. Raises Invalid."""
    value: Any = read(text, file)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def line(text: str, path: Path) -> int:
    """The line of a key that is there, from 1."""
    document = tomlkit.parse(_covered(text))
    (_, item), *_ = _found(document, path)
    return text.count("\n", 0, _span(document, item)[0]) + 1


def put(text: str, path: Path, value: bool | tuple[str, ...], file: str) -> str:
    """The text with a value at a path. Raises Invalid where its layout cannot be kept."""
    wanted = read(text, file)
    table: Any = wanted
    for step in path[:-1]:
        table = table.setdefault(step, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise Invalid([f"{file}: {_dotted(path[:-1])} must be a table"])
    plain = list(value) if isinstance(value, tuple) else value
    table[path[-1]] = plain
    covered = _covered(text)
    document = _parsed(covered, file)
    if any(_found(document, path)):
        start, end, new = _replaced(document, path, value)
    elif sections := [item for _, item in _found(document, path[:-1]) if _is_section(item)]:
        start, end, new = _inserted(document, sections[0], path[-1], plain, "{{" in text)
    else:
        start, end, new = _appended(text, path, plain)
    result = text[:start] + _ended(new, text) + text[end:]
    where = f"its layout leaves no place for {path[-1]} in {_dotted(path[:-1])}: write it there by hand"
    return _checked(result, wanted, f"{file}: {where}")


def take(text: str, path: Path, file: str, original: str) -> str:
    """The text without a key, and without its table where that is empty now and the original had none.

    Raises Invalid.
    """
    wanted = read(text, file)
    table: Any = wanted
    for step in path[:-1]:
        table = table[step]
    del table[path[-1]]
    document = _parsed(_covered(text), file)
    ((container, item),) = _found(document, path)
    start, end = _span(document, item)
    section = [each for _, each in _found(document, path[:-1]) if isinstance(each, Table) and each.value is container]
    if not table and section and get(original, path[:-1], file) is None:
        start = _span(document, section[0])[0]
        blank = re.search(r"(?<=\n)\r?\n$", text[:start])
        start -= len(blank[0]) if blank else 0
        outer: Any = wanted
        for step in path[:-2]:
            outer = outer[step]
        del outer[path[-2]]
        wanted = wanted if wanted.get(path[0]) else {key: each for key, each in wanted.items() if key != path[0]}
    where = f"its layout lets nothing go: take {path[-1]} out of {_dotted(path[:-1])} by hand"
    return _checked(text[:start] + text[end:], wanted, f"{file}: {where}")


def _found(container: Container, path: Path) -> Iterator[tuple[Container, Item]]:
    """The items at a path and what they are in: several where a table is written in several pieces."""
    for key, item in container.body:
        if key is not None and key.key == path[0]:
            if len(path) == 1:
                yield container, item
            elif isinstance(item, Table | InlineTable):
                yield from _found(item.value, path[1:])


def _is_section(item: Item) -> bool:
    """Whether a key can be written under the header of a table, or within an inline one."""
    return isinstance(item, InlineTable) or (isinstance(item, Table) and not item.is_super_table())


def _span(document: Container, item: Item) -> tuple[int, int]:
    """From where to where a key, or the header of a table, goes: whole lines."""
    indent, trail = item.trivia.indent, item.trivia.trail
    item.trivia.indent, item.trivia.trail = MARK + indent, trail + MARK
    marked = document.as_string()
    item.trivia.indent, item.trivia.trail = indent, trail
    start = marked.index(MARK)
    return start, marked.index(MARK, start + 1) - 1


def _replaced(document: Container, path: Path, value: bool | tuple[str, ...]) -> tuple[int, int, str]:
    """From where to where the text is replaced by what, so that a key that is there has another value."""
    ((container, item),) = _found(document, path)
    before, (start, end) = document.as_string(), _span(document, item)
    key = next(key for key, each in container.body if each is item and key is not None)
    if isinstance(value, bool):
        container[key] = value
    else:
        _fill(item, value)
    after = document.as_string()
    return start, end, after[start : end + len(after) - len(before)]


def _fill(array: Any, wanted: tuple[str, ...]) -> None:
    """Give an array these members, and leave those alone that stay."""
    for index in reversed([index for index, each in enumerate(array) if each not in wanted]):
        del array[index]
    for each in wanted:
        if each not in array:
            array.append(each)


def _inserted(document: Container, section: Item, name: str, value: Any, template: bool) -> tuple[int, int, str]:
    """A line after the last key of a table, or after its header; a member of an inline table.

    In a template the last key may hang on a condition, so there it is the line after the header.
    """
    assert isinstance(section, Table | InlineTable)
    entry, (start, end) = f"{name} = {tomlkit.item(value).as_string()}", _span(document, section)
    if isinstance(section, InlineTable):
        body = section.as_string()[:-1].rstrip()
        place = document.as_string().index(body, start) + len(body)
        return place, place, f", {entry}" if section.value else f" {entry} "
    keys = [item for key, item in section.value.body if key is not None and not isinstance(item, Table | Null)]
    last = section if not keys or template else keys[-1]
    indent = last.trivia.indent if last is not section else f"{section.trivia.indent}  "
    end = _span(document, last)[1]
    return end, end, f"{indent}{entry}\n" if last.trivia.trail else f"\n{indent}{entry}"


def _appended(text: str, path: Path, value: Any) -> tuple[int, int, str]:
    """A new table at the end."""
    quote = "'" if "[plugins.'" in text else '"'
    steps = [step if re.fullmatch(r"[\w-]+", step) else f"{quote}{step}{quote}" for step in path[:-1]]
    lines = f"[{'.'.join(steps)}]\n  {path[-1]} = {tomlkit.item(value).as_string()}"
    if not text.strip():
        return len(text), len(text), f"{lines}\n"
    if text.endswith("\n"):
        return len(text), len(text), f"\n{lines}\n"
    return len(text), len(text), f"\n\n{lines}"


def _covered(text: str) -> str:
    """The text with everything covered that is not TOML; as long as it was."""
    covered = text.replace("\ufeff", " ", 1) if text.startswith("\ufeff") else text
    alone = re.compile(r"(?m)^[ \t]*\{\{(?:(?!\}\}).|\n)*\}\}[ \t]*\r?$")
    covered = alone.sub(
        lambda found: re.sub(r"[^\r\n]+", lambda line: "#" + "x" * (len(line[0]) - 1), found[0]), covered
    )
    return re.sub(r"\{\{.*?\}\}", lambda found: "1" * len(found[0]), covered)


def _ended(new: str, text: str) -> str:
    """With the line ends of the text."""
    windows = re.search(r"\r?\n", text)
    return re.sub(r"\r?\n", "\r\n", new) if windows and windows[0] == "\r\n" else new


def _parsed(text: str, file: str) -> Container:
    try:
        document = tomlkit.parse(text)
        if document.as_string() == text:
            return document
    except TOMLKitError as error:
        raise Invalid([f"{file}: cannot be changed without loss ({error}): change it by hand"]) from None
    raise Invalid([f"{file}: its layout cannot be kept: change it by hand"])


def _checked(result: str, wanted: dict[str, Any], otherwise: str) -> str:
    try:
        if tomllib.loads(_covered(result)) == wanted:
            return result
    except tomllib.TOMLDecodeError:
        pass
    raise Invalid([otherwise])


def _dotted(path: Path) -> str:
    return ".".join(step if re.fullmatch(r"[\w-]+", step) else f'"{step}"' for step in path)
