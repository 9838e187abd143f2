"""`gpuplane mig export`: the layouts that the node has, as a configuration that `apply` takes."""

from pathlib import Path

import click

from gpuplane.cli.commands.mig.options import machine, output_format
from gpuplane.cli.commands.mig.seen import observe_gpus
from gpuplane.cli.kit.agent import state_dir
from gpuplane.node.core.partitions.migparted import Format, export_configs, format_configs


@click.command()
@output_format("-o", "--output-format")
@click.option(
    "-l",
    "--config-label",
    default="current",
    show_default=True,
    envvar="MIG_PARTED_CONFIG_LABEL",
    help="The name of the configuration.",
)
@machine
@state_dir
def command(form: Format, config_label: str, machine: str | None, state_dir: Path) -> None:
    """Print the layouts that this node's GPUs have now, as a configuration. Equal GPUs are in one entry."""
    click.echo(format_configs(export_configs(observe_gpus(machine, state_dir), config_label), form), nl=False)
