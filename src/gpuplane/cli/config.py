"""`gpuplane config`: is a configuration good, and what would a node advertise with it?"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from gpuplane import files
from gpuplane.cli.options import Machine
from gpuplane.core.config.explain import Explained, Explanation, explain
from gpuplane.core.config.flags import FLAGS
from gpuplane.core.config.given import texts
from gpuplane.core.config.reference import reference
from gpuplane.core.config.resolve import Resolved, trace
from gpuplane.core.document import LONGEST
from gpuplane.core.strict import Invalid
from gpuplane.core.text import indented
from gpuplane.hardware import machinefile
from gpuplane.hardware.profiles import Unknown, find
from gpuplane.model.value import Value


def flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """The agent's flags that are settings, on a command: they come before environment and file as they do there."""
    for flag in reversed([flag for flag in FLAGS if flag.setting and flag.names]):
        kind: dict[str, Any] = {"is_flag": False, "flag_value": "true"} if flag.kind == "switch" else {}
        names = [f"--{name}" for name in flag.names]
        command = click.option(*names, _parameter(flag.name), metavar="VALUE", help=flag.help, **kind)(command)
    return command


def _parameter(name: str) -> str:
    return name.replace("-", "_")


def _said(parameters: Mapping[str, Any]) -> dict[str, str]:
    return texts({flag.name: parameters.get(_parameter(flag.name)) for flag in FLAGS if flag.names})


@click.group()
def command() -> None:
    """Check and explain configurations: NVIDIA's v1 file, as their device plugin takes it.

    Exit status: 0 good, 1 wrong, 2 cannot be read.
    """


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object: file → its errors.")
@flags
def check(files: tuple[Path, ...], as_json: bool, **parameters: Any) -> None:
    """Say what is wrong with each FILE, with its lines. A directory stands for the files in it.

    All that is misspelt, missing or of a wrong type is told at once, and what contradicts itself as far as that leaves
    it to be judged: where a part of a list is of a wrong type, the rest of the list is judged when that is mended.
    """
    found: dict[str, list[str]] = {}
    status = 0
    for file in [each for path in files for each in _inside(path)]:
        try:
            resolved = _resolve(file, _said(parameters))
        except (Invalid, _Unreadable) as error:
            found[str(file)] = error.errors if isinstance(error, Invalid) else [error.message]
            status = max(status, 1 if isinstance(error, Invalid) else _Unreadable.exit_code)
        else:
            found[str(file)] = []
            for where, why in () if as_json else resolved.idle.items():
                click.echo(f"{where}: {why}")
    if as_json:
        _print(found)
    else:
        for name, errors in found.items():
            click.echo("\n".join(errors) or f"{name}: good", err=bool(errors))
    sys.exit(status)


@command.command(name="explain")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--machine", required=True, type=Machine(), help="A machine file, or the name of a profile.")
@click.option("--json", "as_json", is_flag=True, help="The whole explanation as one JSON document.")
@flags
def explain_command(file: Path, machine: str, as_json: bool, **parameters: Any) -> None:
    """Show what a node would advertise with FILE, and why: its GPUs, their names and ids, the lines that decided."""
    try:
        described = find(machine)
        resolved = _resolve(file, _said(parameters))
        explanation = explain(machinefile.read(_read(described), str(described)), resolved)
    except Unknown as error:
        raise _Unreadable(str(error)) from None
    except Invalid as invalid:
        raise _Bad(str(invalid)) from None
    if as_json:
        _print(_Full(explanation, resolved))
    elif sys.stdout.isatty():
        _draw(explanation)
    else:
        _list(explanation)


@command.command(name="reference")
def reference_command() -> None:
    """The agent's settings as a table: flag, environment variable, key of the file, default. In Markdown."""
    click.echo(reference(), nl=False)


class _Bad(click.ClickException):
    exit_code = 1


class _Unreadable(click.ClickException):
    exit_code = 2


class _Full(Value):
    """What `--json` shows."""

    explanation: Explanation
    resolved: Resolved


def _print(value: object) -> None:
    sys.stdout.buffer.write(indented(value))


def _inside(path: Path) -> list[Path]:
    """The file, or the configurations of a directory; one without any stands for itself, since that is worth a word."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith(".")) or [path]


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise _Unreadable(f"{path}: a directory without a configuration in it")
    try:
        return sys.stdin.buffer.read(LONGEST + 1) if str(path) == "-" else files.read(path, LONGEST)
    except OSError as error:
        raise _Unreadable(f"{path}: {error.strerror}") from None


def _resolve(path: Path, said: Mapping[str, str]) -> Resolved:
    return trace(_read(path), str(path), said, os.environ)


def _rows(explanation: Explanation) -> Iterator[tuple[str, ...]]:
    """Index, device, resource, ids, why and trouble of each unit."""
    for unit in explanation.units:
        what = f"{unit.model} {unit.profile}".strip()
        yield unit.index, what, unit.resource or "-", _ids(unit), unit.why, unit.trouble


def _ids(unit: Explained) -> str:
    if len(unit.ids) < 2:
        return unit.ids[0] if unit.ids else unit.uuid
    return f"{unit.ids[0]}…{len(unit.ids) - 1}"


def _list(explanation: Explanation) -> None:
    """For programs that read lines: no colours, no boxes, one line a thing, columns apart by tabs."""
    if explanation.waiting:
        click.echo(f"waiting\t{explanation.waiting}")
    click.echo(f"strategy\t{','.join(explanation.strategy.strategies)}\t{explanation.strategy.why}")
    for name, count in explanation.resources.items():
        click.echo(f"resource\t{name}\t{count.devices}\t{count.healthy} healthy\tadvised: {count.advised}")
    for row in _rows(explanation):
        click.echo("\t".join(("unit", *row)).rstrip("\t"))
    for each in explanation.faults:
        click.echo("\t".join(("fault", ", ".join(each.codes), each.how, ", ".join(each.said))))
    for note in explanation.notes:
        click.echo(f"note\t{note}")


def _draw(explanation: Explanation) -> None:
    """For people."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    if explanation.waiting:
        console.print(f"[yellow]Nothing would be advertised:[/yellow] {escape(explanation.waiting)}")
    console.print(f"Containers would be given devices by {escape(str(explanation.strategy))}")
    for name, count in explanation.resources.items():
        sick = count.devices - count.healthy
        unhealthy = f" [red]({sick} unhealthy)[/red]" if sick else ""
        console.print(f"[bold]{name}: {count.devices}[/bold]{unhealthy}, advised: {escape(count.advised)}")
    table = Table("GPU", "device", "resource", "ids", "why", box=None, header_style="bold", pad_edge=False)
    for index, what, resource, ids, why, trouble in _rows(explanation):
        colour = "yellow" if resource == "-" else "red" if trouble else "green"
        reason = f"{escape(why)}[red]; unhealthy: {escape(trouble)}[/red]" if trouble else escape(why)
        table.add_row(index, escape(what), f"[{colour}]{resource}[/{colour}]", escape(ids), reason)
    if explanation.units:
        console.print(table)
    for each in explanation.faults:
        where = escape(", ".join(each.said))
        console.print(f"[bold]{', '.join(each.codes)}[/bold]: {escape(each.how)} ({where})")
    for note in explanation.notes:
        console.print(f"[yellow]note[/yellow] {escape(note)}")
