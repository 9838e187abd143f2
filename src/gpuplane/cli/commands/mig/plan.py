"""`gpuplane mig plan`: what `apply` would do, to whom, and what cannot be done."""

from pathlib import Path

import click

from gpuplane.cli.commands.mig.options import chosen_config, config_file, machine, mode_only, selected_config
from gpuplane.cli.commands.mig.requested import kubelet_root, show_plan, where
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.options import json_option
from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.model.partitions import LayoutRequest


@click.command()
@config_file
@selected_config
@mode_only
@json_option()
@machine
@kubelet_root
@state_dir
def command(
    config_file: Path | None,
    selected_config: str,
    mode_only: bool,
    as_json: bool,
    machine: str | None,
    kubelet_root: Path,
    state_dir: Path,
) -> None:
    """Show what `apply` would do with each GPU: the changes in their order, the pods that it would wait for.

    Exit status: 0 it can be done; 1 a GPU cannot have its layout, and why.
    """
    name, entries_of = chosen_config(config_file, selected_config)
    request = LayoutRequest(name=name, layouts={}, mode_only=mode_only)
    there = where(machine, state_dir, kubelet_root, as_json=as_json)
    show_plan(there, lambda gpus: layouts_of_entries(entries_of(gpus), gpus), request)
