"""Text for people: reasons, advice, messages, warnings.

Programs read codes and values, people read texts. A text may be formatted into another text, joined, counted and shown.
It may not be compared, searched, split or matched, so that a reworded sentence changes nothing that the program does.
mypy holds most of that, for a `Text` is no `str` to it; `tests/conformance/test_texts_are_never_compared.py` the rest.
"""

from collections.abc import Iterable, Iterator
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
