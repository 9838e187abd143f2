"""Sets or removes a key of a TOML text; every other byte stays: layout, comments, line ends.

tomlkit knows the place of each item in a section, and writes values in the file's own style. A mark that we put into
the white space that it keeps shows us the place. It parses one section at a time (a header and its keys), because in
whole files it would move tables together. Another parser (tomllib) then compares the result with the original text: it
must differ in that one key only, or the change is refused.

Templates of TOML (k3s, rke2) work too: Go's `{{ … }}` is masked with characters that TOML can read, one for one.
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

from gpuplane.core.runtimes.tomlarray import set_array_members
from gpuplane.core.strict import InvalidInput

POSITION_MARKER = "\0"
KeyPath = tuple[str, ...]


def parse(text: str, file: str) -> dict[str, Any]:
    """The content of a TOML text. Raises InvalidInput, with the line."""
    try:
        return tomllib.loads(_mask_template_code(text))
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        number = place[1] if place else text.count("\n") + 1
        raise InvalidInput([f"{file}:{number}: is not TOML: {str(error).split(' (at ')[0]}"]) from None
    except RecursionError:
        raise InvalidInput([f"{file}: is nested too deeply"]) from None


def get_value(text: str, path: KeyPath, file: str) -> Any:
    """The value at a path; None if there is none. Raises InvalidInput."""
    value: Any = parse(text, file)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def line_of(text: str, path: KeyPath) -> int:
    """The line of an existing key, counted from 1."""
    masked = _mask_template_code(text)
    places = (
        _whole_lines_of_item(section, item)[0]
        for section in _sections_that_may_contain(masked, path)
        for _, item in section.items_at(path)
    )
    return text.count("\n", 0, next(places, 0)) + 1


def set_value(text: str, path: KeyPath, value: bool | tuple[str, ...], file: str) -> str:
    """The text with a value at a path. Raises InvalidInput if that is impossible without changing its layout."""
    wanted = parse(text, file)
    table: Any = wanted
    for step in path[:-1]:
        table = table.setdefault(step, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        raise InvalidInput([f"{file}: {_dotted_key(path[:-1])} must be a table"])
    plain = list(value) if isinstance(value, tuple) else value
    table[path[-1]] = plain
    where = (
        f"gpuplane cannot add {path[-1]} to {_dotted_key(path[:-1])} without changing the layout of the "
        "file: add it by hand"
    )
    masked = _mask_template_code(text)
    sections = list(_sections_that_may_contain(masked, path))
    if there := [section for section in sections if section.items_at(path)]:
        start, end, new = _edit_that_replaces_value(there[0], path, value)
        if text[start:end] != masked[start:end]:
            raise InvalidInput([f"{file}: {where}"])  # a part of it is masked template code
    elif tables := [
        (section, item) for section in sections for _, item in section.items_at(path[:-1]) if _accepts_keys(item)
    ]:
        start, end, new = _edit_that_adds_key(*tables[0], path[-1], plain, "{{" in text)
        new = _adopt_line_ends(new, text)
    else:
        start, end, new = _edit_that_appends_table(text, path, plain)
        new = _adopt_line_ends(new, text)
    return _require_content(text[:start] + new + text[end:], wanted, f"{file}: {where}")


def remove_value(text: str, path: KeyPath, file: str, original_text: str) -> str:
    """The text without a key, and without its table if that is empty now and `original` has no such table.

    Raises InvalidInput.
    """
    wanted = parse(text, file)
    tables: list[Any] = [wanted]
    for step in path[:-1]:
        tables.append(tables[-1][step])
    del tables[-1][path[-1]]
    where = (
        f"gpuplane cannot remove {path[-1]} from {_dotted_key(path[:-1])} without changing the layout of the "
        "file: remove it by hand"
    )
    sections = [
        section for section in _sections_that_may_contain(_mask_template_code(text), path) if section.items_at(path)
    ]
    if not sections:
        raise InvalidInput([f"{file}: {where}"])
    section = sections[0]
    ((container, item),) = section.items_at(path)
    start, end = _whole_lines_of_item(section, item)
    header = [each for _, each in section.items_at(path[:-1]) if isinstance(each, Table) and each.value is container]
    if header and not tables[-1] and get_value(original_text, path[:-1], file) is None:
        start = _whole_lines_of_item(section, header[0])[0]
        blank = re.search(r"(?<=\n)\r?\n$", text[:start])
        start -= len(blank[0]) if blank else 0
        for depth in reversed(range(len(path) - 1)):  # its header own_lines creates the tables around it
            if not tables[depth + 1]:
                del tables[depth][path[depth]]
    return _require_content(text[:start] + text[end:], wanted, f"{file}: {where}")


class TomlTextSection(NamedTuple):
    """A header and its keys, or the keys before the first header. `start`: its offset in the whole text."""

    start: int
    text: str
    document: Container

    def items_at(self, path: KeyPath) -> list[tuple[Container, Item]]:
        """The items at a path, each with its container."""
        return list(_items_at(self.document, path))


def _sections_that_may_contain(text: str, path: KeyPath) -> Iterator[TomlTextSection]:
    """The sections that can contain a path: those whose header is a prefix of it, and the one before the first header.

    A line is a header if the section before it is valid TOML by itself: then the line is not inside an array or a
    string of several lines.
    """
    starts = [0]
    for found in re.finditer(r"(?m)^[ \t]*\[.*$", text):
        with suppress(tomllib.TOMLDecodeError):
            tomllib.loads(text[starts[-1] : found.start()])
            starts.append(found.start())
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        tables: Any = tomllib.loads(text[start:].partition("\n")[0].rstrip("\r")) if start in starts[1:] else {}
        header: list[str] = []
        while isinstance(tables, dict) and tables:
            ((step, tables),) = tables.items()
            header.append(step)
        if tuple(header) == path[: len(header)] and tables == {}:
            with suppress(TOMLKitError, RecursionError):
                document = tomlkit.parse(text[start:end])
                if document.as_string() == text[start:end]:
                    yield TomlTextSection(start, text[start:end], document)


def _items_at(container: Container, path: KeyPath) -> Iterator[tuple[Container, Item]]:
    """The items at a path, each with its container: several if a table is written in several pieces."""
    for key, item in container.body:
        if key is not None and key.key == path[0]:
            if len(path) == 1:
                yield container, item
            elif isinstance(item, Table | InlineTable):
                yield from _items_at(item.value, path[1:])


def _accepts_keys(item: Item) -> bool:
    """Whether a key can be added: to a table that has a header of its own, or to an inline table."""
    return isinstance(item, InlineTable) or (isinstance(item, Table) and not item.is_super_table())


def _whole_lines_of_item(section: TomlTextSection, item: Item) -> tuple[int, int]:
    """Start and end of a key, or of a table's header, in the whole text: whole lines."""
    indent, trail = item.trivia.indent, item.trivia.trail
    item.trivia.indent, item.trivia.trail = POSITION_MARKER + indent, trail + POSITION_MARKER
    marked = section.document.as_string()
    item.trivia.indent, item.trivia.trail = indent, trail
    start = marked.index(POSITION_MARKER)
    return section.start + start, section.start + marked.index(POSITION_MARKER, start + 1) - 1


def _edit_that_replaces_value(
    section: TomlTextSection, path: KeyPath, value: bool | tuple[str, ...]
) -> tuple[int, int, str]:
    """(start, end, new text) that gives an existing key another value."""
    ((_, item),) = section.items_at(path)
    start, end = _whole_lines_of_item(section, item)
    old = item.as_string()
    at = section.text.rindex(old, start - section.start, end - section.start - len(_trailing_text(item)))
    new = set_array_members(old, value) if isinstance(value, tuple) else tomlkit.item(value).as_string()
    return section.start + at, section.start + at + len(old), new


def _trailing_text(item: Item) -> str:
    """What follows a value on its line."""
    return f"{item.trivia.comment_ws}{item.trivia.comment}{item.trivia.trail}"


def _edit_that_adds_key(
    section: TomlTextSection, table: Item, key: str, value: Any, is_template: bool
) -> tuple[int, int, str]:
    """(start, end, new text) that adds a key: a line after the table's last key, or a member of an inline table.

    It is the line after the header if the table has no key, and in a template: there the last key can be conditional.
    """
    assert isinstance(table, Table | InlineTable)
    entry, (start, end) = f"{key} = {tomlkit.item(value).as_string()}", _whole_lines_of_item(section, table)
    if isinstance(table, InlineTable):
        body = table.as_string()[:-1].rstrip()
        place = section.text.index(body, start - section.start) + section.start + len(body)
        return place, place, f", {entry}" if table.value else f" {entry} "
    keys = [item for key, item in table.value.body if key is not None and not isinstance(item, Table | Null)]
    last = table if not keys or is_template else keys[-1]
    indent = last.trivia.indent if last is not table else f"{table.trivia.indent}  "
    end = _whole_lines_of_item(section, last)[1]
    return end, end, f"{indent}{entry}\n" if "\n" in last.trivia.trail else f"\n{indent}{entry}"


def _edit_that_appends_table(text: str, path: KeyPath, value: Any) -> tuple[int, int, str]:
    """(start, end, new text) that adds a new table at the end."""
    quote = "'" if "[plugins.'" in text else '"'
    steps = [step if re.fullmatch(r"[\w-]+", step) else f"{quote}{step}{quote}" for step in path[:-1]]
    lines = f"[{'.'.join(steps)}]\n  {path[-1]} = {tomlkit.item(value).as_string()}"
    if not text.strip():
        return len(text), len(text), f"{lines}\n"
    if text.endswith("\n"):
        return len(text), len(text), f"\n{lines}\n"
    return len(text), len(text), f"\n\n{lines}"


def _mask_template_code(text: str) -> str:
    """The text with everything masked that is not TOML; its length stays the same."""
    masked = text.replace("\ufeff", " ", 1) if text.startswith("\ufeff") else text
    own_lines = re.compile(r"(?m)^[ \t]*\{\{(?:(?!\}\}).|\n)*\}\}[ \t]*\r?$")
    masked = own_lines.sub(
        lambda found: re.sub(r"[^\r\n]+", lambda line: "#" + "x" * (len(line[0]) - 1), found[0]), masked
    )
    return re.sub(r"\{\{.*?\}\}", lambda found: "1" * len(found[0]), masked)


def _adopt_line_ends(new_text: str, text: str) -> str:
    """New text with the line ends that the text has."""
    windows = re.search(r"\r?\n", text)
    return re.sub(r"\r?\n", "\r\n", new_text) if windows and windows[0] == "\r\n" else new_text


def _require_content(new_text: str, expected_content: dict[str, Any], error_message: str) -> str:
    with suppress(tomllib.TOMLDecodeError, RecursionError):
        if tomllib.loads(_mask_template_code(new_text)) == expected_content:
            return new_text
    raise InvalidInput([error_message])


def _dotted_key(path: KeyPath) -> str:
    return ".".join(step if re.fullmatch(r"[\w-]+", step) else f'"{step}"' for step in path)
