"""`gpuplane inspect`: what a running agent knows, and what it makes the node advertise.

People get a page, programs lines or a JSON document; docs/inspect.md describes them. All are made of one inspection
(`gpuplane.node.model.inspection`).
"""

import sys
import time
from functools import partial
from pathlib import Path

import click
import msgspec

from gpuplane.cli.kit.agent import STATE_DIR, ask, node_state, show, state_dir
from gpuplane.cli.kit.options import OneOf
from gpuplane.node.core.reports.inspection.report import build_inspection, health_inspection
from gpuplane.node.model.control import GetNodeState
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.inspection import HealthInspection, Inspection


@click.command()
@click.argument("what", required=False, type=OneOf(["health"]))
@state_dir
@click.option("--watch", is_flag=True, help="Show the output again after each change, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document; docs/inspect.md describes its keys.")
@click.option(
    "--snapshot", is_flag=True, help="Everything that the agent knows, for a bug report; its keys may change."
)
def command(what: str | None, state_dir: Path, watch: bool, as_json: bool, snapshot: bool) -> None:
    """Show the node as its agent sees it: devices, the containers that hold them, and the status of every part.

    With the argument health: the health of each device, since when and why, what ends it and what to do.

    Without a terminal the output has one item on each line, and tabs between columns.
    """
    if snapshot and (what or watch or as_json):
        raise click.UsageError(
            "--snapshot cannot be combined with other options: it prints everything as one JSON document"
        )
    if snapshot:
        sys.stdout.buffer.write(format_json(show(state_dir)))
    elif watch:
        _watch(state_dir, bool(what), as_json)
    else:
        _once(state_dir, bool(what), as_json)


def _once(directory: Path, about_health: bool, as_json: bool) -> None:
    answer = ask(directory, GetNodeState())
    whole = build_inspection(node_state(answer), answer.agent, time.time())
    if as_json:
        sys.stdout.buffer.write(format_json(_document(whole, about_health)))
    elif sys.stdout.isatty():
        draw(whole, about_health, directory)
    else:
        write(whole, about_health)


def _watch(directory: Path, about_health: bool, as_json: bool) -> None:
    from gpuplane.cli.commands.inspect.watch import changes, follow, redraw

    if not as_json and sys.stdout.isatty():
        from gpuplane.cli.commands.inspect.page import health_page, node_page

        follow(directory, lambda looks: redraw(looks, health_page if about_health else node_page(directory)))
    told = partial(_document, about_health=about_health)
    one = partial(_write_document if as_json else _write_block, about_health=about_health)
    follow(directory, lambda looks: changes(looks, told, one))


def _document(whole: Inspection, about_health: bool) -> Inspection | HealthInspection:
    return health_inspection(whole) if about_health else whole


def _write_document(whole: Inspection, about_health: bool) -> None:
    """A document on one line."""
    sys.stdout.buffer.write(msgspec.json.encode(_document(whole, about_health)) + b"\n")
    sys.stdout.buffer.flush()


def _write_block(whole: Inspection, about_health: bool) -> None:
    """Lines, and an empty one behind them."""
    write(whole, about_health, end="\n\n")


def write(whole: Inspection, about_health: bool, end: str = "\n") -> None:
    """Print lines, all at once."""
    from gpuplane.cli.commands.inspect.lines import health_lines, lines

    found = "\n".join((health_lines if about_health else lines)(whole))
    click.echo(found + end, nl=False)


def draw(whole: Inspection, about_health: bool, directory: Path = STATE_DIR) -> None:
    """Print a page."""
    from rich.console import Console

    from gpuplane.cli.commands.inspect.page import Page, health_page, node_page

    Console(highlight=False).print(Page(health_page if about_health else node_page(directory), whole), crop=False)
