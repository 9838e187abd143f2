"""Processes that get no CPU, as on a node that is far too busy. No rights are needed for that."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuplane.base.diewithparent import die_with_parent

RIVALS = 12
"""Busy processes beside the one that starves: it gets 4 ms of the processor every 3 s or so. Beside three it got them
every 0.8 s, which is the deadline of tests: whether a call was late was chance."""


def tethered(code: str) -> list[str]:
    """The command line of a Python program that ends with this process, however that ends."""
    return die_with_parent([sys.executable, "-c", code])


@contextmanager
def starved(pid: int) -> Iterator[None]:
    """While this lasts a process, with all its threads, gets one processor, after everybody else who wants it."""
    everywhere, there = os.sched_getaffinity(pid), {max(os.sched_getaffinity(0))}
    busy = tethered("while True: pass")
    rivals = [subprocess.Popen(busy, start_new_session=True) for _ in range(RIVALS)]
    try:
        for rival in rivals:
            os.sched_setaffinity(rival.pid, there)
        _rank(pid, there, os.SCHED_IDLE, 19)
        yield
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
        _rank(pid, everywhere, os.SCHED_OTHER, 0)


def _rank(pid: int, there: set[int], policy: int, nice: int) -> None:
    """Say which processors a process gets, and how soon: among its session's, and its session among others (sched(7),
    the autogroup feature, where this kernel has it)."""
    for thread in _threads(pid):
        os.sched_setaffinity(thread, there)
        os.sched_setscheduler(thread, policy, os.sched_param(0))
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(f"{nice}")


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]
    return []
