"""`gpuplane inspect --watch`: shown anew each second; away from a terminal whenever something has changed.

It outlives the agent: while none answers, that is said, and the last picture stays. Only where none answered in the
first place it ends, and where the agent may not be asked or is not understood. Ctrl-C and SIGTERM end it, with 128 and
the signal's number.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import click

from gpuplane.base.value import Value
from gpuplane.cli.commands.inspect.page import Page, Write
from gpuplane.cli.kit.agent import NoAgent, ask, node_state
from gpuplane.cli.kit.durations import describe_duration
from gpuplane.cli.kit.presenter import console
from gpuplane.cli.kit.signals import raise_on_signals, uninterrupted
from gpuplane.node.core.reports.inspection.report import build_inspection, inspection_without_times
from gpuplane.node.model.control import ControlResponse, GetNodeState
from gpuplane.node.model.inspection import Inspection

POLL_SECONDS = 1.0
"""Seconds between two questions."""


class Look(Value):
    """The last answer, when it came (seconds since 1970), and why there is no newer one; "" where there is."""

    answer: ControlResponse
    at: float
    away: str = ""

    def inspection(self) -> Inspection:
        """What the answer shows."""
        return build_inspection(node_state(self.answer), self.answer.agent, self.at)

    def timeless(self) -> Inspection:
        """The same, equal as long as nothing but time has changed."""
        return inspection_without_times(node_state(self.answer), self.answer.agent)


def follow(directory: Path, draw: Callable[[Iterator[Look]], None]) -> NoReturn:
    """Have an agent's looks drawn until a signal ends it. Raises ClickException where there is no agent at first."""
    raise_on_signals()
    draw(_looks(directory))
    raise AssertionError("looks have no end")


def _looks(directory: Path) -> Iterator[Look]:
    look = Look(ask(directory, GetNodeState()), time.time())
    while True:
        yield look
        time.sleep(POLL_SECONDS)
        try:
            look = Look(ask(directory, GetNodeState()), time.time())
        except NoAgent as error:
            look = look.but(away=error.message)


def changes(
    looks: Iterator[Look], compared_part: Callable[[Inspection], object], write: Callable[[Inspection], None]
) -> None:
    """Write each look in which `compared_part` is new; say on standard error when the agent goes and comes."""
    seen, away = None, False
    for look in looks:
        if bool(look.away) != away:
            away = not away
            click.echo(f"{look.away}. Trying again." if away else "The agent answers again.", err=True)
        if not away and (now := compared_part(look.timeless())) != seen:
            seen = now
            with uninterrupted():
                write(look.inspection())
                sys.stdout.flush()


def redraw(looks: Iterator[Look], write: Write) -> None:
    """Draw each look over the one before. What has no room on the terminal is left out until the end."""
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        for look in looks:
            note = (
                f"{look.away}. This page shows the agent's last answer, {describe_duration(time.time() - look.at)} old."
                if look.away
                else ""
            )
            with uninterrupted():  # else the cursor may be anywhere when a signal ends it
                live.update(Page(write, look.inspection(), note, redrawn=True), refresh=True)
