"""What times are compared with: work that is not ours, measured in the same run.

A budget in seconds holds for one machine: one half as fast misses it, though nothing is wrong. So a time of computation
is a figure of the machine's too, and its budget is a ratio to the loop: a fixed piece of interpreted work, with nothing
of gpuplane's in it. A time of waiting (for a period, a disk, another process) has no reference: its budget stays in
seconds.
"""

import functools
import statistics
import time

from bench.row import Row

TURNS, LOOPS = 60_000, 25
OUR_LOOP = 10.0
"""Milliseconds that the loop takes on the machine for which the budgets were chosen."""

MILLISECONDS = {"ms": 1.0, "s": 1000.0, "% of a core": 10.0}
"""In one of each unit that `in_loops` takes; of a core's percent, in each second."""


def loop(turns: int = TURNS) -> float:
    """Seconds of CPU of a loop with so many turns: whole numbers, and a table of them."""
    seen, value, began = dict[int, int](), 1, time.thread_time()
    for turn in range(turns):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        key = value % 1024
        seen[key] = seen.get(key, 0) + turn
    return time.thread_time() - began


@functools.cache
def loop_time() -> float:
    """Milliseconds that the loop takes here. Measured once a run, so that all rows have the same reference."""
    return statistics.median(loop() for _ in range(LOOPS)) * 1e3


def in_loops(row: Row) -> Row:
    """A row with its figure, a time here, and its budget, a time on our machine, both in loops; `how` has the time."""
    one, per = MILLISECONDS[row.unit], "/s" if row.unit.startswith("%") else ""
    how = f"{row.figure:.3g} {row.unit}" + (f", {row.how}" if row.how else "")
    return Row(row.what, row.figure * one / loop_time(), row.budget * one / OUR_LOOP, f"loops{per}", how)
