"""`gpuplane config`: is a configuration good, and what would a node advertise with it?"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.strict import InvalidInput
from gpuplane.base.text import format_count, tab_separated
from gpuplane.base.value import Value
from gpuplane.cli.kit.messages import escape_markup, os_error_text, say
from gpuplane.cli.kit.options import FILE_PATH, Machine, json_option
from gpuplane.cli.kit.presenter import Block, Table, print_json, print_result
from gpuplane.node.core.config.flags import FLAGS, Flag
from gpuplane.node.core.config.flagtable import flags_table
from gpuplane.node.core.config.flagvalues import flag_texts_by_name
from gpuplane.node.core.config.nvidia import differences_from_nvidia
from gpuplane.node.core.config.resolve import ResolvedConfig, resolve_with_sources
from gpuplane.node.core.explanation import Explanation, UnitExplanation, explain_node
from gpuplane.node.hardware.described import machinefile
from gpuplane.node.hardware.described.profiles import find_machine_file


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The agent's flags that are settings, on a command: they come before environment and file as they do there."""
    for flag in reversed([flag for flag in FLAGS if flag.settings_field and flag.names]):
        names = [f"--{name}" for name in flag.names]
        command = click.option(
            *names, _parameter(flag.option_or_variable_or_key), metavar="VALUE", help=flag.help, **_option_kind(flag)
        )(command)
    return command


def _option_kind(flag: Flag) -> dict[str, Any]:
    """How it is given: a switch needs no value, a list may be given in parts."""
    if flag.value_kind == "switch":
        return {"is_flag": False, "flag_value": "true"}
    return {"multiple": True} if flag.value_kind in ("choices", "numbers") else {}


def _parameter(name: str) -> str:
    return name.replace("-", "_")


def _flag_texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    """What is said of the flags; an empty tuple is a list of which nothing is said."""
    found = {
        flag.option_or_variable_or_key: parameters.get(_parameter(flag.option_or_variable_or_key))
        for flag in FLAGS
        if flag.names
    }
    return flag_texts_by_name({name: None if value == () else value for name, value in found.items()})


@click.group()
def command() -> None:
    """Check and explain configurations: files in the v1 format of NVIDIA's device plugin.

    Exit status: 0 the configuration is good; 1 it is wrong or cannot be read; 2 the command line is wrong.
    """


@command.command()
@click.argument("files", nargs=-1, required=True, type=FILE_PATH)
@json_option("One JSON document: file → its errors, warnings and notes.")
@flags
def check(files: tuple[Path, ...], as_json: bool, **parameters: Any) -> None:
    """Show what is wrong with each FILE, with line numbers. A directory stands for the files in it.

    Everything that is misspelt, missing or of a wrong type is reported at once. Contradictions are reported as far as
    they can be checked: if an item of a list has a wrong type, the rest of the list is checked once that is corrected.
    """
    flag_texts = _flag_texts(parameters)
    found = {str(file): _check_file(file, flag_texts) for path in files for file in _files_in(path)}
    if as_json:
        print_json(found)
    else:
        for name, each in found.items():
            _print_checked(name, each)
    sys.exit(any(each.errors for each in found.values()))


class CheckedFile(Value):
    """What is to be said of a file: what is wrong, what is taken otherwise than written, what to know besides.

    `notes`: what has no effect, or another one than with NVIDIA's device plugin.
    """

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def _check_file(file: Path, flag_texts: Mapping[str, str]) -> CheckedFile:
    try:
        data = _read(file)
        resolved = resolve_with_sources(data, str(file), flag_texts, os.environ)
    except InvalidInput as invalid:
        return CheckedFile(tuple(invalid.errors), (), ())
    except _Unreadable as error:
        return CheckedFile((error.message,), (), ())
    ignored = (f"{where}: {why}" for where, why in resolved.ignored_settings.items())
    return CheckedFile((), resolved.warnings, (*ignored, *differences_from_nvidia(data, str(file))))


def _print_checked(name: str, checked: CheckedFile) -> None:
    for each in (*checked.errors, *checked.warnings, *checked.notes):
        say(each, err=True)
    if not checked.errors:
        say(f"{name}: good" + (f", {format_count(len(checked.warnings), 'warning')}" if checked.warnings else ""))


@command.command(name="explain")
@click.argument("file", type=FILE_PATH)
@click.option("--machine", required=True, type=Machine(), help="A machine file, or the name of a profile.")
@json_option("The whole explanation as one JSON document.")
@flags
def explain_command(file: Path, machine: str, as_json: bool, **parameters: Any) -> None:
    """Show what a node would advertise with FILE, and why: its GPUs, their names and ids, and the lines that decide."""
    try:
        described = find_machine_file(machine)
        resolved = _resolve(file, _flag_texts(parameters))
        read = machinefile.read_machine(_read(described), str(described))
        explanation = explain_node(read, resolved, read.lists_by_kind)
    except InvalidInput as invalid:
        raise click.ClickException(str(invalid)) from None
    print_result(ExplainedConfig(explanation, resolved), _lines(explanation), _page(explanation), as_json=as_json)


@command.command(name="reference")
def reference_command() -> None:
    """Print the agent's settings as a table in Markdown: flag, environment variable, key of the file, default."""
    click.echo(flags_table(), nl=False)


class _Unreadable(click.ClickException):
    """A file that is not there, or not for us."""


class ExplainedConfig(Value):
    """What `--json` shows."""

    explanation: Explanation
    resolved: ResolvedConfig


def _files_in(path: Path) -> list[Path]:
    """The file, or the configurations of a directory; one without any stands for itself, since that is worth a word."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith(".")) or [path]


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise _Unreadable(f"{path}: the directory has no configuration")
    try:
        return sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else files.read(path, MAX_BYTES)
    except OSError as error:
        raise _Unreadable(os_error_text(error)) from None


def _resolve(path: Path, flag_texts: Mapping[str, str]) -> ResolvedConfig:
    return resolve_with_sources(_read(path), str(path), flag_texts, os.environ)


def _rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    """Index, device, resource, ids, why and trouble of each unit."""
    for unit in explanation.units:
        what = f"{unit.model} {unit.profile}".strip()
        yield (
            unit.index,
            what,
            unit.resource or "-",
            _ids(unit),
            f"{unit.assignment_reason}",
            f"{unit.unavailable_reason}",
        )


def _ids(unit: UnitExplanation) -> str:
    if len(unit.ids) < 2:
        return unit.ids[0] if unit.ids else unit.uuid
    return f"{unit.ids[0]}…{len(unit.ids) - 1}"


def _lines(explanation: Explanation) -> Iterator[str]:
    """For programs that read lines: one line a thing, columns apart by tabs."""
    if explanation.waiting_reason:
        yield tab_separated("waiting", explanation.waiting_reason)
    yield tab_separated("strategy", ",".join(explanation.strategy.strategies), explanation.strategy.reason)
    for name, count in explanation.resources.items():
        cells = f"{count.devices}", f"{count.healthy} healthy", f"preferred: {count.preference}"
        yield tab_separated("resource", name, *cells)
    for row in _rows(explanation):
        yield tab_separated("unit", *row).rstrip("\t")
    for each in explanation.faults:
        yield tab_separated("fault", ", ".join(each.codes), each.change, ", ".join(each.sources))
    for note in explanation.notes:
        yield tab_separated("note", note)


HEADINGS = ("GPU", "RESOURCE", "IDS", "DEVICE", "WHY")


def _page(explanation: Explanation) -> Iterator[Block]:
    """For people."""
    if explanation.waiting_reason:
        yield f"[yellow]Nothing would be advertised:[/yellow] {escape_markup(explanation.waiting_reason)}"
    yield f"deviceListStrategy: {escape_markup(str(explanation.strategy))}"
    for name, count in explanation.resources.items():
        sick = count.devices - count.healthy
        unhealthy = f" [red]({sick} unhealthy)[/red]" if sick else ""
        yield f"[bold]{name}: {count.devices}[/bold]{unhealthy}, preferred: {escape_markup(count.preference)}"
    rows = tuple(
        (index, resource, ids, what, why + f"; unhealthy: {trouble}" * bool(trouble))
        for index, what, resource, ids, why, trouble in _rows(explanation)
    )
    if rows:
        yield Table(HEADINGS, rows, give_way=("DEVICE", "IDS", "WHY"), loose="WHY")
    for each in explanation.faults:
        where = escape_markup(", ".join(each.sources))
        yield f"[bold]{', '.join(each.codes)}[/bold]: {escape_markup(each.change)} ({where})"
    for note in explanation.notes:
        yield f"[yellow]note[/yellow] {escape_markup(note)}"
