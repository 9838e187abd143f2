"""`gpuplane runbook`: the page of an alert. An alert names it where Prometheus has no label `gpuplane_runbooks`."""

from pathlib import Path

import click

import gpuplane
from gpuplane.base import files
from gpuplane.cli.kit.options import OneOf

PACKAGE_DIR = Path(gpuplane.__file__).parent
RUNBOOK_DIRS = (PACKAGE_DIR / "runbooks", PACKAGE_DIR.parents[1] / "docs/runbooks")
"""Where the pages are: in an installed package, and in a checkout."""

MAX_PAGE_BYTES = 1 << 16  # bytes of a page


def pages() -> dict[str, Path]:
    """Alert → its page."""
    found = next((each for each in RUNBOOK_DIRS if each.is_dir()), RUNBOOK_DIRS[0])
    return {path.stem: path for path in sorted(found.glob("*.md"))}


@click.command()
@click.argument("alert", required=False, metavar="[ALERT]", type=OneOf(pages()))
def command(alert: str | None) -> None:
    """Print what an alert means, how to check it and what to do. Without ALERT: list the alerts."""
    known = pages()
    click.echo("\n".join(known) if alert is None else files.read(known[alert], MAX_PAGE_BYTES).decode().rstrip("\n"))
