"""`gpuplane mig generate-config`: the configurations that this machine's GPUs can have, made from what they are."""

from pathlib import Path

import click

from gpuplane.base.text import format_count
from gpuplane.cli.commands.mig.options import machine, output_format
from gpuplane.cli.commands.mig.seen import observe_gpus
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import FILE_PATH
from gpuplane.cli.kit.outputfiles import check_output, write_output
from gpuplane.node.core.partitions.generated import generated_configs
from gpuplane.node.core.partitions.migparted import Format, format_configs


@click.command()
@click.option(
    "-f",
    "--output-file",
    type=FILE_PATH,
    envvar="MIG_PARTED_OUTPUT_FILE",
    metavar="FILE",
    help="The file. Default: standard output.",
)
@output_format("-o", "--output-format")
@machine
@state_dir
def command(output_file: Path | None, form: Format, machine: str | None, state_dir: Path) -> None:
    """Write the configurations all-disabled, all-enabled, all-balanced, and one for each profile at its most."""
    if output_file is not None:
        check_output(output_file)
    configs = generated_configs(observe_gpus(machine, state_dir))
    if not configs:
        raise click.ClickException("no GPU of this machine can be partitioned, or it is not known into what")
    text = format_configs(configs, form)
    if output_file is None:
        click.echo(text, nl=False)
        return
    write_output(output_file, text.encode())
    say(f"{output_file}: {format_count(len(configs), 'configuration')}")
