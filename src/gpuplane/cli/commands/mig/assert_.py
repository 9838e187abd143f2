"""`gpuplane mig assert`: whether the node has the layouts of a configuration."""

import sys
from pathlib import Path

import click

from gpuplane.base.text import Text, format_count
from gpuplane.base.value import Value
from gpuplane.cli.commands.mig.options import chosen_config, config_file, machine, mode_only, selected_config
from gpuplane.cli.commands.mig.seen import observe_gpus
from gpuplane.cli.kit.agent import state_dir
from gpuplane.cli.kit.options import json_option, usage_error
from gpuplane.cli.kit.presenter import print_result
from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.comparison import difference
from gpuplane.node.core.partitions.entries import gpus_of_entry, layouts_of_entries
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import MigConfigEntry


class Asserted(Value):
    """One GPU, as `--json` shows it. `difference`: what of its layout it does not have; "" where it has it."""

    index: int
    uuid: str
    matches: bool
    difference: Text


class Assertion(Value):
    """What `--json` shows. `gpus`: those that the configuration names."""

    config: str
    matches: bool
    gpus: tuple[Asserted, ...]


@click.command()
@config_file
@selected_config
@mode_only
@click.option(
    "-a",
    "--valid-config",
    is_flag=True,
    envvar="MIG_PARTED_VALID_CONFIG",
    help="Only check that the file is valid and has the configuration.",
)
@json_option()
@machine
@state_dir
def command(
    config_file: Path | None,
    selected_config: str,
    mode_only: bool,
    valid_config: bool,
    as_json: bool,
    machine: str | None,
    state_dir: Path,
) -> None:
    """Check whether this node's GPUs have the layouts of a configuration.

    A GPU that the configuration does not name may have any layout. Exit status: 0 they have them; 1 not.
    """
    if valid_config and config_file is None:
        raise usage_error("--valid-config needs --config-file.")
    name, entries_of = chosen_config(config_file, selected_config)
    asserted: tuple[Asserted, ...] = ()
    if not valid_config:
        gpus = observe_gpus(machine, state_dir)
        asserted = _asserted(entries_of(gpus), gpus, mode_only=mode_only)
    matches = all(each.matches for each in asserted)
    lines = [f"{config_file}: the configuration {name} is valid"] if valid_config else _lines(asserted, name, mode_only)
    print_result(Assertion(config=name, matches=matches, gpus=asserted), lines, as_json=as_json)
    sys.exit(not matches)


def _lines(asserted: tuple[Asserted, ...], name: str, mode_only: bool) -> list[Text]:
    differing: list[Text] = [
        f"GPU {each.index} ({each.uuid}): {each.difference}" for each in asserted if not each.matches
    ]
    what = "the MIG mode" if mode_only else "the layout"
    all_match = f"{format_count(len(asserted), 'GPU')} have {what} of {name}" if asserted[1:] else f"{name} is applied"
    return differing or [all_match]


def _asserted(entries: tuple[MigConfigEntry, ...], gpus: tuple[Gpu, ...], *, mode_only: bool) -> tuple[Asserted, ...]:
    """Each GPU that the entries mean. Raises ClickException where they are contradictory here."""
    layouts, problems = layouts_of_entries(entries, gpus)
    if problems:
        raise click.ClickException("\n".join(f"{each}" for each in problems))
    found = {gpu.index: gpu for entry in entries for gpu in gpus_of_entry(entry, gpus)}
    asserted = []
    for index, gpu in sorted(found.items()):
        layout = layouts.get(gpu.uuid)
        why: Text = "" if gpu.uuid else "the driver does not tell its UUID"
        if layout is not None:
            why = difference(gpu, layout, profiles_of(gpu), mode_only=mode_only)
        asserted.append(Asserted(index=index, uuid=gpu.uuid, matches=not why, difference=why))
    return tuple(asserted)
