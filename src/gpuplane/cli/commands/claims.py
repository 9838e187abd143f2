"""`gpuplane claims`: the claims of Dynamic Resource Allocation on this node (docs/dra.md)."""

import sys
from pathlib import Path

import click

from gpuplane.base.text import tab_separated
from gpuplane.cli.kit.agent import show, state_dir
from gpuplane.node.core.reports.claims import report_claims
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.inspection import VERSION, ClaimShown, ClaimsShown

HEADS = ("CLAIM", "STATE", "REQUEST", "GPU", "UUID", "USED BY", "REASON")


@click.command()
@state_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON document; docs/dra.md describes its keys.")
def command(state_dir: Path, as_json: bool) -> None:
    """Show the claims that have devices of this node, who uses them, and what keeps others from theirs.

    Without a terminal each line is a device of a claim, with tabs between the columns.
    """
    claims = report_claims(show(state_dir).snapshot)
    if as_json:
        sys.stdout.buffer.write(format_json(ClaimsShown(version=VERSION, claims=claims)))
    elif not claims:
        click.echo("No claim has a device of this node.", err=True)
    elif sys.stdout.isatty():
        _draw([row for each in claims for row in _rows(each)])
    else:
        for each in claims:
            for row in _rows(each):
                click.echo(tab_separated(*row))


def _rows(claim: ClaimShown) -> list[tuple[str, ...]]:
    """A row for each device; one for a claim without."""
    name, used = f"{claim.namespace}/{claim.name}", ", ".join(claim.containers or claim.pods)
    devices = [
        (f"{each.request}{' (admin)' if each.admin_access else ''}", each.index, each.uuid) for each in claim.devices
    ]
    return [(name, claim.state, *device, used, f"{claim.reason}") for device in devices or [("", "", "")]]


def _draw(rows: list[tuple[str, ...]]) -> None:
    """For people."""
    from rich.console import Console

    from gpuplane.cli.kit.tables import table

    console = Console(highlight=False)
    shown = [dict(zip(HEADS, row, strict=True)) for row in rows]
    for line in table(HEADS, shown, console.width, ("UUID", "USED BY"), "REASON"):
        console.print(line, soft_wrap=True)
