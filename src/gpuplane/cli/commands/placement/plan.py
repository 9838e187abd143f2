"""`gpuplane placement plan`: which pods to move where, and what each move brings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuplane.base.text import format_count
from gpuplane.cli.kit.cluster import config, kubeconfig, read, read_config, saved
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import Block, Table, is_terminal, print_result, rows_as_lines, wrapped
from gpuplane.cli.kit.progress import spinner

if TYPE_CHECKING:
    from gpuplane.cluster.answers.places import PlaceShown
    from gpuplane.cluster.answers.plan import PlanShown

HEADINGS = ("STEP", "POD", "FROM", "TO", "GAIN")
MAX_MOVES = 100_000


class Moves(click.ParamType[str]):
    """How many moves: a number, or a part of the pods that can be moved, as "5%"."""

    name = "moves"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself. Raises BadParameter."""
        found = re.fullmatch(r"(\d{1,6})(%?)", str(value), re.ASCII)
        if found is None or not 1 <= int(found[1]) <= (100 if found[2] else MAX_MOVES):
            self.fail(f"{value!r} is neither a number from 1 to {MAX_MOVES} nor a part from 1% to 100%", param, ctx)
        return str(value)


@click.command()
@click.option(
    "--moves",
    type=Moves(),
    metavar="N|N%",
    default="5%",
    show_default=True,
    help="How many pods are moved at most; in % of those on nodes with GPUs that can be moved.",
)
@config
@kubeconfig
@saved
@json_option()
def command(moves: str, config: Path | None, kubeconfig: Path | None, saved: Path | None, as_json: bool) -> None:
    """Show which pods to move where, so that what is free is of more use. Nothing is moved.

    A pod is moved by ending it; the plan says where it should start again. GAIN is how many of the free GPUs a move
    makes usable to pods that are expected; moves of one step bring that together. Pods stay that no controller would
    start again, that belong to a DaemonSet, that are not safe to evict, or whose place depends on other pods. Without a
    terminal each line is a move, with tabs between the columns.
    """
    configured = read_config(config)
    seen = read(kubeconfig, saved)
    from gpuplane.cluster.answers.plan import movable, show_plan

    most = int(moves) if moves.isdecimal() else -(-len(movable(seen)) * int(moves[:-1]) // 100)
    with spinner("planning moves"):
        shown = show_plan(seen, configured, most)
    rows = tuple(
        (str(each.step), each.pod, _place(each.before), _place(each.after), f"{each.gain:.2f}") for each in shown.moves
    )
    no_move = "" if rows or is_terminal() else _no_move(shown)
    print_result(shown, rows_as_lines(rows), _page(shown, rows), as_json=as_json, nothing_found=no_move)


def _page(shown: "PlanShown", rows: tuple[tuple[str, ...], ...]) -> Iterator[Block]:
    """For people."""
    if rows:
        yield Table(HEADINGS, rows, give_way=("FROM", "TO"))
        yield ""
    yield from map(wrapped, _sentences(shown))


def _place(place: "PlaceShown") -> str:
    return " ".join(filter(None, (place.node, ",".join(place.gpus))))


def _no_move(shown: "PlanShown") -> str:
    if not shown.least_moves:
        return "No move brings anything."
    return f"It takes {shown.least_moves} moves to bring anything: give --moves {shown.least_moves} or more."


def _sentences(shown: "PlanShown") -> Iterator[str]:
    yield (
        f"{format_count(shown.gpus, 'GPU')} of {format_count(shown.nodes, 'node')}; "
        f"{format_count(shown.pods, 'pod')} there, of which {shown.movable} can be moved."
    )
    count = len(shown.moves)
    if count:
        steps = len({each.step for each in shown.moves})
        yield (
            f"{format_count(count, 'move')} in {format_count(steps, 'step')}. "
            f"GPUs that are free and usable to pods that are expected: {shown.usable_before:.1f} before, "
            f"{shown.usable_after:.1f} after. "
            f"GPUs that nobody has a part of: {shown.free_before} before, {shown.free_after} after."
        )
    else:
        yield _no_move(shown)
    if assumed := sum(each.is_assumed for each in shown.moves):
        has, its = ("it has", "its move") if assumed == 1 else ("they have", "their moves")
        yield f"Of {format_count(assumed, 'pod')} nobody says which GPUs {has}: {its} may bring less."
    if shown.waiting:
        waits = f"{format_count(shown.waiting, 'pod')} wait{'s' if shown.waiting == 1 else ''}"
        after = f" before, {len(shown.fit_after)} after" if count else ""
        yield f"{waits}; {len(shown.fit_before)} would get a place{after}."
