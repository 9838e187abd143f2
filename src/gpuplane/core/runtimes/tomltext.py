"""A key of a TOML text is set or removed, and every other byte stays: layout, comments, line ends.

tomlkit knows where things are in a section and writes values in the file's own way; a mark put into what it keeps of
the white space shows the place. It is given one section at a time, a header and its keys: of whole files it moves
tables together. What comes out is held against the text that went in by another parser: it says the same but for the
one key, or the change is refused.

Templates of TOML (k3s, rke2) are taken too: Go's `{{ … }}` is covered, character by character, by what TOML can read.
"""

import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Null, Table

from gpuplane.core.runtimes.tomlarray import written
from gpuplane.core.strict import InvalidInput

MARK = "\0"
Path = tuple[str, ...]


def read(text: str, file: str) -> dict[str, Any]:
    """What a text says. Raises Invalid, with the line."""
    try:
        return tomllib.loads(_covered(text))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line = place[1] if place else text.count("\n") + 1
        raise InvalidInput([f"{file}:{line}: is not TOML: {str(error).split(' (at ')[0]}"]) from None
    except RecursionError:
        raise InvalidInput([f"{file}: is nested too deeply"]) from None


def get(text: str, path: Path, file: str) -> Any:
    """The value at a path; None where there is none. Raises Invalid."""
    value: Any = read(text, file)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def line(text: str, path: Path) -> int:
    """The line of a key that is there, from 1."""
    covered = _covered(text)
    places = (_span(section, item)[0] for section in _sections(covered, path) for _, item in section.items(path))
    return text.count("\n", 0, next(places, 0)) + 1


def put(text: str, path: Path, value: bool | tuple[str, ...], file: str) -> str:
    """The text with a value at a path. Raises Invalid where its layout cannot be kept."""
    wanted = read(text, file)
    table: Any = wanted
    for step in path[:-1]:
        table = table.setdefault(step, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise InvalidInput([f"{file}: {_dotted(path[:-1])} must be a table"])
    plain = list(value) if isinstance(value, tuple) else value
    table[path[-1]] = plain
    where = f"its layout leaves no place for {path[-1]} in {_dotted(path[:-1])}: write it there by hand"
    covered = _covered(text)
    sections = list(_sections(covered, path))
    if there := [section for section in sections if section.items(path)]:
        start, end, new = _replaced(there[0], path, value)
        if text[start:end] != covered[start:end]:
            raise InvalidInput([f"{file}: {where}"])  # a template's own words are in it
    elif tables := [(section, item) for section in sections for _, item in section.items(path[:-1]) if _is_open(item)]:
        start, end, new = _inserted(*tables[0], path[-1], plain, "{{" in text)
        new = _ended(new, text)
    else:
        start, end, new = _appended(text, path, plain)
        new = _ended(new, text)
    return _checked(text[:start] + new + text[end:], wanted, f"{file}: {where}")


def take(text: str, path: Path, file: str, original: str) -> str:
    """The text without a key, and without its table where that is empty now and the original had none.

    Raises Invalid.
    """
    wanted = read(text, file)
    tables: list[Any] = [wanted]
    for step in path[:-1]:
        tables.append(tables[-1][step])
    del tables[-1][path[-1]]
    where = f"its layout lets nothing go: take {path[-1]} out of {_dotted(path[:-1])} by hand"
    sections = [section for section in _sections(_covered(text), path) if section.items(path)]
    if not sections:
        raise InvalidInput([f"{file}: {where}"])
    section = sections[0]
    ((container, item),) = section.items(path)
    start, end = _span(section, item)
    header = [each for _, each in section.items(path[:-1]) if isinstance(each, Table) and each.value is container]
    if header and not tables[-1] and get(original, path[:-1], file) is None:
        start = _span(section, header[0])[0]
        blank = re.search(r"(?<=\n)\r?\n$", text[:start])
        start -= len(blank[0]) if blank else 0
        for depth in reversed(range(len(path) - 1)):  # the tables around it are there only by its header
            if not tables[depth + 1]:
                del tables[depth][path[depth]]
    return _checked(text[:start] + text[end:], wanted, f"{file}: {where}")


class Section(NamedTuple):
    """A header and its keys, or the keys before the first header. `start`: where in the text."""

    start: int
    text: str
    document: Container

    def items(self, path: Path) -> list[tuple[Container, Item]]:
        """The items at a path and what they are in."""
        return list(_found(self.document, path))


def _sections(text: str, path: Path) -> Iterator[Section]:
    """The sections that can have a path: those whose header is a part of it, and that before the first header.

    A line is a header where the section before it is TOML by itself: it is in no array and no text of several lines.
    """
    starts = [0]
    for found in re.finditer(r"(?m)^[ \t]*\[.*$", text):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads(text[starts[-1] : found.start()])
            starts.append(found.start())
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        said: Any = tomllib.loads(text[start:].partition("\n")[0].rstrip("\r")) if start in starts[1:] else {}
        header: list[str] = []
        while isinstance(said, dict) and said:
            ((step, said),) = said.items()
            header.append(step)
        if tuple(header) == path[: len(header)] and said == {}:
            with suppress(TOMLKitError, RecursionError):
                document = tomlkit.parse(text[start:end])
                if document.as_string() == text[start:end]:
                    yield Section(start, text[start:end], document)


def _found(container: Container, path: Path) -> Iterator[tuple[Container, Item]]:
    """The items at a path and what they are in: several where a table is written in several pieces."""
    for key, item in container.body:
        if key is not None and key.key == path[0]:
            if len(path) == 1:
                yield container, item
            elif isinstance(item, Table | InlineTable):
                yield from _found(item.value, path[1:])


def _is_open(item: Item) -> bool:
    """Whether a key can be written under the header of a table, or within an inline one."""
    return isinstance(item, InlineTable) or (isinstance(item, Table) and not item.is_super_table())


def _span(section: Section, item: Item) -> tuple[int, int]:
    """From where to where in the text a key, or the header of a table, goes: whole lines."""
    indent, trail = item.trivia.indent, item.trivia.trail
    item.trivia.indent, item.trivia.trail = MARK + indent, trail + MARK
    marked = section.document.as_string()
    item.trivia.indent, item.trivia.trail = indent, trail
    start = marked.index(MARK)
    return section.start + start, section.start + marked.index(MARK, start + 1) - 1


def _replaced(section: Section, path: Path, value: bool | tuple[str, ...]) -> tuple[int, int, str]:
    """From where to where the text is replaced by what, so that a key that is there has another value."""
    ((_, item),) = section.items(path)
    start, end = _span(section, item)
    was = item.as_string()
    at = section.text.rindex(was, start - section.start, end - section.start - len(_behind(item)))
    new = written(was, value) if isinstance(value, tuple) else tomlkit.item(value).as_string()
    return section.start + at, section.start + at + len(was), new


def _behind(item: Item) -> str:
    """What is in the line after a value."""
    return f"{item.trivia.comment_ws}{item.trivia.comment}{item.trivia.trail}"


def _inserted(section: Section, table: Item, name: str, value: Any, template: bool) -> tuple[int, int, str]:
    """A line after the last key of a table, or after its header; a member of an inline table.

    In a template the last key may hang on a condition, so there it is the line after the header.
    """
    assert isinstance(table, Table | InlineTable)
    entry, (start, end) = f"{name} = {tomlkit.item(value).as_string()}", _span(section, table)
    if isinstance(table, InlineTable):
        body = table.as_string()[:-1].rstrip()
        place = section.text.index(body, start - section.start) + section.start + len(body)
        return place, place, f", {entry}" if table.value else f" {entry} "
    keys = [item for key, item in table.value.body if key is not None and not isinstance(item, Table | Null)]
    last = table if not keys or template else keys[-1]
    indent = last.trivia.indent if last is not table else f"{table.trivia.indent}  "
    end = _span(section, last)[1]
    return end, end, f"{indent}{entry}\n" if "\n" in last.trivia.trail else f"\n{indent}{entry}"


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


def _checked(result: str, wanted: dict[str, Any], otherwise: str) -> str:
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        if tomllib.loads(_covered(result)) == wanted:
            return result
    raise InvalidInput([otherwise])


def _dotted(path: Path) -> str:
    return ".".join(step if re.fullmatch(r"[\w-]+", step) else f'"{step}"' for step in path)
