"""`gpuplane slices`: the ResourceSlices of a node (docs/resourceslices.md)."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from gpuplane.cli.kit.agent import ask, node_state, state_dir
from gpuplane.cli.kit.messages import escape_markup
from gpuplane.cli.kit.observed import observed_snapshot
from gpuplane.cli.kit.options import FILE_PATH, Machine, OneOf, json_option, usage_error
from gpuplane.cli.kit.presenter import Block, Table, print_json, print_result, rows_as_lines
from gpuplane.node.core.advertising import missing_information_reason
from gpuplane.node.core.dra.publishing import manifest
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.core.reports.slices import report_slices
from gpuplane.node.model.config import DraSettings, Settings
from gpuplane.node.model.control import GetNodeState
from gpuplane.node.model.inspection import SliceShown, SlicesShown
from gpuplane.node.model.resourceslices import ResourceSlice
from gpuplane.node.model.snapshot import Snapshot

HEADINGS = ("GPU", "DEVICE", "STATE", "TAINTS", "DIFFERS IN")

NOTHING_PUBLISHED = (
    "The node publishes no ResourceSlice: it has no GPU that can be given out whole, and no other device."
)


@click.command()
@click.option(
    "--machine",
    type=Machine(nvml=True),
    help="nvml for this machine, a machine file, or the name of a profile. Default: what the running agent knows.",
)
@click.option("--config", type=FILE_PATH, help="With --machine: a configuration. DRA counts as enabled in it.")
@click.option("--node-name", default="", help="With --machine: the name of the node. Default: node.")
@click.option(
    "--driver-root-ctr-path",
    default="/",
    envvar="DRIVER_ROOT_CTR_PATH",
    help="With --machine nvml: the driver root as this process sees it.",
)
@state_dir
@click.option("-o", "--output", type=OneOf(("yaml", "json")), help="The slices as objects, as a template has them.")
@json_option("One JSON document; docs/resourceslices.md describes its keys.")
def command(
    machine: str | None,
    config: Path | None,
    node_name: str,
    driver_root_ctr_path: str,
    state_dir: Path,
    output: str | None,
    as_json: bool,
) -> None:
    """Show the ResourceSlices that the node publishes, whether the API server has them, and in what it differs.

    Without a terminal each line is a device, with tabs between the columns.
    """
    if output and as_json:
        raise usage_error("-o and --json are two documents: choose one")
    if machine is None and (config is not None or node_name):
        raise usage_error("--config and --node-name need --machine: a running agent has its own")
    if machine is None:
        answer = ask(state_dir, GetNodeState())
        snapshot, node = node_state(answer).snapshot, answer.agent.node
        _require_published(snapshot, node)
    else:
        snapshot, node = observed_snapshot(machine, config, Path(driver_root_ctr_path)), node_name or "node"
        snapshot = _with_dra(snapshot)
    wanted = resource_slices(snapshot, node)
    if wanted is None:
        why = missing_information_reason(snapshot)
        raise click.ClickException(f"the slices are not known yet{f': {why.text}' if why else ''}")
    shown = report_slices(snapshot, node, is_published=machine is None)
    if output:
        _write_objects(wanted, output)
        return
    print_result(
        shown,
        rows_as_lines(_rows(shown)),
        _page(shown),
        as_json=as_json,
        nothing_found="" if wanted else NOTHING_PUBLISHED,
    )


def _require_published(snapshot: Snapshot, node: str) -> None:
    """Raises ClickException where the agent publishes nothing."""
    settings = snapshot.config.settings
    if not node:
        raise click.ClickException("the agent publishes no ResourceSlices: it runs without --node-name")
    if settings is not None and not settings.dra.enabled and not resource_slices(snapshot, node):
        raise click.ClickException("the agent publishes no ResourceSlices: its configuration does not have dra.enabled")


def _with_dra(snapshot: Snapshot) -> Snapshot:
    """A described node, as it is with DRA."""
    settings = snapshot.config.settings or Settings()
    dra: DraSettings = settings.dra.but(enabled=True)
    return snapshot.but(config=snapshot.config.but(settings=settings.but(dra=dra)))


def _write_objects(wanted: Iterable[ResourceSlice], output: str) -> None:
    """The slices as kubectl takes them."""
    objects = [manifest(each) for each in wanted]
    if output == "json":
        print_json({"apiVersion": "v1", "kind": "List", "items": objects})
        return
    import yaml

    click.echo(yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True), nl=False)


def _rows(shown: SlicesShown) -> list[tuple[str, ...]]:
    return [_row(each) for each in shown.slices]


def _row(slice: SliceShown) -> tuple[str, ...]:
    taints = ", ".join(f"{each.key}={each.value}:{each.effect}" for each in slice.taints)
    return slice.index, slice.device, slice.state, taints, ", ".join(slice.differing)


def _page(shown: SlicesShown) -> Iterator[Block]:
    """For people."""
    yield Table(HEADINGS, tuple(_rows(shown)), give_way=("DIFFERS IN", "TAINTS"), loose="TAINTS")
    if shown.reason and shown.state == "failing":
        yield escape_markup(shown.reason)
