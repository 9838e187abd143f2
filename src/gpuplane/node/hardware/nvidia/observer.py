"""The process that observes the machine, kept up: one after another.

- A hang or a crash in a call about one GPU is that GPU's fault: the next process skips it, and serves the others. In a
  call about none it is the driver that does not answer. A process that was stopped is replaced, and no GPU blamed.
- Every end that was not wanted costs a rest before the next start, twice as long each time, until a process has done
  well for a while.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from gpuplane.node.hardware.nvidia.driver.channel import DriverMessage, DriverStatusChanged, Order, SkipGpus
from gpuplane.node.hardware.nvidia.driverprocess import DriverProcess
from gpuplane.node.hardware.nvidia.migchanges import PendingChanges
from gpuplane.node.hardware.nvidia.obstacles import start_obstacle
from gpuplane.node.hardware.nvidia.processes import DriverProcesses, start_fault
from gpuplane.node.hardware.nvidia.settings import Timing
from gpuplane.node.hardware.nvidia.state import RELEASED_FAULT, DriverState
from gpuplane.node.model.facts import MachineObserved, PartitionChangeFinished, StatusChanged
from gpuplane.node.model.machine import Fault
from gpuplane.node.model.status import DRIVER_PART, DRIVER_PROCESS_PART, DriverStatus, Status
from gpuplane.node.model.telemetry import Sample

OBSTACLE_CHECK_INTERVAL = 1.0
"""Seconds between two looks whether a process may be started by now."""


class Observer:
    """`process`: the one that observes, or did last."""

    def __init__(self, state: DriverState, processes: DriverProcesses, changes: PendingChanges, timing: Timing) -> None:
        self._state, self._processes, self._changes, self._timing = state, processes, changes, timing
        self.process: DriverProcess | None = None
        self._failures = 0
        self._is_starved = False  # whether that was said
        self._sample: Sample | None = None  # the newest, until it is taken
        self._sampled = asyncio.Event()

    def send(self, order: Order) -> bool:
        """Order something of the process; whether it can know."""
        return self.process is not None and not self.process.ended and self.process.send(order)

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """What the process has sampled. One that is not taken before the next one comes is lost."""
        while True:
            await self._sampled.wait()
            self._sampled.clear()
            sample, self._sample = self._sample, None
            if sample is not None:
                yield sample

    def forget_sample(self) -> None:
        """The driver is released: a sample that nobody has taken is none any more."""
        self._sample = None

    async def run(self) -> None:
        """One process after another, for ever."""
        while True:
            await self._wait_for_start()
            began = time.monotonic()
            try:
                self.process = process = self._processes.start(self._state.skipped())
            except OSError as error:
                fault = start_fault(error)
                self._state.tell_failed(fault)
                self._changes.fail_all(fault.message)
                self._rest(began)
                continue
            self._state.resting_until = began + self._timing.rest[0]
            try:
                has_told = await self._follow(process)
            finally:
                await self._processes.end(process)
                self._report_starved(process, is_starved=False)
                self._changes.fail_all((RELEASED_FAULT if process.dismissed else process.fault()).message)
            if not process.dismissed and not (process.status() == 0 and has_told):
                self._judge(process)
                self._rest(began)

    async def _wait_for_start(self) -> None:
        state, was_released = self._state, False
        while True:
            if not state.is_wanted:
                await self._processes.find_stuck()
            now = time.monotonic()
            if (obstacle := start_obstacle(state, self._processes)) is not None:
                was_released = obstacle.released
                if state.is_wanted and not state.reset_text:
                    state.tell_failed(Fault(code="driver-hang", message=obstacle.text))
                if not state.reset_text:
                    self._changes.fail_all(obstacle.text)
                state.tell(StatusChanged(DRIVER_PART, obstacle))
            elif now >= state.resting_until:
                if was_released:
                    state.tell(StatusChanged(DRIVER_PART, DriverStatus("waiting", "the agent loads the driver again")))
                return
            state.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(state.resting_until - now if obstacle is None else OBSTACLE_CHECK_INTERVAL):
                    await state.changed.wait()

    async def _follow(self, process: DriverProcess) -> bool:
        """Pass on what the process tells, until it ends or is silent; whether it told anything."""
        has_told, skipped = False, self._state.skipped()
        messages = self._processes.messages(
            process, lambda is_starved: self._report_starved(process, is_starved=is_starved)
        )
        async with aclosing(messages):
            async for message in messages:
                if message is not None:
                    has_told = True
                    self._pass_on(message)
                if (now_skipped := self._state.skipped()) != skipped:
                    skipped = now_skipped
                    process.send(SkipGpus(skipped))
        return has_told

    def _pass_on(self, message: DriverMessage) -> None:
        if isinstance(message, Sample):
            if self._state.is_wanted:
                self._sample = message
                self._sampled.set()
        elif isinstance(message, PartitionChangeFinished):
            self._changes.pass_on(message)
        elif isinstance(message, DriverStatusChanged):
            self._state.tell(StatusChanged(DRIVER_PART, message.status))
        elif isinstance(message, MachineObserved) and message.machine.gpus is not None:
            self._processes.hangs = 0
            if not self._state.is_outdated(message.machine.gpus):
                self._state.machine = message.machine
                self._state.tell(message)
                self._changes.report_observed()
        else:
            self._state.tell(message)

    def _report_starved(self, process: DriverProcess, *, is_starved: bool) -> None:
        """Say that the process gets too little CPU to answer in time, or that it does no more."""
        if is_starved != self._is_starved:
            self._is_starved = is_starved
            reason = (
                f"process {process.pid} gets too little CPU: observations come late, and the agent uses the last one"
            )
            self._state.tell(StatusChanged(DRIVER_PROCESS_PART, Status("waiting", reason) if is_starved else None))

    def _judge(self, process: DriverProcess) -> None:
        """Say what an end that was not wanted was about."""
        gpu, fault = process.announced().gpu, process.fault()
        if gpu is not None and not process.stopped:
            self._state.back_off(gpu, fault)
        else:
            self._state.tell_failed(fault)
            self._processes.hangs += process.silent and not process.stopped

    def _rest(self, began: float) -> None:
        now, (least, most) = time.monotonic(), self._timing.rest
        if now - began > self._timing.well:
            self._failures = 0
        self._state.resting_until = now + min(least * (1 << min(self._failures, 16)), most)
        self._failures += 1
