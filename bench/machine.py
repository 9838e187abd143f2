"""The machine that measures: what it is, and how busy other work keeps it meanwhile."""

import ctypes
import os
import platform
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from bench.reference import loop_time

BUSY = 5.0
"""Percent of all CPUs' time. Where others take more during a measurement, its figures are of a busy machine."""

PROC = Path("/proc")
SET_CHILD_SUBREAPER, GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h


class Machine(NamedTuple):
    """What figures depend on. Memory is in GiB; the reference loop in ms (see `reference`)."""

    cpu: str
    cpus: int
    memory: float
    kernel: str
    python: str
    loop: float

    def __str__(self) -> str:
        return (
            f"{self.cpus} CPUs ({self.cpu}), {self.memory:.1f} GiB of memory, Linux {self.kernel}, "
            f"{platform.python_implementation()} {self.python}, where a loop takes {self.loop:.1f} ms"
        )


def this_machine(proc: Path = PROC) -> Machine:
    """By what the kernel and this interpreter tell."""
    models = [line for line in (proc / "cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = (proc / "meminfo").read_text().partition("MemTotal:")[2].split()[0]
    return Machine(
        cpu=models[0].partition(":")[2].strip() if models else platform.machine(),  # arm64 has no model name
        cpus=os.cpu_count() or 1,
        memory=int(memory) / (1 << 20),
        kernel=platform.release(),
        python=platform.python_version(),
        loop=loop_time(),
    )


class Reading(NamedTuple):
    """CPU time since the boot or the start, in seconds, over all CPUs; `at` is a clock's time."""

    at: float
    busy: float
    stolen: float
    ours: float


class Use(NamedTuple):
    """Who had the CPUs for a while, in percent of all CPUs' time."""

    ours: float
    others: float
    stolen: float

    @property
    def taken(self) -> float:
        """What was not to be had for us: other processes' part, and the hypervisor's."""
        return self.others + self.stolen

    @property
    def busy(self) -> bool:
        """Whether figures of that while are those of a busy machine."""
        return self.taken > BUSY


def used(before: Reading, after: Reading, cpus: int) -> Use:
    """Between two readings."""
    all_of_it = max(after.at - before.at, 1e-9) * cpus
    ours = after.ours - before.ours
    others = max(0.0, after.busy - before.busy - ours)  # the kernel counts the two by different clocks
    return Use(*(100 * each / all_of_it for each in (ours, others, after.stolen - before.stolen)))


def reading(proc: Path = PROC) -> Reading:
    """Now. Processes that we started count from the moment in which they were waited for (see getrusage(2))."""
    user, nice, system, _, _, irq, softirq, stolen, *_ = map(int, (proc / "stat").read_text().split()[1:11])
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ours = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, who))
    tick = os.sysconf("SC_CLK_TCK")
    return Reading(time.monotonic(), (user + nice + system + irq + softirq) / tick, stolen / tick, ours)


def adopt() -> None:
    """From now on processes whose parent ends are our children (prctl(2)): what they used can be counted as ours."""
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap() -> None:
    """Wait for all children that have ended, if we adopt any. Nobody else may be waiting for one meanwhile."""
    adopts = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    with suppress(ChildProcessError):
        while adopts.value and os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


@contextmanager
def watched() -> Iterator[list[Use]]:
    """A list that has one item when the block has ended: who had the CPUs in it."""
    uses: list[Use] = []
    before = reading()
    yield uses
    reap()
    uses.append(used(before, reading(), os.cpu_count() or 1))
