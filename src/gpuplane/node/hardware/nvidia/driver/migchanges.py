"""Single changes of a GPU's partitions, as NVML makes them.

What is already so is done: a change may be requested again after a crash. Before something is destroyed it is checked
that it is what was meant: ids are given out again. A change of the mode is not begun while programs have the GPU open,
and is taken back where the driver says that it has to wait for somebody: it would take effect at some later reset.
"""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpuplane.node.hardware.nvidia.driver.errors import ERROR_NAMES, NVML_ERRORS, CallFailed, describe_error
from gpuplane.node.hardware.nvidia.driver.migcalls import CALL_OF_CHANGE, PROBLEM_OF_ERROR
from gpuplane.node.hardware.nvidia.driver.miginstances import COMPUTE_PROFILES, MAX_INSTANCES, SHARED_ENGINES
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml, Subject
from gpuplane.node.hardware.nvidia.driver.openers import blocking_users
from gpuplane.node.model.facts import ChangePartition, PartitionChangeFinished
from gpuplane.node.model.partitions import (
    ChangeProblem,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuUser,
    SetMigMode,
)


class ChangeRefused(Exception):
    """A change that is not made."""

    def __init__(self, problem: ChangeProblem, failure: str, users: tuple[GpuUser, ...] = ()) -> None:
        self.problem, self.failure, self.users = problem, failure, users
        super().__init__(failure)


class MigChanger:
    """Makes changes. `users`: who has a GPU open, of its minor number and of the process ids that compute on it."""

    def __init__(self, nvml: Nvml, users: Callable[[int | None, tuple[int, ...]], tuple[GpuUser, ...]]) -> None:
        self._nvml, self._users = nvml, users

    def make(self, action: ChangePartition, subject: Subject | None) -> PartitionChangeFinished:
        """What became of a change of a GPU as it was seen last; None where it was not."""
        told = PartitionChangeFinished(gpu=action.gpu, change=action.change, requested_at=action.requested_at)
        try:
            if subject is None or subject.handle is None:
                raise ChangeRefused("gone", "the driver does not describe this GPU now")
            self._make(action, subject)
        except CallFailed as failed:
            problem = PROBLEM_OF_ERROR.get(failed.error, "failed")
            users = self._open(subject) if problem == "in-use" and subject is not None else ()
            return told.but(problem=problem, failure=str(failed), users=users)
        except ChangeRefused as refused:
            return told.but(problem=refused.problem, failure=refused.failure, users=refused.users)
        except Exception as error:
            failure = f"the agent cannot read the driver's answer: {type(error).__name__}: {error}"
            return told.but(problem="failed", failure=failure, outcome_unknown=True)
        return told

    def _make(self, action: ChangePartition, subject: Subject) -> None:
        match action.change:
            case SetMigMode(enabled):
                self._set_mode(subject, enabled)
            case CreateGpuInstance(profile, start):
                self._create(subject, profile, start)
            case DestroyGpuInstance(id, profile, start):
                self._destroy(subject, id, (profile, start))
            case CreateComputeInstance(profile, start, slices):
                instance = self._instance(subject, (profile, start))
                if (constant := COMPUTE_PROFILES.get(slices)) is None:
                    raise ChangeRefused("not-supported", f"there are no compute instances of {slices} slices")
                function, version = "nvmlGpuInstanceGetComputeInstanceProfileInfo", 1
                info = self._call(subject, function, instance, constant, SHARED_ENGINES, version)
                self._call(subject, CALL_OF_CHANGE[CreateComputeInstance], instance, info.id)
            case DestroyComputeInstance(profile, start, id):
                instance = self._instance(subject, (profile, start), is_needed=False)
                if instance is not None:
                    part = self._gone_is_none(subject, "nvmlGpuInstanceGetComputeInstanceById", instance, id)
                    if part is not None:
                        self._call(subject, CALL_OF_CHANGE[DestroyComputeInstance], part)
            case _:
                raise ChangeRefused("not-supported", "NVML has no reset of a GPU")

    def _set_mode(self, subject: Subject, enabled: bool) -> None:
        before, pending = self._call(subject, "nvmlDeviceGetMigMode", subject.handle)
        needs_reset = subject.gpu.mig is not None and subject.gpu.mig.needs_reset is True
        if pending == enabled and (before == enabled or needs_reset):
            return
        if before != enabled and (users := blocking_users(self._open(subject))):
            raise ChangeRefused("in-use", "programs have the GPU open", users)
        activation = self._call(subject, CALL_OF_CHANGE[SetMigMode], subject.handle, int(enabled))
        current, pending = self._call(subject, "nvmlDeviceGetMigMode", subject.handle)
        error = ERROR_NAMES.get(activation, "" if not activation else str(activation))
        if current == enabled or (pending == enabled and error == "RESET_REQUIRED"):
            return
        users = self._open(subject)
        if pending != before:
            with suppress(CallFailed):
                self._call(subject, CALL_OF_CHANGE[SetMigMode], subject.handle, before)
        raise ChangeRefused(
            PROBLEM_OF_ERROR.get(error, "failed"), describe_error(CALL_OF_CHANGE[SetMigMode], error or "UNKNOWN"), users
        )

    def _create(self, subject: Subject, profile: int, start: int) -> None:
        mig = subject.gpu.mig
        known = next((each for each in mig.profiles if each.id == profile), None) if mig is not None else None
        if known is None:
            raise ChangeRefused("not-supported", f"this GPU has no profile {profile}")
        if self._instance(subject, (profile, start), is_needed=False) is not None:
            return
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, known.size)
        self._call(subject, CALL_OF_CHANGE[CreateGpuInstance], subject.handle, profile, ctypes.byref(placement))

    def _destroy(self, subject: Subject, id: int, placement: tuple[int, int]) -> None:
        instance = self._gone_is_none(subject, "nvmlDeviceGetGpuInstanceById", subject.handle, id)
        if instance is None:
            return
        info = self._call(subject, "nvmlGpuInstanceGetInfo", instance)
        if (info.profileId, info.placement.start) != placement:
            raise ChangeRefused("gone", f"GPU instance {id} is another one now")
        self._call(subject, CALL_OF_CHANGE[DestroyGpuInstance], instance)

    def _instance(self, subject: Subject, placement: tuple[int, int], *, is_needed: bool = True) -> Any:
        """NVML's handle of the GPU instance of this placement. Raises ChangeRefused where there is none, but needed."""
        handles, count = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)(), pynvml.c_uint(MAX_INSTANCES)
        function = "nvmlDeviceGetGpuInstances"
        self._call(subject, function, subject.handle, placement[0], handles, ctypes.byref(count))
        for handle in handles[: min(count.value, MAX_INSTANCES)]:
            if self._call(subject, "nvmlGpuInstanceGetInfo", handle).placement.start == placement[1]:
                return handle
        if is_needed:
            raise ChangeRefused("gone", "the GPU instance does not exist any more")
        return None

    def _call(self, subject: Subject, function: str, *arguments: Any) -> Any:
        """Raises CallFailed."""
        return self._nvml.call(function, *arguments, gpu=subject.gpu.index)

    def _gone_is_none(self, subject: Subject, function: str, *arguments: Any) -> Any:
        try:
            return self._call(subject, function, *arguments)
        except CallFailed as failed:
            if failed.error == "NOT_FOUND":
                return None
            raise

    def _open(self, subject: Subject) -> tuple[GpuUser, ...]:
        """Who has the GPU open."""
        pids = set[int]()
        for kind in ("Compute", "MPSCompute", "Graphics"):
            function = f"nvmlDeviceGet{kind}RunningProcesses"
            pids.update(each.pid for each in subject.ask((), function, subject.handle, fine=NVML_ERRORS))
        return self._users(subject.gpu.minor, tuple(sorted(pids - {0})))
