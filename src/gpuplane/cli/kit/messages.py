"""Sentences for people: at a terminal fitted to its width, elsewhere as they are.

Words are never broken: an id or a path that is wider than the terminal stays whole, so that it can be copied. The agent
uses it too, so it imports little.
"""

import os
import sys
import textwrap
from typing import TextIO

from gpuplane.base.text import Text, escape_unprintable


def say(text: Text, *, err: bool = False) -> None:
    """Print lines of text, each fitted to the terminal. `err`: to standard error. Raises OSError.

    What cannot be printed, and could steer a terminal, is written as a program would write it.
    """
    stream = sys.stderr if err else sys.stdout
    stream.write(f"{wrap_for(stream, text)}\n")
    stream.flush()


def wrap_for(stream: TextIO, text: Text) -> str:
    """Lines of text as `say` writes them to a stream."""
    width = terminal_width(stream.fileno()) if stream.isatty() else None
    return "\n".join(wrap_line(escape_unprintable(line), width) for line in f"{text}".split("\n"))


def escape_markup(text: Text) -> str:
    """A text of somebody else as part of what rich prints: neither rich nor a terminal obeys anything in it."""
    from rich.markup import escape

    return escape(escape_unprintable(text))


def print_error(problem: Text) -> None:
    """Print an error."""
    say(f"Error: {problem}", err=True)


def os_error_text(error: OSError) -> str:
    """What the system refused, and of which file."""
    return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror or str(error)


def wrap_line(line: str, width: int | None) -> str:
    """The line, broken between words where it is wider than `width`; what follows of an indented one is so the more."""
    if width is None or len(line) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    deeper = " " * (indent + 2 * (indent > 0))
    lines = textwrap.wrap(line, width, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def terminal_width(descriptor: int) -> int:
    """The width of a terminal; 80 where it does not tell."""
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return 80
