"""The commands of gpuplane as they are, and those that the pages show."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from gpuplane import cli
from gpuplane.cli.kit.options import Machine

HOOK = Path(__file__).parents[2] / "src/gpuplane/node/host/hook"

GLOBAL = {"-h", "--help", "-V", "--version"}
"""What every command takes, and `gpuplane` alone."""

CALL = re.compile(r"(?:^|\$ |-- |=|\$\()(?:[\w./]*/)?gpuplane( .*|$)")
PLACEHOLDER = re.compile(r"[A-Z]+(?:\|[A-Z]+)*|.*…|\$.*")


class Wrong(Exception):
    """Why a command line that a page shows cannot be right."""


class Shown(NamedTuple):
    """A command line on a page: where, its words after `gpuplane`, and whether it stands as one to copy."""

    line: int
    words: tuple[str, ...]
    whole: bool


def commands() -> dict[tuple[str, ...], click.Command]:
    """Each command by its words, groups of commands too."""
    return dict(_walk((), cli.root_command()))


def _walk(words: tuple[str, ...], command: click.Command) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None, name
            yield from _walk((*words, name), each)


def leaves() -> set[str]:
    """What can be run: `cdi list`, `agent`…"""
    return {" ".join(words) for words, each in commands().items() if not isinstance(each, click.Group)}


def options() -> set[str]:
    """Of all commands, and of the hook, which is in C."""
    hook = "".join(path.read_text() for path in HOOK.glob("*.c"))
    ours = {name for each in commands().values() for option in each.params for name in option.opts}
    return ours | GLOBAL | set(re.findall(r'"(--[a-z-]+)"', hook))


def shown(page: Path) -> Iterator[Shown]:
    """In blocks of code, by `gpuplane …` or a list of YAML; and between backticks."""
    text = page.read_text()
    fenced = False
    for number, line in _joined(text):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            yield from (Shown(number, words, True) for words in _in_block(line.strip()))
    prose = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.S)
    for code in re.finditer(r"`gpuplane((?: |\n)[^`]*)?`", prose):
        words = re.sub(r"\s+", " ", code[1] or "").replace("\\|", "|")
        yield Shown(prose.count("\n", 0, code.start()) + 1, _words(words), False)


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that ends with a backslash goes on in the next."""
    begun, pieces = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        pieces.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield begun, " ".join(pieces)
            begun, pieces = 0, []


def _in_block(line: str) -> Iterator[tuple[str, ...]]:
    if listed := re.search(r"\[gpuplane, ([^]]*)\]", line):
        yield tuple(each.strip() for each in listed[1].split(","))
    elif call := CALL.search(line):
        yield _words(call[1])


def _words(rest: str) -> tuple[str, ...]:
    """Up to a comment, a description in another column, or another program."""
    rest = re.split(r"\s{2,}[^-\s]|\s#|\s[|>&]|\)\"", rest, maxsplit=1)[0]
    words = shlex.split(rest.replace("'", "’"))
    return tuple(word for last, word in zip(("", *words), words, strict=False) if word != "…" or last.startswith("--"))


def check(each: Shown, known: dict[tuple[str, ...], click.Command]) -> None:
    """Raises Wrong."""
    if not each.words or set(each.words) <= GLOBAL or PLACEHOLDER.fullmatch(each.words[0]):
        return
    count = max(n for n in range(len(each.words) + 1) if each.words[:n] in known)
    command, rest = known[each.words[:count]], each.words[count:]
    if isinstance(command, click.Group) and any(not word.startswith("-") for word in rest):
        raise Wrong(f"there is no command {' '.join(each.words[: count + 1])}")
    _check_click(command, [word for word in rest if word not in GLOBAL], each.whole)


def _check_click(command: click.Command, words: list[str], whole: bool) -> None:
    try:
        values, left, _ = command.make_parser(click.Context(command)).parse_args(list(words))
    except click.UsageError as error:
        raise Wrong(error.format_message()) from None
    if left:
        raise Wrong(f"too many arguments: {' '.join(left)}")
    for option in command.params:
        value = values.get(option.name or "")
        if whole and option.required and not value:
            raise Wrong(f"{option.opts[-1]} is missing")
        if isinstance(value, str) and not PLACEHOLDER.fullmatch(value):
            _check_value(option, value)


def _check_value(option: click.Parameter, value: str) -> None:
    """Where there are few: one of a list, the name of a profile."""
    if isinstance(option.type, (click.Choice, Machine)):
        try:
            option.type.convert(value, option, None)
        except click.UsageError as error:
            raise Wrong(error.format_message()) from None
