"""`gpuplane claims`: the claims of Dynamic Resource Allocation on this node (docs/dra.md)."""

from pathlib import Path

import click

from gpuplane.cli.kit.agent import fetch_node_state, state_dir
from gpuplane.cli.kit.options import json_option
from gpuplane.cli.kit.presenter import Table, print_result, rows_as_lines
from gpuplane.node.core.reports.claims import report_claims
from gpuplane.node.model.inspection import VERSION, ClaimShown, ClaimsShown

HEADINGS = ("CLAIM", "STATE", "REQUEST", "GPU", "UUID", "USED BY", "REASON")


@click.command()
@state_dir
@json_option("One JSON document; docs/dra.md describes its keys.")
def command(state_dir: Path, as_json: bool) -> None:
    """Show the claims that have devices of this node, who uses them, and what keeps others from theirs.

    Without a terminal each line is a device of a claim, with tabs between the columns.
    """
    claims = report_claims(fetch_node_state(state_dir).snapshot)
    rows = tuple(row for each in claims for row in _rows(each))
    print_result(
        ClaimsShown(version=VERSION, claims=claims),
        rows_as_lines(rows),
        [Table(HEADINGS, rows, give_way=("UUID", "USED BY"), loose="REASON")],
        as_json=as_json,
        nothing_found="" if rows else "No claim has a device of this node.",
    )


def _rows(claim: ClaimShown) -> list[tuple[str, ...]]:
    """A row for each device; one for a claim without."""
    name, used = f"{claim.namespace}/{claim.name}", ", ".join(claim.containers or claim.pods)
    devices = [
        (f"{each.request}{' (admin)' if each.admin_access else ''}", each.index, each.uuid) for each in claim.devices
    ]
    return [(name, claim.state, *device, used, f"{claim.reason}") for device in devices or [("", "", "")]]
