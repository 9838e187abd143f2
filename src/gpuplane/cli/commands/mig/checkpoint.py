"""`gpuplane mig checkpoint`: all partitions with their places, for `restore`, of ours or of nvidia-mig-parted."""

import sys
from pathlib import Path

import click

from gpuplane.cli.commands.mig.options import checkpoint_file, machine
from gpuplane.cli.commands.mig.seen import observe_gpus
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.outputfiles import check_output, write_output
from gpuplane.node.core.partitions.checkpoint import format_checkpoint


@click.command()
@checkpoint_file
@machine
@state_dir
def command(checkpoint_file: Path, machine: str | None, state_dir: Path) -> None:
    """Save MIG mode and all instances of this node's GPUs, with their places, to a file."""
    is_stdout = str(checkpoint_file) == "-"
    if not is_stdout:
        check_output(checkpoint_file)
    gpus = observe_gpus(machine, state_dir)
    try:
        content = format_checkpoint(gpus)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if is_stdout:
        sys.stdout.buffer.write(content)
        return
    write_output(checkpoint_file, content)
    say(f"{checkpoint_file}: the partitions are saved")
