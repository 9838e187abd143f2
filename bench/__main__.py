"""Run the measurements and print the table."""

import argparse
import asyncio
import compileall
import datetime
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.machine import adopt, this_machine, watched
from bench.report import Figure, Report, document, markdown, show
from bench.row import Measure

PARTS = (
    "node",
    "idle",
    "upgrade",
    "hostile",
    "health",
    "choice",
    "mps",
    "containers",
    "telemetry",
    "partitions",
    "dra",
    "placement",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 where all budgets are kept, 1 where one is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="one part of the table")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document")
    form.add_argument("--markdown", action="store_true", help="what docs/performance.md ends with")
    args = parser.parse_args(arguments)
    report = run((args.only,) if args.only else PARTS)
    print(document(report)) if args.json else print(markdown(report)) if args.markdown else show(report)
    return 0 if report.kept else 1


def run(parts: tuple[str, ...]) -> Report:
    """All measurements of these parts, one after the other."""
    date, machine, load = datetime.datetime.now(datetime.UTC).date().isoformat(), this_machine(), os.getloadavg()[0]
    _say(f"on {machine}; load average {load:.2f}")
    return Report(date, machine, load, [figure for part in parts for figure in measured(part)])


def measured(part: str) -> Iterator[Figure]:
    """What one part measures, with who had the CPUs meanwhile."""
    measures: tuple[Measure, ...] = importlib.import_module(f"bench.{part}").MEASURES
    for measure in measures:
        _say(f"{part}: {(measure.__doc__ or '').splitlines()[0]} …")
        with watched() as uses:
            rows = asyncio.run(measure())
        (use,) = uses
        if use.busy:
            _say(f"  other work took {use.taken:.0f} % of the CPUs meanwhile")
        yield from (Figure(part, row, use) for row in rows)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    adopt()
    compileall.compile_dir(str(Path(__file__).parent.parent / "src"), quiet=1)
    logging.disable(logging.CRITICAL)
    sys.exit(main())
