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

from gpuplane.node.hardware.nvidia.driver.errors import ERRORS, NAMES, Failed, explain
from gpuplane.node.hardware.nvidia.driver.migcalls import CALLS, PROBLEMS
from gpuplane.node.hardware.nvidia.driver.miginstances import COMPUTE_PROFILES, MOST, SHARED
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml, Subject
from gpuplane.node.hardware.nvidia.driver.openers import in_the_way
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


class Refused(Exception):
    """A change that is not made."""

    def __init__(self, problem: ChangeProblem, failure: str, users: tuple[GpuUser, ...] = ()) -> None:
        self.problem, self.failure, self.users = problem, failure, users
        super().__init__(failure)


class Changer:
    """Makes changes. `users`: who has a GPU open, of its minor number and of the process ids that compute on it."""

    def __init__(self, nvml: Nvml, users: Callable[[int | None, tuple[int, ...]], tuple[GpuUser, ...]]) -> None:
        self._nvml, self._users = nvml, users

    def make(self, action: ChangePartition, subject: Subject | None) -> PartitionChangeFinished:
        """What became of a change of a GPU as it was seen last; None where it was not."""
        told = PartitionChangeFinished(gpu=action.gpu, change=action.change, requested_at=action.requested_at)
        try:
            if subject is None or subject.handle is None:
                raise Refused("gone", "the driver does not describe this GPU now")
            self._make(action, subject)
        except Failed as failed:
            problem = PROBLEMS.get(failed.error, "failed")
            users = self._open(subject) if problem == "in-use" and subject is not None else ()
            return told.but(problem=problem, failure=str(failed), users=users)
        except Refused as refused:
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
                    raise Refused("not-supported", f"there are no compute instances of {slices} slices")
                function, version = "nvmlGpuInstanceGetComputeInstanceProfileInfo", 1
                info = self._call(subject, function, instance, constant, SHARED, version)
                self._call(subject, CALLS[CreateComputeInstance], instance, info.id)
            case DestroyComputeInstance(profile, start, id):
                instance = self._instance(subject, (profile, start), is_needed=False)
                if instance is not None:
                    part = self._gone_is_none(subject, "nvmlGpuInstanceGetComputeInstanceById", instance, id)
                    if part is not None:
                        self._call(subject, CALLS[DestroyComputeInstance], part)
            case _:
                raise Refused("not-supported", "NVML has no reset of a GPU")

    def _set_mode(self, subject: Subject, enabled: bool) -> None:
        before, pending = self._call(subject, "nvmlDeviceGetMigMode", subject.handle)
        needs_reset = subject.gpu.mig is not None and subject.gpu.mig.needs_reset is True
        if pending == enabled and (before == enabled or needs_reset):
            return
        if before != enabled and (users := in_the_way(self._open(subject))):
            raise Refused("in-use", "programs have the GPU open", users)
        activation = self._call(subject, CALLS[SetMigMode], subject.handle, int(enabled))
        current, pending = self._call(subject, "nvmlDeviceGetMigMode", subject.handle)
        error = NAMES.get(activation, "" if not activation else str(activation))
        if current == enabled or (pending == enabled and error == "RESET_REQUIRED"):
            return
        users = self._open(subject)
        if pending != before:
            with suppress(Failed):
                self._call(subject, CALLS[SetMigMode], subject.handle, before)
        raise Refused(PROBLEMS.get(error, "failed"), explain(CALLS[SetMigMode], error or "UNKNOWN"), users)

    def _create(self, subject: Subject, profile: int, start: int) -> None:
        mig = subject.gpu.mig
        known = next((each for each in mig.profiles if each.id == profile), None) if mig is not None else None
        if known is None:
            raise Refused("not-supported", f"this GPU has no profile {profile}")
        if self._instance(subject, (profile, start), is_needed=False) is not None:
            return
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, known.size)
        self._call(subject, CALLS[CreateGpuInstance], subject.handle, profile, ctypes.byref(placement))

    def _destroy(self, subject: Subject, id: int, placement: tuple[int, int]) -> None:
        instance = self._gone_is_none(subject, "nvmlDeviceGetGpuInstanceById", subject.handle, id)
        if instance is None:
            return
        info = self._call(subject, "nvmlGpuInstanceGetInfo", instance)
        if (info.profileId, info.placement.start) != placement:
            raise Refused("gone", f"GPU instance {id} is another one now")
        self._call(subject, CALLS[DestroyGpuInstance], instance)

    def _instance(self, subject: Subject, placement: tuple[int, int], *, is_needed: bool = True) -> Any:
        """NVML's handle of the GPU instance of this placement. Raises Refused where one is needed and there is none."""
        handles, count = (pynvml.c_nvmlGpuInstance_t * MOST)(), pynvml.c_uint(MOST)
        function = "nvmlDeviceGetGpuInstances"
        self._call(subject, function, subject.handle, placement[0], handles, ctypes.byref(count))
        for handle in handles[: min(count.value, MOST)]:
            if self._call(subject, "nvmlGpuInstanceGetInfo", handle).placement.start == placement[1]:
                return handle
        if is_needed:
            raise Refused("gone", "the GPU instance does not exist any more")
        return None

    def _call(self, subject: Subject, function: str, *arguments: Any) -> Any:
        """Raises Failed."""
        return self._nvml.call(function, *arguments, gpu=subject.gpu.index)

    def _gone_is_none(self, subject: Subject, function: str, *arguments: Any) -> Any:
        try:
            return self._call(subject, function, *arguments)
        except Failed as failed:
            if failed.error == "NOT_FOUND":
                return None
            raise

    def _open(self, subject: Subject) -> tuple[GpuUser, ...]:
        """Who has the GPU open."""
        pids = set[int]()
        for kind in ("Compute", "MPSCompute", "Graphics"):
            function = f"nvmlDeviceGet{kind}RunningProcesses"
            pids.update(each.pid for each in subject.ask((), function, subject.handle, fine=ERRORS))
        return self._users(subject.gpu.minor, tuple(sorted(pids - {0})))
