"""`gpuplane labels`: the labels of a node's GPUs, and where each is known from (docs/labels.md)."""

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from gpuplane.base.text import tab_separated
from gpuplane.base.value import Value
from gpuplane.cli.kit.agent import show, state_dir
from gpuplane.cli.kit.observed import snapshot_of
from gpuplane.cli.kit.options import PATH, Machine, misuse
from gpuplane.node.core.advertising import missing_information_reason
from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.views import FeatureLabel

HEADS = ("LABEL", "VALUE", "KNOWN FROM")


class LabelsDocument(Value):
    """What `--json` shows."""

    labels: Mapping[str, FeatureLabel]


@click.command()
@click.option(
    "--machine",
    type=Machine(nvml=True),
    help="nvml for this machine, a machine file, or the name of a profile. Default: what the running agent knows.",
)
@click.option("--config", type=PATH, help="With --machine: a configuration. Default: whole GPUs, no MIG.")
@click.option(
    "--driver-root-ctr-path",
    default="/",
    envvar="DRIVER_ROOT_CTR_PATH",
    help="With --machine nvml: the driver root as this process sees it.",
)
@state_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON document: label → its value and where it is from.")
def command(
    machine: str | None, config: Path | None, driver_root_ctr_path: str, state_dir: Path, as_json: bool
) -> None:
    """Show the labels that a node has for its GPUs: those of NVIDIA's GPU Feature Discovery, and some by model.

    Without a terminal each line is LABEL=VALUE, a tab, and where the value is known from.
    """
    if machine is None:
        if config is not None:
            raise misuse("--config needs --machine: a running agent has a configuration of its own")
        snapshot = show(state_dir).snapshot
    else:
        snapshot = snapshot_of(machine, config, Path(driver_root_ctr_path))
    found = feature_labels(snapshot)
    if found is None:
        why = missing_information_reason(snapshot)
        raise click.ClickException(f"the labels are not known yet{f': {why.text}' if why else ''}")
    if as_json:
        sys.stdout.buffer.write(format_json(LabelsDocument(found)))
    elif not found:
        click.echo("This node has no labels: it has no GPUs.", err=True)
    elif sys.stdout.isatty():
        _draw(found)
    else:
        for key, label in found.items():
            click.echo(tab_separated(f"{key}={label.value}", label.source))


def _draw(found: Mapping[str, FeatureLabel]) -> None:
    """For people."""
    from rich.console import Console

    from gpuplane.cli.kit.tables import table

    console = Console(highlight=False)
    rows = [dict(zip(HEADS, (key, each.value, f"{each.source}"), strict=True)) for key, each in found.items()]
    for line in table(HEADS, rows, console.width, ("KNOWN FROM", "VALUE"), "KNOWN FROM"):
        console.print(line, soft_wrap=True)
