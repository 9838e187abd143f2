"""Run the measurements and print the table."""

import argparse
import asyncio
import compileall
import importlib
import json
import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.row import Measure, Row

PARTS = ("node", "upgrade", "hostile", "health", "choice", "mps", "containers")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="one part of the table")
    parser.add_argument("--json", action="store_true", help="one JSON document a row")
    args = parser.parse_args()
    compileall.compile_dir(str(Path(__file__).parent.parent / "src"), quiet=1)
    logging.disable(logging.CRITICAL)
    rows = []
    for part in (args.only,) if args.only else PARTS:
        measures: tuple[Measure, ...] = importlib.import_module(f"bench.{part}").MEASURES
        for measure in measures:
            print(f"{part}: {(measure.__doc__ or '').splitlines()[0]} …", file=sys.stderr, flush=True)
            rows += asyncio.run(measure())
    show_json(rows) if args.json else show(rows)
    return 0 if all(row.kept for row in rows) else 1


def show_json(rows: list[Row]) -> None:
    for row in rows:
        print(json.dumps({**row._asdict(), "kept": row.kept}))


def show(rows: list[Row]) -> None:
    table = Table("what", "measured", "budget", "", "how", box=None, header_style="bold", pad_edge=False)
    for row in rows:
        verdict = "[green]kept[/green]" if row.kept else "[red]missed[/red]"
        table.add_row(row.what, f"{row.figure:.3g} {row.unit}", f"≤ {row.budget:g} {row.unit}", verdict, row.how)
    Console(soft_wrap=not sys.stdout.isatty()).print(table)


if __name__ == "__main__":
    sys.exit(main())
