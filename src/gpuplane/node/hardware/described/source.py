"""A machine that a YAML file describes, re-read while we run.

Its `incidents` are a log: one that is added while we run occurs then. Those that stood in it when we came are told too,
as the kernel log would tell them, by their numbers, so that the ledger knows which of them were judged before.

A bad edit is refused and the last good look stays; that says nothing against the driver, so it is the part `machine
file` that fails, and is well again with the next good edit. Only where there never was a good version is it the driver
that cannot be used.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import suppress

from gpuplane.base import strict
from gpuplane.base.pauses import seconds_until_next
from gpuplane.base.text import matches_pattern
from gpuplane.node.hardware import HARDWARE_PART
from gpuplane.node.hardware.described.failures import NO_SAMPLING, observed_facts
from gpuplane.node.hardware.described.load import take_sample
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.migchanges import FUNCTION_OF_CHANGE, ChangeRefused, cap_node_stats, make_change
from gpuplane.node.hardware.described.nodeuuids import with_uuids_of_node
from gpuplane.node.hardware.nvidia.driver.errors import describe_error, gpu_crash_fault, gpu_hang_fault
from gpuplane.node.hardware.nvidia.driver.migcalls import PROBLEM_OF_ERROR
from gpuplane.node.model.facts import (
    Action,
    ChangePartition,
    Fact,
    FaultOccurred,
    MachineObserved,
    PartitionChangeFinished,
    ProbeFinished,
    ProbeGpu,
    SetTimeSlice,
    StatusChanged,
    TimeSliceFinished,
)
from gpuplane.node.model.machine import Fault, Gpu, GpuProcess, Machine, MachineFile, Mig
from gpuplane.node.model.partitions import PartitionChange
from gpuplane.node.model.status import DRIVER_PART, MACHINE_FILE_PART, DriverStatus, Status
from gpuplane.node.model.telemetry import Sample, SamplingRequest

FACTS_PER_TURN = 16
"""Facts after which others have their turn: an edit may add thousands of incidents."""


class ChangedMig:
    """The GPUs whose partitions were changed. They stay so in a new version of the file, unless that has them
    partitioned otherwise than the version before."""

    def __init__(self) -> None:
        self._described: dict[str, Mig | None] = {}  # UUID → as the file has it
        self._changed: dict[str, Gpu] = {}  # UUID → as it is now

    def keep(self, file: MachineFile) -> MachineFile:
        """A new version, with what was changed."""
        described = {gpu.uuid: gpu.mig for gpu in file.gpus or ()}
        for uuid in [each for each in self._changed if described.get(each) != self._described.get(each)]:
            del self._changed[uuid]
        self._described = described
        return self._applied(file)

    def change(
        self, file: MachineFile, gpu: Gpu, change: PartitionChange, processes: Sequence[GpuProcess]
    ) -> MachineFile:
        """The file with a change made. Raises ChangeRefused."""
        self._changed[gpu.uuid] = make_change(gpu, change, processes, self._described.get(gpu.uuid))
        return self._applied(file)

    def _applied(self, file: MachineFile) -> MachineFile:
        if not self._changed:
            return file
        gpus = tuple(
            gpu.but(mig=self._changed[gpu.uuid].mig) if gpu.uuid in self._changed else gpu for gpu in file.gpus or ()
        )
        stats = dict(file.device_node_stats)
        for gpu in gpus:
            stats |= cap_node_stats(gpu, stats)
        return file.but(gpus=gpus if file.gpus is not None else None, device_node_stats=stats)


class Described:
    """NVIDIA's GPUs as one file describes them, whose versions come while we run."""

    part = HARDWARE_PART

    def __init__(self, versions: AsyncIterator[bytes | OSError], name: str, node_name: str = "") -> None:
        """`node_name`: the Node whose own the UUIDs shall be; "" for those of the file."""
        self._versions, self._name, self._node_name = versions, name, node_name
        self._file_now = MachineFile()
        self._partitioned = ChangedMig()
        self._good: list[StatusChanged[DriverStatus] | MachineObserved] = []
        self._told = 0  # the number of the next incident
        self._pending: list[FaultOccurred | ProbeFinished | TimeSliceFinished | PartitionChangeFinished] = []
        self._counted = False  # once a look has: only then can be told whom an incident befell
        self._file: Status | None = None  # None: nothing was ever wrong with it
        self._wanted, self._changed = True, asyncio.Event()
        self._sampling, self._sample_due = NO_SAMPLING, asyncio.Event()

    async def facts(self) -> AsyncGenerator[Fact, None]:
        """What the newest version of the file shows; while the driver is released, that alone."""
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._changed.set())
        try:
            while not reading.done() or self._changed.is_set():
                await self._changed.wait()
                self._changed.clear()
                for number, fact in enumerate(self._now(), 1):
                    yield fact
                    if number % FACTS_PER_TURN == 0:
                        await asyncio.sleep(0)
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """The load of the newest version of the file. The clocks are those of the machine: a slow field keeps its
        value."""
        slow_at, request = -math.inf, self._sampling
        while True:
            self._sample_due.clear()
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            if request is not self._sampling or now - slow_at > request.slow_interval - request.interval / 2:
                slow_at, request = now, self._sampling
            sampled = self._wanted and (request.fields or request.processes)
            machine = self._machine() if sampled else Machine()
            if machine.gpus is not None:
                yield take_sample(self._file_now, machine, request, now, slow_at)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds_until_next(request.interval) if sampled else None):
                    await self._sample_due.wait()

    async def set_sampling(self, request: SamplingRequest) -> None:
        """Sample this from now on: it decides which calls are made, and so which fail."""
        self._sampling = request
        if self._good:
            self._good = observed_facts(self._file_now, self._name, self._sampling)
        self._tell_again()

    async def do(self, action: Action) -> None:
        """Tell again what the file shows, of the whole machine or of one GPU, or what came of a change."""
        if isinstance(action, ProbeGpu):
            self._pending.append(self._probe(action))
        elif isinstance(action, SetTimeSlice):
            self._pending.append(self._set(action))
        elif isinstance(action, ChangePartition):
            self._pending.append(self._change(action))
        else:
            self._wanted = True
        self._tell_again()

    async def release(self) -> None:
        """Tell nothing of the machine until the next look is wanted."""
        self._wanted = False
        self._tell_again()

    def _tell_again(self) -> None:
        self._changed.set()
        self._sample_due.set()

    def _machine(self) -> Machine:
        """What the last good version shows."""
        return next((fact.machine for fact in self._good if isinstance(fact, MachineObserved)), Machine())

    def _now(self) -> Iterator[Fact]:
        pending, self._pending = self._pending, []  # what comes while this is told is told after the look that shows it
        if not self._wanted:
            yield StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True))
        elif self._good:
            yield from self._good
            yield StatusChanged(MACHINE_FILE_PART, self._file)
        elif self._file is not None:
            yield StatusChanged(DRIVER_PART, DriverStatus("failing", self._file.text))
        self._counted |= self._wanted and any(
            isinstance(fact, MachineObserved) and fact.machine.gpus is not None for fact in self._good
        )
        for each in pending:
            if not isinstance(each, FaultOccurred) or self._counted:
                yield each
            else:
                self._pending.append(each)

    def _probe(self, probe: ProbeGpu) -> ProbeFinished:
        machine = self._machine()
        gpu = machine.gpu(probe.gpu)
        if gpu is None or not self._wanted:
            fault = Fault(code="gpu-missing", message=f"{self._name} has no such GPU")
            gpu = Gpu(index=-1, uuid=probe.gpu, faults=machine.faults or (fault,))
        pids = tuple(each.pid for each in self._file_now.processes if each.gpu == gpu.index)
        return ProbeFinished(requested_at=probe.requested_at, gpu=gpu, pids=pids)

    def _set(self, action: SetTimeSlice) -> TimeSliceFinished:
        """What nvidia-smi would come to: it is a call like others, which the file may have fail."""
        gpu = self._file_now.gpu(action.gpu)
        told = TimeSliceFinished(gpu=action.gpu, length=action.length, requested_at=action.requested_at)
        if gpu is None or not self._wanted:
            return told.but(problem=f"{self._name} has no such GPU")
        for each in self._file_now.failures:
            if each.gpu == gpu.index and matches_pattern(each.nvml_function, "nvidia-smi"):
                how = {"error": each.error, "hang": "it did not end", "crash": "it was ended by SIGSEGV"}[each.effect]
                return told.but(problem=f"nvidia-smi: {how}", outcome_unknown=each.effect != "error")
        return told

    def _change(self, action: ChangePartition) -> PartitionChangeFinished:
        """What the driver would come to. The next look, which is told before, shows what was made."""
        told = PartitionChangeFinished(action.gpu, action.change, action.requested_at)
        gpu, function = self._file_now.gpu(action.gpu), FUNCTION_OF_CHANGE[type(action.change)]
        if gpu is None or not self._wanted:
            return told.but(problem="gone", failure=f"{self._name} has no such GPU")
        failures = (each for each in self._file_now.failures if each.gpu == gpu.index)
        failure = next((each for each in failures if matches_pattern(each.nvml_function, function)), None)
        if failure is not None and failure.effect == "error":
            problem = PROBLEM_OF_ERROR.get(failure.error, "failed")
            return told.but(problem=problem, failure=describe_error(function, failure.error))
        if failure is not None and failure.effect == "hang":  # nothing is made
            return told.but(problem="failed", failure=gpu_hang_fault(function).message, outcome_unknown=True)
        try:
            processes = [each for each in self._file_now.processes if each.gpu == gpu.index]
            self._show(self._partitioned.change(self._file_now, gpu, action.change, processes))
        except ChangeRefused as refused:
            return told.but(problem=refused.problem, failure=refused.failure, users=refused.users)
        if failure is not None:  # it crashes afterwards
            return told.but(problem="failed", failure=gpu_crash_fault(function).message, outcome_unknown=True)
        return told

    def _show(self, file: MachineFile) -> None:
        self._file_now = file
        self._good = observed_facts(file, self._name, self._sampling)

    def _happen(self, file: MachineFile, first: bool) -> Iterator[FaultOccurred]:
        """What has come to the file's log. What is not in the kernel log too happens to those alone who are there."""
        gone = Counter(self._file_now.incidents)
        for each in file.incidents:
            if gone[each] > 0:
                gone[each] -= 1
                continue
            number = self._told if each.kernel_log_number is None else each.kernel_log_number
            self._told = number + 1
            gpu = next((gpu for gpu in file.gpus or () if gpu.index == each.gpu), None)
            if gpu is not None and (each.in_kernel_log or (self._wanted and not first)):
                yield FaultOccurred(
                    code=each.code,
                    gpu=gpu.uuid or gpu.pci,
                    message=each.message,
                    at=time.clock_gettime(time.CLOCK_BOOTTIME),
                    gpu_instance=each.gpu_instance,
                    compute_instance=each.compute_instance,
                    pids=each.pids,
                    kernel_log_number=number if each.in_kernel_log else None,
                )

    async def _read(self) -> None:
        async for version in self._versions:
            try:
                if isinstance(version, OSError):
                    raise strict.InvalidInput([f"{self._name}: {version.strerror}"])
                described = await asyncio.to_thread(read_machine, version, self._name)  # a large one takes seconds
                if self._node_name:
                    described = with_uuids_of_node(described, self._node_name)
                file = self._partitioned.keep(described)
                shown = observed_facts(file, self._name, self._sampling)
            except strict.InvalidInput as error:
                self._file = Status("failing", str(error))
            else:
                self._pending += self._happen(file, first=not self._good)
                self._file_now = file
                mended = self._good and self._file
                self._good = shown
                self._file = Status("ok", f"{self._name} can be read again") if mended else None
            self._tell_again()
