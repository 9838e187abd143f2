"""The machine as NVIDIA's driver shows it: a process of its own looks (`driver`), and this keeps one such process up.

The driver's library may hang, crash, be absent or be replaced. Whatever it does, the agent goes on answering, and what
it did is told as a fact:
- A hang or a crash in a call about one GPU is charged to that GPU: the next process serves the others, and the GPU is
  tried again later. In a call about none it is the driver that is silent; its last look stays in force.
- Only time in which its process was let work counts against a call: a busy node is no fault of a GPU. A process that
  was stopped is replaced, and nobody charged.
- A process is killed, never waited for: one that is stuck in the kernel survives even that. One such process is left
  behind; with two none is started, and a GPU that one is stuck in is not probed.
- A probe of one GPU is a process too, beside the one that looks. What it hangs or crashes in is its answer.
- What NVML cannot change nvidia-smi does, one at a time: a process like the others, ended like the others.
- Every end that was not wanted costs a rest before the next start, twice as long each time, until a process has done
  well for a while. Silence of the driver as a whole also doubles the next one's deadline: GPUs without persistence
  take long to wake.
- Letting go is killing too, because the end of a process is the one proof that no device node is open.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from gpuplane.base.pauses import seconds_until_next
from gpuplane.base.text import Text
from gpuplane.node.core.observation import replace_gpu_of_same_uuid
from gpuplane.node.hardware import HARDWARE
from gpuplane.node.hardware.nvidia.driver.channel import (
    DriverMessage,
    DriverOptions,
    DriverStatusChanged,
    SetSampling,
    SkipGpus,
    SkippedGpu,
)
from gpuplane.node.hardware.nvidia.driver.errors import (
    driver_crash_fault,
    driver_hang_fault,
    gpu_crash_fault,
    gpu_hang_fault,
    process_stopped_fault,
)
from gpuplane.node.hardware.nvidia.driver.migcalls import CALL_OF_CHANGE
from gpuplane.node.hardware.nvidia.driver.openers import blocking_users, find_openers
from gpuplane.node.hardware.nvidia.driverprocess import DriverProcess, WaitingProcess
from gpuplane.node.hardware.nvidia.gpubackoff import GpuBackoffs, back_off, end_back_off, skipped_gpus
from gpuplane.node.hardware.nvidia.migchanges import NO_PROCESS_REASON, PendingChanges, reset_problem
from gpuplane.node.hardware.nvidia.nvidiasmi import NvidiaSmi, reset_arguments, time_slice_arguments
from gpuplane.node.hardware.nvidia.schedstat import CpuAccess
from gpuplane.node.model.facts import (
    Action,
    ChangePartition,
    Fact,
    MachineObserved,
    PartitionChangeFinished,
    ProbeFinished,
    ProbeGpu,
    SetTimeSlice,
    StatusChanged,
    TimeSliceFinished,
)
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.partitions import GpuUser, ResetGpu
from gpuplane.node.model.status import DRIVER, DRIVER_PROCESS, DriverStatus, Status
from gpuplane.node.model.telemetry import Sample, SamplingRequest

MAX_STUCK_PROCESSES = 1
"""Processes that survive being killed which are left behind while another one is started."""
MAX_ORDER_DELAY = 0.25
"""Seconds in which the process that looks hears an order."""
KILL_TIMEOUT = 1.0
"""Seconds that a killed process is given before it counts as stuck in the kernel."""
MAX_CALL_DEADLINE = 60.0
"""Seconds that a call may take at the most, however often it was too slow."""

CHANGE_DEADLINE_FACTOR = 3
"""Times as long may a call take that changes how a GPU is partitioned."""

BACK_OFF_FAULTS = ("gpu-hang", "gpu-crash")
"""Codes of the faults that GPUs are charged with."""
NOT_OBSERVED = Fault(code="not-looked", message="the driver is released")


class Nvidia:
    """NVIDIA's GPUs through NVML. All times are in seconds."""

    part = HARDWARE

    def __init__(
        self,
        *,
        library: Path | None = None,
        driver_root: Path = Path("/"),
        library_folders: tuple[str, ...] = (),
        root_chosen: str = "",
        root: Path = Path("/"),
        dev_root: Path | None = None,
        poll: float = 1.0,
        deadline: float = 10.0,
        retry: tuple[float, float] = (60.0, 3600.0),
        rest: tuple[float, float] = (0.5, 30.0),
        well: float = 60.0,
        smi_deadline: float = 30.0,
        host_pids: bool = True,
        first: WaitingProcess | None = None,
    ) -> None:
        """`library` is libnvidia-ml's file; without it, it is searched for below `driver_root`, in `library_folders`
        first, and `root_chosen` says what decided that, where nothing is there. `root` has /sys, /proc
        and /dev in it; where the driver's nodes are in the /dev of `dev_root`, those are taken. A look is taken every
        `poll`, and a call that takes longer than `deadline` hangs. A GPU that a hang or a crash was charged to is
        skipped for the first of `retry`, doubling up to the second; so is `rest` before a start that follows an end
        that was not wanted, until a process has done well for `well`. nvidia-smi, which may have to wake each GPU, is
        given `smi_deadline`. `host_pids`: whether the numbers of processes are those of the host here. `first`: a
        process for the first start, which waits for its options.
        """
        self._options = DriverOptions(
            channel=-1,
            page=-1,
            library=str(library or ""),
            driver_root=str(driver_root),
            library_folders=library_folders,
            root_chosen=root_chosen,
            root=str(root),
            dev_root=str(dev_root or ""),
            poll=poll,
            event_wait=min(poll, deadline / 4, MAX_ORDER_DELAY),
            rest=rest[1],
            host_pids=host_pids,
        )
        self._first = first
        self._deadline, self._retry, self._rest, self._well = deadline, retry, rest, well
        self._told = asyncio.Queue[Fact | asyncio.Task[None]]()
        self._wanted, self._changed = True, asyncio.Event()
        self._smi_deadline, self._smi_runs = smi_deadline, asyncio.Lock()
        self._children: list[DriverProcess | NvidiaSmi] = []  # all that are not known to have ended
        self._looking: DriverProcess | None = None  # the one that looks at the machine
        self._errands = set[asyncio.Task[None]]()
        self._charges: GpuBackoffs = ()
        self._look = Machine()
        self._sample: Sample | None = None  # the newest, until it is taken
        self._sampled = asyncio.Event()
        self._changes = PendingChanges(self._tell)
        self._resetting: Text = ""  # why no process may use the driver: a GPU is being reset
        self._failures = self._silences = 0
        self._starved = False  # whether that was said
        self._resting = 0.0  # until when

    async def facts(self) -> AsyncGenerator[Fact, None]:
        """Looks, what happens, what probes find, and how the driver stands, for ever."""
        task = asyncio.create_task(self._keep())
        task.add_done_callback(self._told.put_nowait)
        try:
            while (fact := await self._told.get()) is not task:
                if not isinstance(fact, asyncio.Task):
                    yield fact
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def samples(self) -> AsyncGenerator[Sample, None]:
        """What the process that looks has sampled. One that is not taken before the next one comes is lost."""
        while True:
            await self._sampled.wait()
            self._sampled.clear()
            sample, self._sample = self._sample, None
            if sample is not None:
                yield sample

    async def set_sampling(self, request: SamplingRequest) -> None:
        """Have this sampled from now on, by this process and each that follows."""
        self._options = self._options.but(sampling=request)
        if self._looking is not None and not self._looking.ended:
            self._looking.order(SetSampling(request))

    async def do(self, action: Action) -> None:
        """Look now. Where the driver was let go of it is taken up, and no charge holds: a GPU may have been reset.

        Anything else is begun, and comes back as a fact whatever becomes of it.
        """
        if isinstance(action, ProbeGpu | SetTimeSlice):
            self._run(self._probe(action) if isinstance(action, ProbeGpu) else self._set(action))
        elif isinstance(action, ChangePartition):
            self._change(action)
        elif not self._wanted:
            self._wanted, self._resting, self._charges = True, 0.0, ()
            self._changed.set()
        elif self._looking is not None and not self._looking.ended:
            self._looking.order(action)

    def _run(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def release(self) -> None:
        """End the driver's processes. Returns when no device node is open, or when it is known that one stays."""
        self._wanted, self._sample = False, None
        self._changed.set()
        if self._first is not None:  # it waits for options, and has nothing open
            process, line = self._first
            self._first = None
            line.close()
            process.kill()
            await asyncio.to_thread(process.wait)
        for child in self._children:
            child.dismissed = True
            child.kill()
        for child in self._children:
            await child.gone(KILL_TIMEOUT)

    async def _keep(self) -> None:
        """One process after another."""
        while True:
            await self._may_start()
            began = time.monotonic()
            try:
                self._looking = child = self._start()
            except OSError as error:
                self._fail(_unstartable(error))
                self._changes.break_off(_unstartable(error).message)
                self._back_off(began)
                continue
            self._resting = began + self._rest[0]
            try:
                heard = await self._follow(child)
            finally:
                await self._end(child)
                self._say_starved(child, False)
                self._changes.break_off((NOT_OBSERVED if child.dismissed else _fault(child)).message)
            if not child.dismissed and not (child.status() == 0 and heard):
                self._judge(child)
                self._back_off(began)

    async def _may_start(self) -> None:
        was_released = False
        while True:
            if not self._wanted:
                for child in (each for each in self._left() if not each.stuck):
                    child.stuck = not await child.gone(KILL_TIMEOUT)  # it was killed a moment ago, perhaps
            now = time.monotonic()
            if (held_back := self._held_back()) is not None:
                was_released = held_back.released
                if self._wanted and not self._resetting:
                    self._fail(Fault(code="driver-hang", message=held_back.text))
                if not self._resetting:
                    self._changes.break_off(held_back.text)
                self._tell(StatusChanged(DRIVER, held_back))
            elif now >= self._resting:
                if was_released:
                    self._tell(StatusChanged(DRIVER, DriverStatus("waiting", "the agent loads the driver again")))
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._resting - now if held_back is None else KILL_TIMEOUT):
                    await self._changed.wait()

    def _held_back(self) -> DriverStatus | None:
        """The status of the driver while no process may be started; None while one may."""
        left = self._left()
        if not self._wanted and left:
            reason = (
                f"the agent cannot release the driver: process {_pids(left)} is stuck in the kernel and may "
                "keep the driver open"
            )
            return DriverStatus("failing", reason, "driver-hang")
        if not self._wanted:
            return DriverStatus("waiting", "released", released=True)
        if self._resetting:
            return DriverStatus("waiting", self._resetting)
        stuck = [child for child in left if child.stuck]
        if len(stuck) > MAX_STUCK_PROCESSES:
            reason = (
                f"the agent's driver processes {_pids(stuck)} are stuck in the kernel; the agent starts a "
                "new one when one of them ends"
            )
            return DriverStatus("failing", reason, "driver-hang")
        return None

    def _left(self) -> list[DriverProcess | NvidiaSmi]:
        """The processes that have not ended."""
        self._children = [child for child in self._children if not child.is_gone()]
        return self._children

    def _start(self, probe: ProbeGpu | None = None) -> DriverProcess:
        """Another process. Raises OSError."""
        force = skipped_gpus(self._charges, time.monotonic())
        if probe is not None and (gpu := self._seen(probe.gpu)) is not None:
            force = tuple(each for each in force if not each.means(gpu.index, gpu.pci))
        options = self._options.but(skip=force, probe=probe)
        first, self._first = (self._first, None) if probe is None else (None, self._first)
        child = DriverProcess(options, first)
        self._children.append(child)
        return child

    async def _end(self, child: DriverProcess) -> None:
        """See that a process has ended. One that ends by itself is left the time for it: it has a status of its own."""
        try:
            if child.ended and not child.silent:
                await child.gone(KILL_TIMEOUT)
        finally:
            child.kill()
        child.stuck = not await child.gone(KILL_TIMEOUT)

    async def _hear(self, child: DriverProcess) -> AsyncGenerator[DriverMessage | None, None]:
        """What a process tells, and None now and then, until it has ended or is silent for too long."""
        since, work, had, worked = child.announced().since, CpuAccess(child.pid), 0.0, 0.0
        while True:
            patience = self._patience(child)
            tick = min(1.0, patience / 4)
            fact = await child.receive(seconds_until_next(tick))
            if fact is None and child.ended:
                return
            if fact is None:
                if (began := child.announced().since) != since:
                    since, work, had, worked = began, CpuAccess(child.pid), 0.0, 0.0
                before, had = had, work.had()
                worked += min(had - before, 2 * tick)  # more is our own lateness
                if worked > patience:
                    child.silent, child.stopped = True, work.stopped()
                    return
                self._say_starved(child, time.monotonic() - since > patience)
            yield fact

    def _say_starved(self, child: DriverProcess, starved: bool) -> None:
        """Say that the process that looks gets too little CPU to answer in time, or that it does no more."""
        if child is self._looking and starved != self._starved:
            self._starved = starved
            reason = f"process {child.pid} gets too little CPU: observations come late, and the agent uses the last one"
            self._tell(StatusChanged(DRIVER_PROCESS, Status("waiting", reason) if starved else None))

    async def _follow(self, child: DriverProcess) -> bool:
        """Pass on what the process tells, until it ends or is silent; whether it told anything."""
        heard, skipped = False, skipped_gpus(self._charges, time.monotonic())
        async with aclosing(self._hear(child)) as told:
            async for fact in told:
                if fact is not None:
                    heard = True
                    self._pass_on(fact)
                if (force := skipped_gpus(self._charges, time.monotonic())) != skipped:
                    skipped = force
                    child.order(SkipGpus(force))
        return heard

    def _change(self, action: ChangePartition) -> None:
        """Have the process that looks make a change, or nvidia-smi a reset. Exactly one answer comes of it."""
        if isinstance(action.change, ResetGpu):
            self._run(self._reset_gpu(action))
        elif self._wanted and (child := self._looking) is not None and not child.dismissed and child.order(action):
            self._changes.give(action)
        else:
            self._changes.finish(action, "failed", NO_PROCESS_REASON)

    async def _reset_gpu(self, action: ChangePartition) -> None:
        """End our own use of the driver, have nvidia-smi reset the GPU, and look again. Other GPUs are not watched
        meanwhile, for as long as nvidia-smi may take; their last look stays in force."""
        async with self._smi_runs:
            gpu, fault = self._seen(action.gpu), self._unasked(action.gpu)
            if fault is not None:
                return self._changes.finish(action, "failed", fault.message)
            if gpu is None:
                return self._changes.finish(action, "gone", "the driver lists no such GPU")
            if users := blocking_users(await self._openers(gpu)):
                return self._changes.finish(action, "in-use", "programs have the GPU open", users)
            self._resetting = f"the agent does not use the driver while GPU {gpu.index} is reset"
            try:
                problem, is_unsure, error = await self._run_reset(gpu)
                users = await self._openers(gpu) if problem else ()
            finally:
                self._resetting, self._resting = "", 0.0
                self._charges = end_back_off(self._charges, gpu, time.monotonic())
                self._changed.set()
        if problem:
            code = reset_problem(error, blocking_users(users))
            self._changes.finish(action, code, problem, users, is_unsure=is_unsure)
        else:
            self._changes.await_look(action)

    async def _run_reset(self, gpu: Gpu) -> tuple[Text, bool, str]:
        """As `_run_smi`, without a process of ours beside it."""
        children = [child for child in self._left() if isinstance(child, DriverProcess)]
        for child in children:
            child.dismissed = True
            child.kill()
        self._changed.set()
        stuck = [child for child in children if not await child.gone(KILL_TIMEOUT)]
        if stuck:
            return f"process {_pids(stuck)} is stuck in the kernel and may keep the GPU open", False, ""
        if not self._wanted:
            return NOT_OBSERVED.message, False, ""
        return await self._run_smi(gpu.index, reset_arguments(gpu.uuid))

    async def _openers(self, gpu: Gpu) -> tuple[GpuUser, ...]:
        """Who else than we may have a GPU open."""
        ours, host_pids = [child.pid for child in self._left()], self._options.host_pids
        return await asyncio.to_thread(find_openers, self._options.root, gpu.minor, (), ours, host_pids=host_pids)

    def _pass_on(self, fact: DriverMessage) -> None:
        if isinstance(fact, Sample):
            if self._wanted:
                self._sample = fact
                self._sampled.set()
            return None
        if isinstance(fact, MachineObserved) and fact.machine.gpus is not None:
            self._silences = 0
            if self._stale(fact.machine.gpus):
                return None
            self._look = fact.machine
        if isinstance(fact, PartitionChangeFinished):
            return self._changes.pass_on(fact)
        self._tell(StatusChanged(DRIVER, fact.status) if isinstance(fact, DriverStatusChanged) else fact)
        if isinstance(fact, MachineObserved) and fact.machine.gpus is not None:
            self._changes.looked()

    def _stale(self, gpus: Iterable[Gpu]) -> bool:
        """Whether a look still shows a charge that holds no more. The next one is another, and will be told."""
        force = skipped_gpus(self._charges, time.monotonic())
        return any(
            fault.code in BACK_OFF_FAULTS and not any(each.means(gpu.index, gpu.pci) for each in force)
            for gpu in gpus
            for fault in gpu.faults
        )

    async def _probe(self, probe: ProbeGpu) -> None:
        """Have a fresh process look at one GPU, and tell what it saw, or why it saw nothing."""
        found = self._unasked(probe.gpu) or await self._ask(probe)
        if isinstance(found, Fault):
            found = ProbeFinished(requested_at=probe.requested_at, gpu=Gpu(index=-1, uuid=probe.gpu, faults=(found,)))
        self._tell(found)

    def _unasked(self, uuid: str) -> Fault | None:
        """Why nothing new is asked of a GPU now; None where it is."""
        if not self._wanted:
            return NOT_OBSERVED
        if self._resetting:
            return NOT_OBSERVED.but(message=self._resetting)
        gpu = self._seen(uuid)
        for child in self._left():
            announced = child.announced()
            if child.stuck and gpu is not None and announced.gpu == gpu.index:
                reason = f"process {child.pid} is stuck in the kernel in {announced.function}"
                return gpu_hang_fault(announced.function).but(message=reason)
        held_back = self._held_back()
        return None if held_back is None else Fault(code="driver-hang", message=held_back.text)

    async def _ask(self, probe: ProbeGpu) -> ProbeFinished | Fault:
        """What a fresh process sees of a GPU; the fault where that process fails."""
        try:
            child = self._start(probe)
        except OSError as error:
            return _unstartable(error)
        try:
            async with aclosing(self._hear(child)) as told:
                async for fact in told:
                    if isinstance(fact, ProbeFinished):
                        if fact.gpu.index >= 0:
                            self._lift(fact.gpu)
                        return fact
        finally:
            await self._end(child)
        return NOT_OBSERVED if child.dismissed else _fault(child)

    def _lift(self, gpu: Gpu) -> None:
        """A GPU that a fresh process has looked at is asked again by the one that looks, at once."""
        now = time.monotonic()
        if any(each.means(gpu.index, gpu.pci) for each in skipped_gpus(self._charges, now)):
            self._charges = end_back_off(self._charges, gpu, now)
            self._look = replace_gpu_of_same_uuid(self._look, gpu) or self._look
            if self._looking is not None and not self._looking.ended:
                self._looking.order(SkipGpus(skipped_gpus(self._charges, now)))

    async def _set(self, action: SetTimeSlice) -> None:
        """Have nvidia-smi set how long the time slices of a GPU are, and tell what came of it."""
        async with self._smi_runs:
            fault = self._unasked(action.gpu)
            gpu, arguments = self._seen(action.gpu), time_slice_arguments(action.gpu, action.length)
            index = None if gpu is None else gpu.index
            problem, unsure, _ = (fault.message, False, "") if fault else await self._run_smi(index, arguments)
        told = TimeSliceFinished(gpu=action.gpu, length=action.length, requested_at=action.requested_at)
        self._tell(told.but(problem=problem, outcome_unknown=unsure))

    async def _run_smi(self, index: int | None, arguments: Sequence[str]) -> tuple[Text, bool, str]:
        """Why it did not do what it should, "" if it did; whether it may have done it all the same; an NVML error."""
        before = [each for each in self._left() if isinstance(each, NvidiaSmi)]
        if before:
            return f"nvidia-smi, process {_pids(before)}, is stuck in the kernel", False, ""
        try:
            smi = NvidiaSmi(self._options.driver_root, index, arguments, self._options.library_folders)
        except OSError as error:
            return f"{error.filename}: {error.strerror}", False, ""
        self._children.append(smi)
        try:
            in_time = await smi.gone(self._smi_deadline)
        finally:
            smi.kill()
            smi.stuck = not await smi.gone(KILL_TIMEOUT)
        problem, unsure = smi.outcome()
        if smi.dismissed:
            return NOT_OBSERVED.message, unsure, ""
        if not in_time:
            return f"nvidia-smi did not end within {self._smi_deadline:g} s", True, ""
        return problem, unsure, smi.error()

    def _seen(self, uuid: str) -> Gpu | None:
        """A GPU as it was last seen."""
        return self._look.gpu(uuid)

    def _patience(self, child: DriverProcess) -> float:
        """How long the call that a process makes may take now."""
        usual = self._deadline * (
            CHANGE_DEADLINE_FACTOR if child.announced().function in CALL_OF_CHANGE.values() else 1
        )
        return min(usual * (1 << min(self._silences, 8)), max(MAX_CALL_DEADLINE, self._deadline))

    def _judge(self, child: DriverProcess) -> None:
        """Say what an end that was not wanted was about."""
        gpu, fault = child.announced().gpu, _fault(child)
        if gpu is not None and not child.stopped:
            self._charge(gpu, fault)
        else:
            self._fail(fault)
            self._silences += child.silent and not child.stopped

    def _tell(self, fact: Fact) -> None:
        self._told.put_nowait(fact)

    def _fail(self, fault: Fault) -> None:
        """The driver as a whole fails: the last look stays, for as long as the catalogue has patience."""
        self._tell(MachineObserved(self._look.but(gpus=None, faults=(fault,))))
        self._tell(StatusChanged(DRIVER, DriverStatus("failing", fault.message, fault.code)))

    def _charge(self, index: int, fault: Fault) -> None:
        """Skip a GPU for a while, and say so at once: its next process may take its time."""
        gpus = self._look.gpus or ()
        pci = next((gpu.pci for gpu in gpus if gpu.index == index), "")
        skipped = SkippedGpu(index=index, pci=pci, fault=fault)
        self._charges = back_off(self._charges, skipped, time.monotonic(), *self._retry)
        if gpus:
            shown = tuple(gpu.but(faults=(fault,)) if gpu.index == index else gpu for gpu in gpus)
            self._tell(MachineObserved(self._look.but(gpus=shown)))

    def _back_off(self, began: float) -> None:
        now = time.monotonic()
        if now - began > self._well:
            self._failures = 0
        self._resting = now + min(self._rest[0] * (1 << min(self._failures, 16)), self._rest[1])
        self._failures += 1


def _fault(child: DriverProcess) -> Fault:
    """What a process that hung or ended shows of a GPU, or of the driver as a whole."""
    announced = child.announced()
    function = announced.function or "the agent's own code"
    if child.stopped:
        return process_stopped_fault(function)
    if announced.gpu is not None:
        return (gpu_hang_fault if child.silent else gpu_crash_fault)(function)
    if child.silent:
        return driver_hang_fault(function)
    return driver_crash_fault(function).but(message=f"the agent's driver process failed in {function}: {child.cause()}")


def _unstartable(error: OSError) -> Fault:
    what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return Fault(code="driver-start", message=f"the driver's process cannot be started: {what}")


def _pids(children: Iterable[DriverProcess | NvidiaSmi]) -> str:
    return ", ".join(str(child.pid) for child in children)
