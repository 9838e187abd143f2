"""`gpuplane labels`: the labels of a node's GPUs, and where each is known from (docs/labels.md)."""

from collections.abc import Mapping
from pathlib import Path

import click

from gpuplane.base.text import tab_separated
from gpuplane.base.value import Value
from gpuplane.cli.kit.agent import fetch_node_state, state_dir
from gpuplane.cli.kit.observed import observed_snapshot
from gpuplane.cli.kit.options import FILE_PATH, Machine, json_option, usage_error
from gpuplane.cli.kit.presenter import Table, print_result
from gpuplane.node.core.advertising import missing_information_reason
from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.model.views import FeatureLabel

HEADINGS = ("LABEL", "VALUE", "KNOWN FROM")


class LabelsDocument(Value):
    """What `--json` shows."""

    labels: Mapping[str, FeatureLabel]


@click.command()
@click.option(
    "--machine",
    type=Machine(nvml=True),
    help="nvml for this machine, a machine file, or the name of a profile. Default: what the running agent knows.",
)
@click.option("--config", type=FILE_PATH, help="With --machine: a configuration. Default: whole GPUs, no MIG.")
@click.option(
    "--driver-root-ctr-path",
    default="/",
    envvar="DRIVER_ROOT_CTR_PATH",
    help="With --machine nvml: the driver root as this process sees it.",
)
@state_dir
@json_option("One JSON document: label → its value and where it is from.")
def command(
    machine: str | None, config: Path | None, driver_root_ctr_path: str, state_dir: Path, as_json: bool
) -> None:
    """Show the labels that a node has for its GPUs: those of NVIDIA's GPU Feature Discovery, and some by model.

    Without a terminal each line is LABEL=VALUE, a tab, and where the value is known from.
    """
    if machine is None:
        if config is not None:
            raise usage_error("--config needs --machine: a running agent has a configuration of its own")
        snapshot = fetch_node_state(state_dir).snapshot
    else:
        snapshot = observed_snapshot(machine, config, Path(driver_root_ctr_path))
    found = feature_labels(snapshot)
    if found is None:
        why = missing_information_reason(snapshot)
        raise click.ClickException(f"the labels are not known yet{f': {why.text}' if why else ''}")
    rows = tuple((key, label.value, f"{label.source}") for key, label in found.items())
    print_result(
        LabelsDocument(found),
        (tab_separated(f"{key}={label.value}", label.source) for key, label in found.items()),
        [Table(HEADINGS, rows, give_way=("KNOWN FROM", "VALUE"), loose="KNOWN FROM")],
        as_json=as_json,
        nothing_found="" if found else "This node has no labels: it has no GPUs.",
    )
