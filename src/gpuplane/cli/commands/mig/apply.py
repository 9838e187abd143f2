"""`gpuplane mig apply`: have the node's GPUs the layouts of a configuration."""

from pathlib import Path

import click

from gpuplane.cli.commands.mig.hooks import Hooks, hooks_file
from gpuplane.cli.commands.mig.options import chosen_config, config_file, machine, mode_only, selected_config
from gpuplane.cli.commands.mig.requested import (
    dry_run,
    evict,
    follow,
    kubeconfig,
    kubelet_root,
    show_plan,
    wait,
    wait_limit,
    where,
)
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.options import json_option
from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.model.partitions import LayoutRequest


@click.command()
@config_file
@selected_config
@hooks_file
@mode_only
@click.option(
    "-s",
    "--skip-reset",
    is_flag=True,
    envvar="MIG_PARTED_SKIP_RESET",
    help="Do not reset a GPU whose MIG mode takes effect only then.",
)
@evict
@kubeconfig
@wait
@dry_run
@json_option()
@machine
@kubelet_root
@state_dir
def command(
    config_file: Path | None,
    selected_config: str,
    hooks_file: Path | None,
    mode_only: bool,
    skip_reset: bool,
    evict: bool,
    kubeconfig: Path | None,
    wait: float | None,
    dry_run: bool,
    as_json: bool,
    machine: str | None,
    kubelet_root: Path,
    state_dir: Path,
) -> None:
    """Change this node's GPUs, one instance at a time, until they have the layouts of a configuration.

    What containers hold stays; the pods that are in the way are named. A running agent is asked, and goes on where it
    has to wait. Without one the command does the work itself, until it is done or it is known why not.
    """
    name, entries_of = chosen_config(config_file, selected_config)
    variables = {
        "MIG_PARTED_CONFIG_FILE": str(config_file or ""),
        "MIG_PARTED_SELECTED_CONFIG": name,
        "MIG_PARTED_HOOKS_FILE": str(hooks_file or ""),
        "MIG_PARTED_SKIP_RESET": str(skip_reset).lower(),
        "MIG_PARTED_MODE_CHANGE_ONLY": str(mode_only).lower(),
    }
    there = where(machine, state_dir, kubelet_root, as_json=as_json)
    hooks = Hooks(hooks_file, variables, debug=there.debug)
    request = LayoutRequest(name=name, layouts={}, mode_only=mode_only, skip_reset=skip_reset)
    if dry_run:
        show_plan(there, lambda gpus: layouts_of_entries(entries_of(gpus), gpus), request)
    else:
        follow(
            there,
            lambda gpus: layouts_of_entries(entries_of(gpus), gpus),
            request,
            hooks,
            wait_limit(wait, evict=evict, kubeconfig=kubeconfig),
        )
