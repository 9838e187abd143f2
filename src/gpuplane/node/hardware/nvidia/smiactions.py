"""What NVML cannot change, nvidia-smi does, one at a time: the length of time slices, and resets."""

import asyncio
from typing import NamedTuple

from gpuplane.base.text import Text
from gpuplane.node.hardware.nvidia.driver.openers import blocking_users
from gpuplane.node.hardware.nvidia.driverprocess import DriverProcess
from gpuplane.node.hardware.nvidia.migchanges import PendingChanges, reset_problem
from gpuplane.node.hardware.nvidia.nvidiasmi import NvidiaSmi, reset_arguments, time_slice_arguments
from gpuplane.node.hardware.nvidia.obstacles import why_gpu_is_not_queried
from gpuplane.node.hardware.nvidia.processes import DriverProcesses, join_pids
from gpuplane.node.hardware.nvidia.state import RELEASED_FAULT, DriverState
from gpuplane.node.model.facts import ChangePartition, SetTimeSlice, TimeSliceFinished
from gpuplane.node.model.machine import Gpu


class SmiOutcome(NamedTuple):
    """Why nvidia-smi did not do what it should, "" if it did; whether it may have done it all the same; an NVML
    error."""

    problem: Text
    is_unknown: bool = False
    error: str = ""


class SmiActions:
    """Runs nvidia-smi. `deadline`: seconds for each run."""

    def __init__(
        self, state: DriverState, processes: DriverProcesses, changes: PendingChanges, deadline: float
    ) -> None:
        self._state, self._processes, self._changes, self._deadline = state, processes, changes, deadline
        self._one_at_a_time = asyncio.Lock()

    async def set_time_slice(self, action: SetTimeSlice) -> None:
        """Set how long the time slices of a GPU are, and tell what came of it."""
        async with self._one_at_a_time:
            fault = why_gpu_is_not_queried(self._state, self._processes, action.gpu)
            gpu, arguments = self._state.gpu(action.gpu), time_slice_arguments(action.gpu, action.length)
            index = None if gpu is None else gpu.index
            outcome = SmiOutcome(fault.message) if fault else await self._run(index, arguments)
        told = TimeSliceFinished(gpu=action.gpu, length=action.length, requested_at=action.requested_at)
        self._state.tell(told.but(problem=outcome.problem, outcome_unknown=outcome.is_unknown))

    async def reset_gpu(self, action: ChangePartition) -> None:
        """End our own use of the driver, have the GPU reset, and observe again. Other GPUs are not observed meanwhile,
        for as long as nvidia-smi may take; their last observation stays in force."""
        async with self._one_at_a_time:
            gpu, fault = self._state.gpu(action.gpu), why_gpu_is_not_queried(self._state, self._processes, action.gpu)
            if fault is not None:
                return self._changes.finish(action, "failed", fault.message)
            if gpu is None:
                return self._changes.finish(action, "gone", "the driver lists no such GPU")
            if users := blocking_users(await self._processes.openers(gpu)):
                return self._changes.finish(action, "in-use", "programs have the GPU open", users)
            self._state.reset_text = f"the agent does not use the driver while GPU {gpu.index} is reset"
            try:
                outcome = await self._run_reset(gpu)
                users = await self._processes.openers(gpu) if outcome.problem else ()
            finally:
                self._state.reset_text = ""
                self._state.end_back_off(gpu)
                self._state.start_now()
        if outcome.problem:
            code = reset_problem(outcome.error, blocking_users(users))
            self._changes.finish(action, code, outcome.problem, users, is_unsure=outcome.is_unknown)
        else:
            self._changes.await_observation(action)

    async def _run_reset(self, gpu: Gpu) -> SmiOutcome:
        """As `_run`, without a process of ours beside it."""
        self._state.changed.set()
        ours = [process for process in self._processes.left() if isinstance(process, DriverProcess)]
        if stuck := await self._processes.dismiss(ours):
            return SmiOutcome(f"process {join_pids(stuck)} is stuck in the kernel and may keep the GPU open")
        if not self._state.is_wanted:
            return SmiOutcome(RELEASED_FAULT.message)
        return await self._run(gpu.index, reset_arguments(gpu.uuid))

    async def _run(self, index: int | None, arguments: tuple[str, ...]) -> SmiOutcome:
        if before := [each for each in self._processes.left() if isinstance(each, NvidiaSmi)]:
            return SmiOutcome(f"nvidia-smi, process {join_pids(before)}, is stuck in the kernel")
        try:
            smi = self._processes.start_nvidia_smi(index, arguments)
        except OSError as error:
            return SmiOutcome(f"{error.filename}: {error.strerror}")
        try:
            is_in_time = await smi.wait_until_gone(self._deadline)
        finally:
            await self._processes.end_nvidia_smi(smi)
        problem, is_unknown = smi.outcome()
        if smi.dismissed:
            return SmiOutcome(RELEASED_FAULT.message, is_unknown)
        if not is_in_time:
            return SmiOutcome(f"nvidia-smi did not end within {self._deadline:g} s", True)
        return SmiOutcome(problem, is_unknown, smi.error())
