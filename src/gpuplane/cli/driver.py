"""`gpuplane driver`: have the agent let go of the GPU driver, and take it up again."""

from pathlib import Path

import click

from gpuplane.cli.connection import Duration, ask, state_dir
from gpuplane.model.control import LetGo, Show, TakeUp


@click.group()
def command() -> None:
    """Let go of the driver for a GPU reset, a MIG mode change or a driver upgrade.

    While it is let go of, the agent has no /dev/nvidia* open, and every device is withheld from new pods with your
    reason. Pods that run are not touched. The wish survives a restart of the agent; it ends by itself.
    """


@command.command()
@click.option("--for", "seconds", type=Duration(), required=True, help="How long, at most: 90s, 10m, 2h.")
@click.option("--why", required=True, help="The reason that everybody is shown.")
@state_dir
def release(seconds: float, why: str, state_dir: Path) -> None:
    """Let go of the driver for a time."""
    ask(state_dir, LetGo(seconds=seconds, why=why))
    driver = _driver(state_dir)
    click.echo(f"The driver is let go of for {seconds:g} s: {why}" + (f" ({driver})" if driver else ""))


@command.command()
@state_dir
def take(state_dir: Path) -> None:
    """Take the driver up again before the time."""
    ask(state_dir, TakeUp())
    click.echo("The driver is taken up again.")


def _driver(directory: Path) -> str:
    picture = ask(directory, Show()).picture
    condition = picture.snapshot.conditions.get("driver") if picture else None
    return condition.reason if condition else ""
