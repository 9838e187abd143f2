"""`gpuplane mig restore`: bring back all instances to their places, as `checkpoint` has saved them."""

from pathlib import Path

import click

from gpuplane.base.strict import InvalidInput
from gpuplane.cli.commands.mig.follow import Layouts
from gpuplane.cli.commands.mig.hooks import Hooks, hooks_file
from gpuplane.cli.commands.mig.options import checkpoint_file, machine, mode_only, read
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
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.checkpoint import layouts_of_checkpoint, parse_checkpoint
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import LayoutRequest


@click.command()
@checkpoint_file
@hooks_file
@mode_only
@evict
@kubeconfig
@wait
@dry_run
@json_option()
@machine
@kubelet_root
@state_dir
def command(
    checkpoint_file: Path,
    hooks_file: Path | None,
    mode_only: bool,
    evict: bool,
    kubeconfig: Path | None,
    wait: float | None,
    dry_run: bool,
    as_json: bool,
    machine: str | None,
    kubelet_root: Path,
    state_dir: Path,
) -> None:
    """Bring back MIG mode and all instances of the GPUs of a file, each to its place.

    A GPU that the file does not have stays as it is. Files of nvidia-mig-parted are read, too.
    """
    try:
        checkpoint = parse_checkpoint(read(checkpoint_file), str(checkpoint_file))
    except InvalidInput as invalid:
        raise click.ClickException(str(invalid)) from None
    variables = {
        "MIG_PARTED_CHECKPOINT_FILE": str(checkpoint_file),
        "MIG_PARTED_HOOKS_FILE": str(hooks_file or ""),
        "MIG_PARTED_MODE_CHANGE_ONLY": str(mode_only).lower(),
    }

    def layouts(gpus: tuple[Gpu, ...]) -> Layouts:
        return layouts_of_checkpoint(checkpoint, gpus, {gpu.uuid: profiles_of(gpu) for gpu in gpus})

    there = where(machine, state_dir, kubelet_root, as_json=as_json)
    hooks = Hooks(hooks_file, variables, debug=there.debug)
    request = LayoutRequest(name=checkpoint_file.name, layouts={}, mode_only=mode_only)
    if dry_run:
        show_plan(there, layouts, request)
    else:
        follow(there, layouts, request, hooks, wait_limit(wait, evict=evict, kubeconfig=kubeconfig))
