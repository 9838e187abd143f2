"""`gpuplane sandbox status`: whether a cluster runs, and where."""

import os
from pathlib import Path

import click

from gpuplane.cli.commands.sandbox.shown import show
from gpuplane.cli.kit.options import FILE_PATH, json_option
from gpuplane.sandbox.record import default_directory, read_record, running_process


@click.command()
@click.option("--state-dir", type=FILE_PATH, metavar="DIR", help="The directory that `up` was given.")
@json_option()
def command(state_dir: Path | None, as_json: bool) -> None:
    """Show whether a cluster runs, its nodes and its kubeconfig. Exit status 1: none runs."""
    directory = (state_dir or default_directory(os.environ)).absolute()
    record = read_record(directory)
    if record is None:
        starts = "a cluster is starting in" if running_process(directory) else "no cluster runs in"
        raise click.ClickException(f"{starts} {directory}")
    show(record, as_json)
