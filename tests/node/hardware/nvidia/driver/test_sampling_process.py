"""Samples that the driver's process takes: they begin and end as was asked for, and whatever happens to the process."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.nvidia.driver.__main__ import AgentConnection
from gpuplane.node.hardware.nvidia.driver.channel import DriverMessage, DriverOptions, FrameDecoder
from gpuplane.node.model.facts import FaultOccurred, ObserveMachine
from gpuplane.node.model.machine import InjectedFailure, MachineFile
from gpuplane.node.model.telemetry import GpuSample, Sample, SamplingRequest
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.driver.watched import DEADLINE, Watched, watched

LOADED = Path(__file__).parent / "loaded.yaml"
POWER = "DCGM_FI_DEV_POWER_USAGE"
QUICK = SamplingRequest(fields=(POWER, "DCGM_FI_PROF_SM_ACTIVE"), interval=0.05)


@pytest.fixture
def loaded(standin: StandIn) -> MachineFile:
    """A driver whose machine has a load."""
    machine = read_machine(LOADED.read_bytes(), LOADED.name)
    standin.describe(machine)
    return machine


class Heard:
    """A watched driver whose samples are taken as they come."""

    def __init__(self, watch: Watched) -> None:
        self.watch, self.samples = watch, list[Sample]()
        self.task = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        async for sample in self.watch.hardware.samples():
            self.samples.append(sample)

    async def until(self, ready: Callable[[Sample], bool]) -> Sample:
        """The first new sample that is as wanted."""
        seen = len(self.samples)
        async with asyncio.timeout(DEADLINE):
            while True:
                for sample in self.samples[seen:]:
                    if ready(sample):
                        return sample
                seen = len(self.samples)
                await asyncio.sleep(0.02)

    async def silent(self) -> bool:
        """Whether none comes for a while, but for one that was under way."""
        await asyncio.sleep(0.3)
        seen = len(self.samples)
        await asyncio.sleep(0.3)
        return len(self.samples) == seen


@pytest.fixture
async def heard(standin: StandIn, loaded: MachineFile) -> AsyncIterator[Heard]:
    """A watched driver whose samples are taken as they come."""
    async with watched(standin) as watch:
        heard = Heard(watch)
        yield heard
        heard.task.cancel()
        await asyncio.gather(heard.task, return_exceptions=True)


def gpu(sample: Sample, index: int = 0) -> GpuSample:
    """One GPU; an empty one where it is not told."""
    return sample.gpus[index] if len(sample.gpus) > index else GpuSample(uuid="")


def tells(sample: Sample) -> bool:
    """Whether everything that was asked for is told of the first GPU."""
    return gpu(sample).readings.keys() == set(QUICK.fields)


async def test_it_begins_with_a_request_and_ends_with_an_empty_one(heard: Heard) -> None:
    """Both reach a process that runs."""
    await heard.watch.until(lambda watch: watch.gpus() is not None)
    assert await heard.silent()
    assert heard.samples == []

    await heard.watch.hardware.set_sampling(QUICK)
    sample = await heard.until(tells)
    assert gpu(sample).readings[POWER] == 612.345
    assert [each.pid for each in gpu(sample).processes] == [5, 7]
    assert sample.calls > 0

    await heard.watch.hardware.set_sampling(SamplingRequest(processes=False))
    assert await heard.silent()


async def test_another_process_samples_at_once(heard: Heard) -> None:
    """What was asked for is among its options."""
    await heard.watch.hardware.set_sampling(QUICK)
    before = await heard.until(tells)
    child = heard.watch.hardware._observer.process
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    await heard.until(lambda sample: tells(sample) and sample.calls < before.calls + 1000 and sample is not before)
    assert heard.watch.hardware._observer.process is not child


async def test_a_released_driver_is_not_sampled(heard: Heard) -> None:
    """When it is taken up it goes on as was asked for."""
    await heard.watch.hardware.set_sampling(QUICK)
    await heard.until(tells)
    await heard.watch.hardware.release()
    assert await heard.silent()
    await heard.watch.hardware.do(ObserveMachine())
    await heard.until(tells)


async def test_a_hang_in_a_sampling_call_is_a_hang_of_that_gpu(
    heard: Heard, standin: StandIn, loaded: MachineFile
) -> None:
    """It keeps its entry, and the others are sampled by the next process."""
    await heard.watch.hardware.set_sampling(QUICK)
    await heard.until(tells)
    hang = InjectedFailure(effect="hang", nvml_function="nvmlDeviceGetPowerUsage", gpu=1)
    standin.describe(loaded.but(failures=(hang,)))

    await heard.watch.until(lambda watch: watch.codes()[1:2] == [["gpu-hang"]])
    sample = await heard.until(lambda sample: tells(sample) and gpu(sample, 1).missing.get(POWER) == "TIMEOUT")
    assert gpu(sample, 1) == GpuSample(uuid="GPU-1", missing=dict.fromkeys(QUICK.fields, "TIMEOUT"))
    assert [codes for index, codes in enumerate(heard.watch.codes()) if index != 1] == [[], [], []]


async def test_an_error_of_a_counter_is_no_fault(heard: Heard, standin: StandIn, loaded: MachineFile) -> None:
    """The GPU is well; the field is missing, with NVML's reason."""
    error = InjectedFailure(effect="error", nvml_function="nvmlDeviceGetPowerUsage", gpu=0, error="TIMEOUT")
    standin.describe(loaded.but(failures=(error,)))
    await heard.watch.hardware.set_sampling(QUICK)
    sample = await heard.until(lambda sample: "DCGM_FI_PROF_SM_ACTIVE" in gpu(sample).readings)
    assert gpu(sample).missing == {POWER: "TIMEOUT"}
    assert heard.watch.codes()[0] == []


async def test_a_probe_is_no_sample(heard: Heard, loaded: MachineFile) -> None:
    """The process that probes looks once, and ends."""
    await heard.watch.hardware.set_sampling(QUICK)
    await heard.until(tells)
    probed = await heard.watch.probe("GPU-0", 1.0)
    assert probed.gpu.faults == ()


class Ends:
    """Both ends of a driver's process's channel, without the process."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.agent = AgentConnection(DriverOptions(channel=theirs.detach(), page=-1))
        self.frames: FrameDecoder[DriverMessage] = FrameDecoder(DriverMessage)
        self.taken = 0

    def take(self, processes: int = 0) -> Sample:
        """A sample, as large as is wanted."""
        self.taken += 1
        cpus = tuple(GpuSample(uuid=f"GPU-{'x' * 100}-{number}") for number in range(processes))
        return Sample(taken_at=float(self.taken), gpus=cpus)

    def read(self) -> list[DriverMessage]:
        """What has arrived."""
        told: list[DriverMessage] = []
        try:
            while data := self.ours.recv(1 << 16):
                told += self.frames.feed(data)
        except BlockingIOError:
            return told
        return told


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a channel."""
    ends = Ends()
    yield ends
    ends.ours.close()
    ends.agent._socket.close()


def test_who_does_not_read_gets_no_more(ends: Ends) -> None:
    """Nothing waits in the channel but one sample, and the next one is the newest."""
    for _ in range(1000):
        ends.agent.offer(ends.take)
    assert ends.taken == 1
    assert ends.read() == [Sample(taken_at=1)]
    ends.agent.offer(ends.take)
    assert ends.read() == [Sample(taken_at=2)]


def test_a_sample_that_is_larger_than_the_channel_arrives_in_parts(ends: Ends) -> None:
    """Sending it never waits, no other is begun meanwhile, and a fact comes after it, whole."""
    began = time.monotonic()
    ends.agent.offer(lambda: ends.take(20_000))
    assert ends.agent.owes
    told: list[DriverMessage] = []
    while ends.agent.owes:
        told += ends.read()
        ends.agent.offer(ends.take)
    told += ends.read()
    assert time.monotonic() - began < DEADLINE
    assert [len(each.gpus) for each in told if isinstance(each, Sample)] == [20_000]

    ends.agent.offer(lambda: ends.take(2_500))
    ends.read()
    happened = FaultOccurred(code="xid-79", gpu="GPU-0", message="", at=1.0)
    ends.agent.tell(happened)
    assert ends.read()[-1] == happened
