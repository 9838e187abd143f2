"""Sets or removes a key of a TOML text; every other byte stays: layout, comments, line ends.

tomlkit knows the place of each item in a section, and writes values in the file's own style. A mark that we put into
the white space that it keeps shows us the place. It parses one section at a time (a header and its keys), because in
whole files it would move tables together. Another parser (tomllib) then compares the result with the original text: it
must differ in that one key only, or the change is refused.

Templates of TOML (k3s, RKE2) work too: Go's `{{ … }}` is masked with characters that TOML can read, one for one. The
texts are compared as they are after rendering (`templates`), in each way that the template can go.

What is read is bounded, for tomllib and tomlkit are not: a key with many parts takes the square of them in memory.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Null, Table

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.runtimes import templates
from gpuplane.node.core.runtimes.tomlarray import set_array_members

POSITION_MARKER = "\0"
KeyPath = tuple[str, ...]
Content = dict[str, Any]

MOST_KEY_PARTS = 12
"""Parts of a dotted key or header. containerd's own have 7."""
KEY_WITH_TOO_MANY_PARTS = re.compile(
    rf"""(?<![\w"'.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_KEY_PARTS}}}"""
)
LONGEST_ARRAY = 4096
"""Characters of an array that members are added to."""
TOKEN = re.compile(
    r"""\"\"\"(?:[^\\]|\\.)*?\"\"\"|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|\#[^\n]*+|[^"'\#\n\[\]]++|.""",
    re.DOTALL,
)
"""A string, a comment, a bracket, a line end, or what is between them."""


def parse(text: str, file: str) -> Content:
    """The content of a TOML text, of a template in its first rendering. Raises InvalidInput, with the line."""
    return _parse(_readings(text, file, _base_of(text, file))[0], file)


def _readings(text: str, file: str, base: str) -> tuple[str, ...]:
    """The texts that containerd can get to read: the text itself, or all renderings of a template."""
    text = text.removeprefix("\ufeff")
    return tuple(templates.renderings(text, file, base)) if templates.is_template(file) else (text,)


def _base_of(text: str, file: str) -> str:
    """What stands for the template "base".

    A template that has one of the base's tables itself is for a base without them: with another it never worked.
    """
    with suppress(InvalidInput):
        _parse(_readings(text, file, templates.BASE)[0], file)
        return templates.BASE
    return ""


def _parse(text: str, file: str) -> Content:
    if found := KEY_WITH_TOO_MANY_PARTS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InvalidInput([f"{file}:{line}: a key has more than {MOST_KEY_PARTS} parts"])
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        number = place[1] if place else text.count("\n") + 1
        raise InvalidInput([f"{file}:{number}: is not TOML: {str(error).split(' (at ')[0]}"]) from None
    except ValueError:
        raise InvalidInput([f"{file}: is not TOML: a number has too many digits"]) from None
    except RecursionError:
        raise InvalidInput([f"{file}: is nested too deeply"]) from None


def get_value(text: str, path: KeyPath, file: str) -> Any:
    """The value at a path; None if there is none. Raises InvalidInput."""
    value: Any = parse(text, file)
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def line_of(text: str, path: KeyPath, file: str) -> int:
    """The line of an existing key, counted from 1. Raises InvalidInput if the file is a template that is none."""
    places = (
        _whole_lines_of_item(section, item)[0]
        for section in _sections_that_may_contain(_masked(text, file), path)
        for _, item in section.items_at(path)
    )
    return text.count("\n", 0, next(places, 0)) + 1


def has_place_for(text: str, path: KeyPath, file: str) -> bool:
    """Whether the text has the table that a key belongs to, with a header of its own or inline. Raises InvalidInput."""
    return bool(_tables_for(_sections_that_may_contain(_masked(text, file), path), path))


def set_value(text: str, path: KeyPath, value: bool | tuple[str, ...], file: str) -> str:
    """The text with a value at a path. Raises InvalidInput if that is impossible without changing its layout."""
    plain = list(value) if isinstance(value, tuple) else value

    def change(content: Content) -> None:
        table: Any = content
        for step in path[:-1]:
            table = table.setdefault(step, {}) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            raise InvalidInput([f"{file}: {_dotted_key(path[:-1])} must be a table"])
        table[path[-1]] = plain

    change(parse(text, file))
    problem = (
        f"{file}: gpuplane cannot add {path[-1]} to {_dotted_key(path[:-1]) or 'the keys before the first table'} "
        "without changing the layout of the file: add it by hand"
    )
    masked = _masked(text, file)
    sections = list(_sections_that_may_contain(masked, path))
    if there := [section for section in sections if section.items_at(path)]:
        start, end, new = _edit_that_replaces_value(there[0], path, value, problem)
        if text[start:end] != masked[start:end]:
            raise InvalidInput([problem])  # a part of it is masked template code
    elif tables := _tables_for(sections, path):
        start, end, new = _edit_that_adds_key(*tables[0], path[-1], plain, templates.is_template(file))
        new = _adopt_line_ends(new, text)
    elif len(path) == 1:
        start, end, new = _edit_that_adds_first_key(text, sections, path[0], plain)
        new = _adopt_line_ends(new, text)
    else:
        start, end, new = _edit_that_appends_table(text, path, plain)
        new = _adopt_line_ends(new, text)
    return _require_change(text, text[:start] + new + text[end:], change, file, problem)


def remove_value(text: str, path: KeyPath, file: str, original_text: str) -> str:
    """The text without a key, and without its table if that is empty now and `original` has no such table.

    Raises InvalidInput.
    """
    problem = (
        f"{file}: gpuplane cannot remove {path[-1]} from {_dotted_key(path[:-1]) or 'the keys before the first table'} "
        "without changing the layout of the file: remove it by hand"
    )
    sections = [section for section in _sections_that_may_contain(_masked(text, file), path) if section.items_at(path)]
    if not sections:
        raise InvalidInput([problem])
    section = sections[0]
    ((container, item),) = section.items_at(path)
    start, end = _whole_lines_of_item(section, item)
    header = [each for _, each in section.items_at(path[:-1]) if isinstance(each, Table) and each.value is container]
    left = get_value(text, path[:-1], file)
    without_header = bool(header) and len(left) == 1 and get_value(original_text, path[:-1], file) is None
    if without_header:
        start = _whole_lines_of_item(section, header[0])[0]
        blank = re.search(r"(?<=\n)\r?\n$", text[:start])
        start -= len(blank[0]) if blank else 0

    def change(content: Content) -> None:
        tables: list[Any] = [content]
        for step in path[:-1]:
            tables.append(tables[-1][step])
        del tables[-1][path[-1]]
        for depth in (
            reversed(range(len(path) - 1)) if without_header else ()
        ):  # its header creates the tables around it
            if not tables[depth + 1]:
                del tables[depth][path[depth]]

    return _require_change(text, text[:start] + text[end:], change, file, problem)


class TomlTextSection(NamedTuple):
    """A header and its keys, or the keys before the first header. `start`: its offset in the whole text."""

    start: int
    text: str
    document: Container

    def items_at(self, path: KeyPath) -> list[tuple[Container, Item]]:
        """The items at a path, each with its container."""
        return list(_items_at(self.document, path))


def _sections_that_may_contain(text: str, path: KeyPath) -> Iterator[TomlTextSection]:
    """The sections that can contain a path: the one before the first header, and those whose header is a prefix."""
    headers = [*_header_offsets(text)]
    for number, (start, end) in enumerate(pairwise([0, *headers, len(text)])):
        with suppress(TOMLKitError, ValueError, RecursionError):
            tables: Any = tomllib.loads(text[start:end].partition("\n")[0].rstrip("\r")) if number else {}
            header: list[str] = []
            while isinstance(tables, dict) and tables:
                ((step, tables),) = tables.items()
                header.append(step)
            if tuple(header) == path[: len(header)] and tables == {}:
                document = tomlkit.parse(text[start:end])
                if document.as_string() == text[start:end]:
                    yield TomlTextSection(start, text[start:end], document)


def _header_offsets(text: str) -> Iterator[int]:
    """Where the lines begin that are headers of tables: a bracket begins them, and no array or string is open."""
    line_start, is_line_start, depth = 0, True, 0
    for token in TOKEN.finditer(text):
        if token[0] == "\n":
            line_start, is_line_start = token.end(), True
            continue
        if token[0] == "[" and is_line_start and depth == 0:
            yield line_start
        depth = max(0, depth + (token[0] == "[") - (token[0] == "]"))
        is_line_start = is_line_start and not token[0].strip()


def _tables_for(sections: Iterable[TomlTextSection], path: KeyPath) -> list[tuple[TomlTextSection, Item]]:
    """The tables that a key can be added to, each with its section."""
    return [(section, item) for section in sections for _, item in section.items_at(path[:-1]) if _accepts_keys(item)]


def _items_at(container: Container, path: KeyPath) -> Iterator[tuple[Container, Item]]:
    """The items at a path, each with its container: several if a table is written in several pieces."""
    for key, item in container.body if path else ():
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
    section: TomlTextSection, path: KeyPath, value: bool | tuple[str, ...], problem: str
) -> tuple[int, int, str]:
    """(start, end, new text) that gives an existing key another value. Raises InvalidInput with the problem."""
    ((_, item),) = section.items_at(path)
    start, end = _whole_lines_of_item(section, item)
    old = item.as_string()
    if len(old) > LONGEST_ARRAY:
        raise InvalidInput([problem])
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


def _edit_that_adds_first_key(text: str, sections: list[TomlTextSection], key: str, value: Any) -> tuple[int, int, str]:
    """(start, end, new text) that adds a key before the first header, after the other keys there."""
    entry = f"{key} = {tomlkit.item(value).as_string()}"
    first = next((section for section in sections if section.start == 0), None)
    items = (
        [item for key, item in first.document.body if key is not None and not isinstance(item, Table)] if first else []
    )
    if first is None or not items:
        at = next(_header_offsets(text), len(text))
        return at, at, f"{entry}\n"
    end = _whole_lines_of_item(first, items[-1])[1]
    return end, end, f"{entry}\n" if "\n" in items[-1].trivia.trail else f"\n{entry}"


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


def _masked(text: str, file: str) -> str:
    """The text with everything masked that is not TOML; its length stays the same."""
    text = f" {text[1:]}" if text.startswith("\ufeff") else text
    return templates.masked(text, file) if templates.is_template(file) else text


def _adopt_line_ends(new_text: str, text: str) -> str:
    """New text with the line ends that the text has."""
    windows = re.search(r"\r?\n", text)
    return re.sub(r"\r?\n", "\r\n", new_text) if windows and windows[0] == "\r\n" else new_text


def _require_change(text: str, new_text: str, change: Callable[[Content], None], file: str, problem: str) -> str:
    """The new text, if it differs in this change alone in everything that the text can be rendered to.

    Raises InvalidInput with the problem, also if the text can be rendered to something that cannot be read: containerd
    before 2.0 reads some of what is no TOML, so nobody knows what it makes of that.
    """
    base = _base_of(text, file)
    with suppress(InvalidInput, KeyError, RecursionError):
        for old, new in zip(_readings(text, file, base), _readings(new_text, file, base), strict=True):
            wanted = _parse(old, file)
            change(wanted)
            if _parse(new, file) != wanted:
                raise InvalidInput([problem])
        return new_text
    raise InvalidInput([problem])


def _dotted_key(path: KeyPath) -> str:
    return ".".join(step if re.fullmatch(r"[\w-]+", step) else f'"{step}"' for step in path)
