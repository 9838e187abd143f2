"""A figure comes with the machine that it was measured on, and with how busy other work kept that machine."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.machine import BUSY, Machine, Reading, Use, reading, this_machine, used, watched
from bench.reference import loop_time

SPIN = "import time\nwhile time.process_time() < 0.5: pass"
ORPHAN = f"""
import os, subprocess, sys, time
from bench.machine import adopt, watched

adopt()
began = time.monotonic()
with watched() as uses:
    leave = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    subprocess.run([sys.executable, "-c", leave, {SPIN!r}], check=True)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print(uses[0].ours / 100 * (time.monotonic() - began) * os.cpu_count())
"""
ROOT = Path(__file__).parents[2]
STAT = "cpu  100 10 50 1000 20 3 7 40 0 0\ncpu0 100 10 50 1000 20 3 7 40 0 0\n"


def test_what_is_neither_idle_nor_ours_is_others() -> None:
    """In percent of all CPUs' time; what the hypervisor took stands apart."""
    before, after = Reading(100.0, 50.0, 1.0, 7.0), Reading(110.0, 62.0, 2.0, 10.0)

    assert used(before, after, cpus=2) == Use(ours=15.0, others=45.0, stolen=5.0)


def test_others_are_never_less_than_nothing() -> None:
    """The kernel counts processes exactly and the whole by ticks."""
    assert used(Reading(0, 0, 0, 0), Reading(1, 0.99, 0, 1), cpus=1).others == 0


@pytest.mark.parametrize(("use", "busy"), [(Use(90, BUSY, 0), False), (Use(0, 3, 3), True), (Use(0, 6, 0), True)])
def test_a_machine_is_busy_by_others_and_not_by_us(use: Use, busy: bool) -> None:
    """And by a hypervisor that gives the CPU to somebody else."""
    assert use.busy == busy


def test_time_is_read_of_the_kernel(tmp_path: Path) -> None:
    """All that is not idle and not waiting for a disk; in seconds."""
    (tmp_path / "stat").write_text(STAT)
    now = reading(tmp_path)

    assert (now.busy, now.stolen) == (170 / os.sysconf("SC_CLK_TCK"), 40 / os.sysconf("SC_CLK_TCK"))


def test_our_children_are_ours() -> None:
    """Their CPU time too, once they have ended. What else runs on the machine is in no way of this test."""
    began = time.monotonic()
    with watched() as uses:
        subprocess.run([sys.executable, "-c", SPIN], check=True, timeout=60)
    whole = (time.monotonic() - began) * (os.cpu_count() or 1)

    assert uses[0].ours / 100 * whole >= 0.45


def test_children_whose_parents_ended_are_ours() -> None:
    """As MPS daemons are, and the servers of one that was killed."""
    ended = subprocess.run([sys.executable, "-c", ORPHAN], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert ended.stderr == ""
    assert float(ended.stdout) >= 0.45


@pytest.mark.parametrize(
    ("cpuinfo", "cpu"), [("processor\t: 0\nmodel name\t: AMD EPYC 7742\n", "AMD EPYC 7742"), ("Features: fp", None)]
)
def test_a_machine_is_told_by_its_kernel(tmp_path: Path, cpuinfo: str, cpu: str | None) -> None:
    """The CPU's model, where there is one, and memory in GiB; how fast it is, by the reference loop."""
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    (tmp_path / "meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
    machine = this_machine(tmp_path)

    assert machine.memory == 32
    assert machine.cpu == (cpu or os.uname().machine)
    assert machine.loop == loop_time() > 0
    assert isinstance(this_machine(), Machine)
