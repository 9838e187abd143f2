"""`gpuplane mig checkpoint`: all partitions with their places, for `restore`, of ours or of nvidia-mig-parted."""

import sys
from pathlib import Path

import click

from gpuplane import files
from gpuplane.cli import ending
from gpuplane.cli.connection import state_dir
from gpuplane.cli.mig.options import checkpoint_file, machine
from gpuplane.cli.mig.seen import seen_gpus
from gpuplane.cli.say import say, told
from gpuplane.core.partitions.checkpoint import format_checkpoint


@click.command()
@checkpoint_file
@machine
@state_dir
def command(checkpoint_file: Path, machine: str | None, state_dir: Path) -> None:
    """Save MIG mode and all instances of this node's GPUs, with their places, to a file."""
    gpus = seen_gpus(machine, state_dir)
    try:
        content = format_checkpoint(gpus)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if str(checkpoint_file) == "-":
        sys.stdout.buffer.write(content)
        return
    try:
        with ending.whole():
            files.replace(checkpoint_file, content, mode=0o644)
    except OSError as error:
        raise click.ClickException(told(error)) from None
    say(f"{checkpoint_file}: the partitions are saved")
