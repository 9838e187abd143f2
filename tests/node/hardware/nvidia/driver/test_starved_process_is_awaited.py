"""A process that gets no CPU is waited for; one that hangs is not, however busy the node is."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuplane.node.hardware.nvidia.process import Process, start_process
from gpuplane.node.hardware.nvidia.schedstat import CpuAccess
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import InjectedFailure, MachineFile
from gpuplane.node.model.status import DRIVER_PROCESS_PART
from tests.node.hardware.nvidia.driver.processes import state
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.test_process import Starts, driver_faults, starts, whole
from tests.node.hardware.nvidia.driver.watched import watched
from tests.starved import starved, tethered
from tests.texts import as_shown

__all__ = ["starts"]

LONG = 6.0
"""Seconds, several times as long as a call may take here."""


@contextmanager
def running(code: str) -> Iterator[int]:
    """A Python process that has begun to do something."""
    program = tethered(f"print(flush=True)\n{code}")
    with subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def worked(pid: int, seconds: float = 2.0) -> float:
    """Which share of some seconds a process was let work."""
    work, began = CpuAccess(pid), time.monotonic()
    while time.monotonic() < began + seconds:
        time.sleep(0.2)
        had = work.seconds_with_cpu()
    return had / (time.monotonic() - began)


def test_a_process_that_computes_without_a_cpu_does_not_work() -> None:
    """Where it would go on if it were let."""
    with running("while True: pass") as pid, starved(pid):
        assert worked(pid) < 0.3


def test_a_process_that_sleeps_works_all_the_time() -> None:
    """It waits for something else, and on a busy node, too, that counts against it."""
    with running("import time; time.sleep(600)") as pid:
        while state(pid) != "S":
            time.sleep(0.01)
        with starved(pid):
            assert worked(pid) > 0.9


def test_a_process_that_computes_for_ever_works_as_long_as_it_gets_a_cpu() -> None:
    """A loop within the library comes to its end, too: by the time that it ran."""
    with running("while True: pass") as pid:
        work, began = CpuAccess(pid), time.monotonic()
        while work.seconds_with_cpu() < 1.0:
            time.sleep(0.1)
            assert time.monotonic() - began < 60


def test_a_thread_that_sleeps_waits_for_the_others() -> None:
    """Another thread of the library may be the one that gets no CPU."""
    busy = "def busy():\n  while True: pass\n"
    with running(f"import threading, time\n{busy}threading.Thread(target=busy).start(); time.sleep(600)") as pid:
        while state(pid) != "S":
            time.sleep(0.01)
        with starved(pid):
            assert worked(pid) < 0.3


def test_a_process_that_waits_in_the_kernel_works_all_the_time(tmp_path: Path) -> None:
    """As in a driver's call that does not return. Here it waits for a child that shares its memory (vfork)."""
    os.mkfifo(tmp_path / "fifo")
    opening = f"[(os.POSIX_SPAWN_OPEN, 0, {str(tmp_path / 'fifo')!r}, 0, 0)]"
    with running(f"import os; os.posix_spawn('/bin/true', ['true'], {{}}, file_actions={opening})") as pid:
        while state(pid) != "D":
            time.sleep(0.01)
        with starved(pid):
            assert worked(pid) > 0.9
        os.close(os.open(tmp_path / "fifo", os.O_WRONLY))


def test_a_process_that_is_stopped_is_said_to_be() -> None:
    """Until it goes on."""
    with running("import time; time.sleep(600)") as pid:
        work = CpuAccess(pid)
        os.kill(pid, signal.SIGSTOP)
        while state(pid) != "T":
            time.sleep(0.01)
        work.seconds_with_cpu()
        assert work.is_stopped()
        os.kill(pid, signal.SIGCONT)
        while state(pid) == "T":
            time.sleep(0.01)
        work.seconds_with_cpu()
        assert not work.is_stopped()


async def test_a_killed_process_that_gets_no_cpu_is_not_stuck() -> None:
    """It needs some to end, and is waited for."""
    process = Process(start_process(tethered("while True: pass")))
    with starved(process.pid):
        process.kill()
        assert await process.wait_until_gone(0.2)


async def test_a_driver_process_that_gets_no_cpu_is_no_fault_of_anybody(
    standin: StandIn, rich: MachineFile, starts: Starts
) -> None:
    """The last look stays in force, it is said why none comes, nothing is ended, and it goes on when it is let."""
    async with watched(standin) as watch:
        await watch.until(whole)
        with starved(starts.children[0].pid):
            async with asyncio.timeout(60):
                while DRIVER_PROCESS_PART not in watch.node.snapshot.statuses:
                    await asyncio.sleep(0.05)
            told = watch.node.snapshot.statuses[DRIVER_PROCESS_PART].text
            until = time.monotonic() + LONG
            while time.monotonic() < until:
                await asyncio.sleep(0.1)
                assert (driver_faults(watch), watch.codes()) == ([], [[]] * 5)
                assert watch.driver()[0] == "ok"
        assert f"process {starts.children[0].pid} " in as_shown(told)
        await watch.until(lambda watch: DRIVER_PROCESS_PART not in watch.node.snapshot.statuses)
        assert len(starts.children) == 1


async def test_a_call_that_hangs_is_found_on_a_busy_node_too(
    standin: StandIn, rich: MachineFile, starts: Starts
) -> None:
    """It sleeps in the library and asks for no CPU: its GPU alone is charged."""
    async with watched(standin, deadline=2.0) as watch:
        await watch.until(whole)
        standin.describe(
            rich.but(failures=(InjectedFailure(effect="hang", gpu=1, nvml_function="nvmlDeviceGetMemoryInfo*"),))
        )
        hung = starts.children[0]
        while not (hung.announced().function.startswith("nvmlDeviceGetMemoryInfo") and state(hung.pid) == "S"):
            await asyncio.sleep(0.005)
        with starved(hung.pid):
            await watch.until(lambda watch: watch.codes() == [[], ["gpu-hang"], [], [], []])


async def test_a_process_that_was_stopped_is_replaced_and_charges_nobody(
    standin: StandIn, rich: MachineFile, starts: Starts
) -> None:
    """Whoever stopped it may forget it. That a GPU was just being asked says nothing about that GPU."""
    async with watched(standin) as watch:
        await watch.until(whole)
        os.kill(starts.children[0].pid, signal.SIGSTOP)
        await starts.reach(2)
        await watch.until(whole)

        codes = [
            fault.code
            for each in [each for each in watch.facts if isinstance(each, MachineObserved)]
            for fault in each.machine.faults
        ]
        assert "driver-crash" in codes
        assert not any(
            gpu.faults
            for each in [each for each in watch.facts if isinstance(each, MachineObserved)]
            for gpu in each.machine.gpus or ()
        )
