"""Text for people: reasons, advice, messages, warnings.

Programs read codes and values, people read texts. A text may be formatted into another text, joined, counted and shown.
It may not be compared, searched, split or matched, so that a reworded sentence changes nothing that the program does.
mypy holds most of that, for a `Text` is no `str` to it; `tests/conformance/test_texts_are_never_compared.py` the rest.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")

if TYPE_CHECKING:

    class Text(Protocol):
        """A sentence for people. Every `str` is one; it is no `str`."""

        def __len__(self) -> int: ...
        def __format__(self, format_spec: str, /) -> str: ...
        def isprintable(self) -> bool: ...
        def expandtabs(self, tabsize: int = 8) -> str: ...  # with this, nothing but a str is a Text

else:
    Text = str


def join(separator: str, texts: Iterable[Text]) -> Text:
    """All these texts in one."""
    return separator.join(f"{text}" for text in texts)


def distinct(texts: Iterable[Text]) -> tuple[Text, ...]:
    """These texts in their order, each line once.

    The only place where texts are compared: to show the same line twice would say nothing more. No decision follows
    from it, for a reworded line is shown all the same.
    """
    return tuple(dict.fromkeys(texts))


def group_by_key(pairs: Iterable[tuple[K, V]]) -> Iterator[tuple[K, list[V]]]:
    """The values of one key together, for output; the key may hold texts.

    As `distinct` does, what reads the same is shown once, with all that it is about.
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    yield from groups.items()


MAX_CHARACTERS = 300  # characters
MAX_PATTERN = 256  # characters of a pattern; a model's name has at most 96 (nvmlDeviceGetName)


def clip(text: Text, max_characters: int = MAX_CHARACTERS) -> str:
    """One line of at most so many printable characters. "…" shows where it was cut, "�" what is unprintable."""
    on_one_line = "".join(each if each.isprintable() else "�" for each in " ".join(f"{text}".split()))
    return on_one_line if len(on_one_line) <= max_characters else on_one_line[: max_characters - 1] + "…"


def escape_unprintable(text: Text) -> str:
    """The text with unprintable characters as escape sequences, so that a path still identifies its file."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in f"{text}")


def on_one_line(text: Text) -> str:
    """The text on one line: its lines are joined by spaces, and unprintable characters are escaped."""
    return f"{text}" if text.isprintable() else escape_unprintable(" ".join(f"{text}".split()))


def tab_separated(*cells: Text) -> str:
    """Cells on a line for programs, apart by tabs. What is unprintable in them is escaped."""
    return "\t".join(map(on_one_line, cells))


def format_memory(mib: int, unit: str = "GiB") -> str:
    """An amount of memory: in GiB if `unit` is GiB and it is a whole number of GiB, else in MiB."""
    return f"{mib // 1024} GiB" if unit == "GiB" and mib % 1024 == 0 else f"{mib} MiB"


def format_count(number: int, noun: str) -> str:
    """ "1 device", "8 devices"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def join_first_names(names: Sequence[str], max_names: int) -> str:
    """The first names, and how many more there are: "a, b and 5 more"."""
    more = len(names) - max_names
    return ", ".join(names[:max_names]) + (f" and {more} more" if more > 0 else "")


def format_index_ranges(indices: Sequence[str]) -> str:
    """Indices of devices, with three or more successive ones as a range: "0 to 3, 5, 6, 7:0 to 7:2"."""
    runs: list[list[str]] = []
    for each in indices:
        if runs and _is_next_index(runs[-1][-1], each):
            runs[-1].append(each)
        else:
            runs.append([each])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _is_next_index(index: str, next_index: str) -> bool:
    (whole, _, last), (others, _, next) = index.rpartition(":"), next_index.rpartition(":")
    return whole == others and last.isdecimal() and next.isdecimal() and int(next) == int(last) + 1


def matches_pattern(pattern: str, text: str) -> bool:
    """Whether the whole text matches: `*` stands for any run of characters, all else for itself.

    Patterns are somebody else's text: the time is that of a search for each part, whatever the pattern is.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for part in middle:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
