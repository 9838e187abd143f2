"""`gpuplane inspect`: what a running agent knows, and what it makes the node advertise.

People get a page, programs lines or a JSON document; docs/inspect.md describes them. All are made of one inspection
(`gpuplane.node.model.inspection`).
"""

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import msgspec

from gpuplane.cli.kit.agent import ask, fetch_node_state, node_state, state_dir
from gpuplane.cli.kit.options import OneOf, json_option
from gpuplane.cli.kit.presenter import Block, print_json, print_lines, print_result
from gpuplane.node.core.reports.inspection.report import build_inspection, health_inspection
from gpuplane.node.model.control import GetNodeState
from gpuplane.node.model.inspection import HealthInspection, Inspection


@click.command()
@click.argument("what", required=False, type=OneOf(["health"]))
@state_dir
@click.option("--watch", is_flag=True, help="Show the output again after each change, until Ctrl-C.")
@json_option("One JSON document; docs/inspect.md describes its keys.")
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
        print_json(fetch_node_state(state_dir))
    elif watch:
        _watch(state_dir, bool(what), as_json)
    else:
        _once(state_dir, bool(what), as_json)


def _once(directory: Path, about_health: bool, as_json: bool) -> None:
    answer = ask(directory, GetNodeState())
    whole = build_inspection(node_state(answer), answer.agent, time.time())
    print_result(
        _document(whole, about_health),
        _lines(whole, about_health),
        _page(whole, about_health, directory),
        as_json=as_json,
    )


def _watch(directory: Path, about_health: bool, as_json: bool) -> None:
    from gpuplane.cli.commands.inspect.watch import changes, follow, redraw

    if not as_json and sys.stdout.isatty():
        from gpuplane.cli.commands.inspect.page import health_page, node_page

        follow(directory, lambda looks: redraw(looks, health_page if about_health else node_page(directory)))
    compared_part = partial(_document, about_health=about_health)
    one = partial(_write_document if as_json else _write_block, about_health=about_health)
    follow(directory, lambda looks: changes(looks, compared_part, one))


def _document(whole: Inspection, about_health: bool) -> Inspection | HealthInspection:
    return health_inspection(whole) if about_health else whole


def _write_document(whole: Inspection, about_health: bool) -> None:
    """A document on one line."""
    sys.stdout.buffer.write(msgspec.json.encode(_document(whole, about_health)) + b"\n")
    sys.stdout.buffer.flush()


def _write_block(whole: Inspection, about_health: bool) -> None:
    """Lines, and an empty one behind them."""
    print_lines([*_lines(whole, about_health), ""])


def _lines(whole: Inspection, about_health: bool) -> Iterator[str]:
    """For programs that read lines."""
    from gpuplane.cli.commands.inspect.lines import health_lines, node_lines

    yield from (health_lines if about_health else node_lines)(whole)


def _page(whole: Inspection, about_health: bool, directory: Path) -> Iterator[Block]:
    """For people."""
    from gpuplane.cli.commands.inspect.page import Page, health_page, node_page

    yield Page(health_page if about_health else node_page(directory), whole)
